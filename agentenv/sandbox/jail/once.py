"""One run of one program: a process that waits for it, watched, collected, and said how it ended.

The process is forked and confined before there is a program, so that neither is part of a run's time.
"""

import base64
import fcntl
import json
import os
import select
import signal
import time
from typing import Any, NamedTuple, NoReturn

from agentenv.sandbox.jail import confine, frames, trees, worker
from agentenv.sandbox.jail.output import Bounded
from agentenv.sandbox.jail.watch import MIB, Watch, resident

RETURN_LIMIT = 8 * MIB
MOST_COLLECTED = 128 * MIB
"""Bytes of collected files: what fits one message with room to spare."""
FAR = 1 << 20
F_ADD_SEALS, SEALS = 1033, 0x2 | 0x4 | 0x8  # neither shorter nor longer nor written
RETURNED, ORDER, READY = 3, 4, 5
"""Descriptors of a waiting process, beside its three streams."""
BEGINS = b"."
"""What a confined process writes as the last thing before its program runs; a complaint is longer."""


class Waiting(NamedTuple):
    """A process that has given up everything and waits for its program."""

    pid: int
    stdin: int
    """A file that the process has as its standard input."""
    order: int
    """Where the program is written; closed without a word it ends the process."""
    ready: int
    """Says ``BEGINS`` when the program begins, a complaint where it cannot, and nothing where the process dies before."""
    streams: tuple[int, ...]
    """The reading ends of stdout, stderr and what calls return."""
    handle: int
    """Can be read once the process has ended."""


def make_box(root: str, files: dict[str, str]) -> str:
    """Folders of a run below ``root``, with the given files; returns the folder where the program starts."""
    for name in ("work", "tmp", "shm"):
        os.mkdir(f"{root}/{name}")
    for name, content in files.items():
        trees.write(f"{root}/work", name, base64.b64decode(content))
    return f"{root}/work"


def collect(folder: str, names: list[str], limits: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """The asked files as base64, and for those that do not cross the wall the reason.

    Together they are at most as large as the disk: files with holes could be much more.
    """
    found, refused = {}, {}
    room = min(limits["disk_mb"] * MIB, MOST_COLLECTED)
    for name in names:
        try:
            content = trees.read(folder, name, min(limits["file_mb"] * MIB, room))
            found[name] = base64.b64encode(content).decode()
            room -= len(content)
        except trees.PathRefused as reason:
            refused[name] = str(reason)
    return found, refused


def pipe() -> tuple[int, int]:
    """A pipe whose reading end does not block."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing


def become(fds: list[int]) -> None:
    """Makes ``fds`` the descriptors 0, 1, 2 and so on, and closes every other one."""
    # Out of the way first: one of them may stand on a number that another is to get.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, len(fds)) for fd in fds]
    for index, fd in enumerate(high):
        os.dup2(fd, index)
    os.closerange(len(fds), FAR)


def end_all(pid: int, isolated: bool) -> None:
    """Kills every process of the run. Only the init of a PID namespace may use the broad call."""
    if isolated and os.getpid() == 1:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def reap_all(isolated: bool) -> None:
    """Waits until nothing of the run is left; all of it has been killed and is a child of the namespace's init."""
    while isolated:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def await_program(setup: dict[str, Any]) -> Waiting:
    """Forks the process of a run."""
    stdin = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    pipes = [pipe() for _ in range(3)]
    order, ready = os.pipe(), os.pipe()
    writing = [end for _, end in pipes]
    pid = os.fork()
    if pid == 0:
        _become_program(setup, [stdin, *writing, order[0], ready[1]])
    for fd in (order[0], ready[1], *writing):
        os.close(fd)
    return Waiting(pid, stdin, order[1], ready[0], tuple(end for end, _ in pipes), os.pidfd_open(pid))


def replace_killed(process: Waiting, setup: dict[str, Any], link: int) -> Waiting:
    """Waits until ``link`` can be read; gives the process that then waits for its program.

    Where memory runs out, the kernel kills such processes before any other, all of a machine's at once: whoever used them
    afterwards would fail once for each. One that was killed is replaced as long as no order has been read, so that the new
    one inherits nothing of an order either.
    """
    while True:
        poll = select.poll()
        for fd in (link, process.handle):
            poll.register(fd, select.POLLIN)
        if process.handle not in dict(poll.poll()):
            return process
        ended = os.waitid(os.P_PIDFD, process.handle, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None or ended.si_code != os.CLD_KILLED or ended.si_status != signal.SIGKILL:
            return process  # what it complained of is said to whoever wants to use it
        os.waitpid(process.pid, 0)
        for fd in (process.stdin, process.order, process.ready, *process.streams, process.handle):
            os.close(fd)
        process = await_program(setup)


def hand_over(process: Waiting, request: dict[str, Any]) -> None:
    """Gives the process its standard input and its program, with which it begins."""
    frames.write_all(process.stdin, base64.b64decode(request["stdin"]))
    os.lseek(process.stdin, 0, os.SEEK_SET)
    # Sealed, because a program could write to it otherwise, into memory that nobody counts.
    fcntl.fcntl(process.stdin, F_ADD_SEALS, SEALS)
    os.close(process.stdin)
    order = {name: request.get(name) for name in ("code", "calls", "limits", "variables")}
    try:
        frames.write_all(process.order, frames.encode(order))
    except frames.Closed:
        pass  # its complaint says why
    os.close(process.order)


def run_once(request: dict[str, Any], setup: dict[str, Any], process: Waiting) -> dict[str, Any]:
    """Runs the program of ``request`` in ``process``; returns what happened.

    Raises:
        RuntimeError: it could not be confined, or ended before; nothing of the program has run.
    """
    limits = request["limits"]
    folder = make_box(setup["root"], request["files"])
    baseline, started = resident(os.getpid()), time.monotonic()
    hand_over(process, request)
    out, err, returned = bounded(limits), bounded(limits), Bounded(RETURN_LIMIT, RETURN_LIMIT)
    watch = Watch(limits, dict(zip(process.streams, (out, err, returned), strict=True)))
    watch.baseline, watch.own_network = baseline, setup["isolated"]
    if not setup["isolated"]:
        watch.members = lambda: [process.pid]
    verdict = watch.until(process.handle, started + limits["wall_s"])
    # However it ended: what it has started goes on running otherwise, and could write while files are collected.
    end_all(process.pid, setup["isolated"])
    _, state, usage = os.wait4(process.pid, 0)
    reap_all(setup["isolated"])
    if verdict == "oom":  # an order that is too large to be read is one that uses too much
        os.close(process.ready)
    else:
        await_confined(process.ready, f"{verdict}, wait status {state:#x}")  # who could complain is gone
    wall = time.monotonic() - started
    watch.drain_rest()
    for fd in (process.handle, *process.streams):
        os.close(fd)
    files, refused = collect(folder, request["collect"], limits)
    return {
        **classify(verdict, state, usage.ru_utime + usage.ru_stime, limits),
        "stdout": out.text,
        "stderr": err.text,
        "truncated": out.truncated or err.truncated,
        "returned": "" if returned.truncated else returned.text,
        "files": files,
        "refused": refused,
        "wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "memory_mb": max(usage.ru_maxrss / 1024, watch.peak / MIB),
    }


def rehearse() -> None:
    """Goes through a run's steps with nothing: memory shared by a fork is copied at the first touch, which then is past."""
    names = ("memory_mb", "open_files", "output_bytes", "hard_output_bytes", "disk_mb", "file_mb")
    limits = json.loads(frames.encode(dict.fromkeys(names, 1)))
    reading, writing = pipe()
    os.close(writing)
    record = bounded(limits)
    watch = Watch(limits, {reading: record})
    watch.baseline = resident(os.getpid())
    watch.until(reading, time.monotonic() + 1.0)
    watch.drain_rest()
    os.close(reading)
    classify("ready", 0, 0.0, limits)
    base64.b64decode(record.text)
    collect("/", [], limits)


def bounded(limits: dict[str, Any]) -> Bounded:
    """The record of one stream of a program."""
    return Bounded(limits["output_bytes"], limits["hard_output_bytes"])


def await_confined(ready: int, ended: str = "") -> None:
    """Waits until the new process has given up what it must, the other end of this pipe last, and begins.

    Args:
        ready: Where the process says that it begins.
        ended: What is known of its end, for the error.

    Raises:
        RuntimeError: it could not, or something ended it before, as the kernel does where memory runs out; nothing of the
            program has run.
    """
    with open(ready, "rb") as stream:
        said = stream.read()
    if said != BEGINS:
        known = f" ({ended})" if ended else ""
        raise RuntimeError(said.decode() or f"the process ended before its program began{known}")


def _become_program(setup: dict[str, Any], fds: list[int]) -> NoReturn:
    try:
        os.setsid()
        become(fds)
        size = confine.address_space()
        confine.renounce(setup)
        confine.forbid_calls(setup)
        folder = f"{setup['root']}/work"
        main = worker.prepare(folder, ["main.py"])
        compile(json.loads('{"code": "print(1)"}')["code"], "main.py", "exec")  # a rehearsal here too
        with open(ORDER, "rb") as stream:
            order = stream.read()
        if not order:
            os._exit(0)
        request = json.loads(order)
        os.chdir(folder)
        confine.limit(request["limits"], size, isolated=setup["isolated"], session=False)
    except BaseException as error:
        os.write(READY, f"a run cannot be confined: {error!r}".encode())
        os._exit(1)
    if request["calls"] is None:
        os.close(RETURNED)
    os.write(READY, BEGINS)
    os.close(READY)
    worker.run_program(request, main)


def classify(verdict: str, state: int, cpu: float, limits: dict[str, Any]) -> dict[str, Any]:
    """How a run ended, from what the watch saw and what the kernel says of the process."""
    number = os.WTERMSIG(state) if os.WIFSIGNALED(state) else None
    code = os.WEXITSTATUS(state) if os.WIFEXITED(state) else None
    if verdict != "ready":
        status = verdict
    elif code is not None:
        status = {0: "ok", worker.OOM_EXIT: "oom"}.get(code, "error")
    elif number == signal.SIGXCPU or (number == signal.SIGKILL and cpu >= limits["cpu_s"]):
        status = "timeout"
    else:
        status = "killed"
    return {"status": status, "exit_code": code, "signal": number}
