"""One run of one program: fork, watch, collect, say how it ended."""

import base64
import fcntl
import os
import signal
import time
from typing import Any, NoReturn

from agentenv.sandbox.jail import confine, trees, worker
from agentenv.sandbox.jail.output import Bounded
from agentenv.sandbox.jail.watch import MIB, Watch, resident

RETURN_LIMIT = 8 * MIB
FAR = 1 << 20


def make_box(root: str, files: dict[str, str]) -> str:
    """Folders of a run below ``root``, with the given files; returns the folder where the program starts."""
    for name in ("work", "tmp", "shm"):
        os.mkdir(f"{root}/{name}")
    for name, content in files.items():
        trees.write(f"{root}/work", name, base64.b64decode(content))
    return f"{root}/work"


def collect(folder: str, names: list[str], limit: int) -> tuple[dict[str, str], dict[str, str]]:
    """The asked files as base64, and for those that do not cross the wall the reason."""
    found, refused = {}, {}
    for name in names:
        try:
            found[name] = base64.b64encode(trees.read(folder, name, limit)).decode()
        except trees.Refused as reason:
            refused[name] = str(reason)
    return found, refused


def pipe() -> tuple[int, int]:
    """A pipe whose reading end does not block."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing


def given(data: bytes) -> int:
    """A descriptor from which ``data`` can be read; nobody has to feed it."""
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def become(fds: list[int]) -> None:
    """Makes ``fds`` the descriptors 0, 1, 2 and so on, and closes every other one."""
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


def run_once(request: dict[str, Any], setup: dict[str, Any]) -> dict[str, Any]:
    """Runs the program of ``request``; returns what happened."""
    limits, root = request["limits"], setup["root"]
    folder = make_box(root, request["files"])
    stdin = given(base64.b64decode(request["stdin"]))
    pipes = [pipe() for _ in range(2 if request.get("calls") is None else 3)]
    baseline, started = resident(os.getpid()), time.monotonic()
    ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become_program(request, setup, folder, [stdin, *(writing for _, writing in pipes), ready[1]])
    for fd in (stdin, ready[1], *(writing for _, writing in pipes)):
        os.close(fd)
    await_confined(ready[0])
    records = {reading: bounded(limits) for reading, _ in pipes[:2]}
    records |= {reading: Bounded(RETURN_LIMIT, RETURN_LIMIT) for reading, _ in pipes[2:]}
    watch = Watch(limits, records)
    watch.baseline = baseline
    if not setup["isolated"]:
        watch.members = lambda: [pid]
    handle = os.pidfd_open(pid)
    verdict = watch.until(handle, started + limits["wall_s"])
    end_all(pid, setup["isolated"])
    _, state, usage = os.wait4(pid, 0)
    reap_all(setup["isolated"])
    wall = time.monotonic() - started
    watch.drain_rest()
    for fd in (handle, *records):
        os.close(fd)
    out, err, *returned = records.values()
    files, refused = collect(folder, request["collect"], limits["file_mb"] * MIB)
    return {
        **classify(verdict, state, usage.ru_utime + usage.ru_stime, limits),
        "stdout": out.text,
        "stderr": err.text,
        "truncated": out.truncated or err.truncated,
        "returned": returned[0].text if returned and not returned[0].truncated else "",
        "files": files,
        "refused": refused,
        "wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "memory_mb": max(usage.ru_maxrss / 1024, watch.peak / MIB),
    }


def bounded(limits: dict[str, Any]) -> Bounded:
    """The record of one stream of a program."""
    return Bounded(limits["output_bytes"], limits["hard_output_bytes"])


def await_confined(ready: int) -> None:
    """Waits until the new process has given up what it must.

    Raises:
        RuntimeError: it could not; nothing of the program has run.
    """
    complaint = os.read(ready, 4096)
    os.close(ready)
    if complaint:
        raise RuntimeError(complaint.decode())


def _become_program(request: dict[str, Any], setup: dict[str, Any], folder: str, fds: list[int]) -> NoReturn:
    try:
        os.setsid()
        become(fds)
        confine.act_as_zygote(setup["uid"])
        confine.limit(request["limits"], setup["neighbours"], session=False)
        confine.renounce(setup)
    except BaseException as error:
        os.write(len(fds) - 1, f"a run cannot be confined: {error!r}".encode())
        os._exit(1)
    os.close(len(fds) - 1)
    worker.run_program(request, folder)


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
