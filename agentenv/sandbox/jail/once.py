"""Runs one program: waits for its process under limits, collects its files, and reports how it ended.

The process is forked and confined before there is a program, so that this does not count towards a run's time.
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
"""Largest size of collected files in bytes, which fit into one message with room to spare."""
FAR = 1 << 20
F_ADD_SEALS, SEALS = 1033, 0x2 | 0x4 | 0x8  # cannot be shrunk, extended or written
RETURNED, ORDER, READY = 3, 4, 5
"""Descriptors of a waiting process besides its three standard streams."""
BEGINS = b"."
"""Written by a confined process just before its program starts; an error message is longer."""


class Waiting(NamedTuple):
    """A confined process that waits for its program."""

    pid: int
    stdin: int
    """The file that the process has as its standard input."""
    order: int
    """The pipe to which the program is written; closing it without data ends the process."""
    ready: int
    """Yields ``BEGINS`` when the program starts, an error message if it cannot, and nothing if the process dies before."""
    streams: tuple[int, ...]
    """The reading ends of stdout, stderr, and the values that calls return."""
    handle: int
    """A descriptor that becomes readable when the process has ended."""


def make_box(root: str, files: dict[str, str]) -> str:
    """Creates the folders of a run below ``root`` with the given files; returns the folder in which the program starts."""
    for name in ("work", "tmp", "shm"):
        os.mkdir(f"{root}/{name}")
    for name, content in files.items():
        trees.write(f"{root}/work", name, base64.b64decode(content))
    return f"{root}/work"


def collect(folder: str, names: list[str], limits: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the requested files as base64, and for those that cannot be returned the reason.

    Their total size is limited to that of the disk, because sparse files could be much larger.
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
    """Makes a pipe with a non-blocking reading end."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing


def become(fds: list[int]) -> None:
    """Makes ``fds`` the descriptors 0, 1, 2 and so on, and closes every other descriptor."""
    # First moved to higher numbers, because one of them may have a number that another one needs.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, len(fds)) for fd in fds]
    for index, fd in enumerate(high):
        os.dup2(fd, index)
    os.closerange(len(fds), FAR)


def end_all(pid: int, isolated: bool) -> None:
    """Kills every process of the run. Only the init of a PID namespace may use ``kill(-1)``."""
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
    """Waits until no process of the run is left; all have been killed and are children of the namespace's init."""
    while isolated:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def await_program(setup: dict[str, Any]) -> Waiting:
    """Forks the process of a run, which waits for its program."""
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
    """Waits until ``link`` is readable; returns the process that then waits for its program.

    If memory runs out, the kernel kills such waiting processes first, possibly all on a machine at once, and the next user
    of each would fail. So a killed process is replaced as long as no order has been read; the new process then inherits
    nothing of an order either.
    """
    while True:
        poll = select.poll()
        for fd in (link, process.handle):
            poll.register(fd, select.POLLIN)
        if process.handle not in dict(poll.poll()):
            return process
        ended = os.waitid(os.P_PIDFD, process.handle, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None or ended.si_code != os.CLD_KILLED or ended.si_status != signal.SIGKILL:
            return process  # its error is reported to the next user
        os.waitpid(process.pid, 0)
        for fd in (process.stdin, process.order, process.ready, *process.streams, process.handle):
            os.close(fd)
        process = await_program(setup)


def hand_over(process: Waiting, request: dict[str, Any]) -> None:
    """Passes standard input and program to the process, which then starts."""
    frames.write_all(process.stdin, base64.b64decode(request["stdin"]))
    os.lseek(process.stdin, 0, os.SEEK_SET)
    # Sealed, because a program could otherwise write to it, into memory that is not counted.
    fcntl.fcntl(process.stdin, F_ADD_SEALS, SEALS)
    os.close(process.stdin)
    order = {name: request.get(name) for name in ("code", "calls", "limits", "variables")}
    try:
        frames.write_all(process.order, frames.encode(order))
    except frames.Closed:
        pass  # its error message says why
    os.close(process.order)


def run_once(request: dict[str, Any], setup: dict[str, Any], process: Waiting) -> dict[str, Any]:
    """Runs the program of ``request`` in ``process``; returns the result.

    Raises:
        RuntimeError: the process could not be confined, or ended before; nothing of the program has run.
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
    # Always, because child processes would otherwise continue, and could write while files are collected.
    end_all(process.pid, setup["isolated"])
    _, state, usage = os.wait4(process.pid, 0)
    reap_all(setup["isolated"])
    if verdict == "oom":  # a program too large to be read counts as using too much memory
        os.close(process.ready)
    else:
        # the process that could report an error has ended
        await_confined(process.ready, f"{verdict}, wait status {state:#x}")
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
    """Performs the steps of a run without a program, because pages shared by a fork are copied when first written."""
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
    """Makes the bounded record of one stream of a program."""
    return Bounded(limits["output_bytes"], limits["hard_output_bytes"])


def await_confined(ready: int, ended: str = "") -> None:
    """Waits until the new process is confined and starts its program; it closes the other end of this pipe last.

    Args:
        ready: The pipe on which the process reports that it starts.
        ended: What is known about its end, for the error.

    Raises:
        RuntimeError: it could not be confined, or something ended it before, as the kernel does if memory runs out; nothing
            of the program has run.
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
        # also a rehearsal; see `rehearse`
        compile(json.loads('{"code": "print(1)"}')["code"], "main.py", "exec")
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
    """Returns how a run ended, from the watch's verdict and the process's wait status."""
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
