"""A process that something outside ends before its program begins is an infrastructure failure, not the program's deed.

The kernel does so where the machine runs out of memory: it kills processes that are to be programs before any other.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from agentenv.sandbox.backends import make_executor
from agentenv.sandbox.executor import RETRIES, JailExecutor
from agentenv.sandbox.jail import once
from agentenv.sandbox.jail.router import SPARES
from agentenv.sandbox.types import ExecStatus, ExecutionLimits
from tests.sandbox.conftest import DEADLINE_S, number_inside, parent_of, shared

LIMITS = ExecutionLimits(wall_s=20.0)


def eventually(check: Callable[[], bool]) -> bool:
    end = time.monotonic() + DEADLINE_S
    while not (found := check()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


Waiting = Callable[[JailExecutor], set[int]]


def end(pids: set[int], by: int = signal.SIGKILL) -> None:
    assert pids
    for pid in pids:
        try:
            os.kill(pid, by)
        except PermissionError:
            pytest.skip("processes of this backend belong to another user")


def gone(pids: set[int]) -> Callable[[], bool]:
    """Whether all of them have ended, be they reaped or not."""

    def check() -> bool:
        states = []
        for pid in pids:
            with suppress(OSError):
                stat = (Path("/proc") / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
                states.append(stat.rpartition(")")[2].split()[0])
        return all(state in "ZX" for state in states)

    return check


def test_a_run_whose_process_was_killed_while_it_waited_is_repeated(
    doomed: JailExecutor, waiting: Waiting
) -> None:
    doomed.run("1")
    for _ in range(2):
        assert eventually(lambda: bool(waiting(doomed)))  # which takes a moment after each run
        killed = waiting(doomed)
        end(killed)
        assert eventually(gone(killed))
        result = doomed.run("print(6 * 7)", limits=LIMITS)
        assert (result.status, result.stdout) == (ExecStatus.OK, "42\n"), result


def test_the_waiting_processes_of_all_jails_may_be_killed_at_once(waiting: Waiting) -> None:
    """The kernel does so where memory runs out: whoever comes next would fail once for each that was dead."""
    shared("bwrap")  # skips where there is none
    with make_executor("bwrap", size=4) as executor:
        executor.warm()
        assert eventually(lambda: len(waiting(executor)) >= 4 * SPARES)
        killed = waiting(executor)
        end(killed)
        assert eventually(gone(killed))
        assert eventually(lambda: len(waiting(executor) - killed) >= len(killed))
        for _ in range(4 * SPARES):
            result = executor.run("print(6 * 7)", limits=LIMITS)
            assert (result.status, result.stdout) == (ExecStatus.OK, "42\n"), result


def with_an_order(pids: set[int]) -> set[int]:
    """Those whose supervisor has read the order of a run: their folders stand in the box."""
    return {pid for pid in pids if (Path("/proc") / str(pid) / "root/box/work").is_dir()}


def test_a_run_whose_process_is_killed_every_time_is_an_infrastructure_failure(
    doomed: JailExecutor, waiting: Waiting
) -> None:
    """Each is stopped while it waits, so that none begins before it is killed."""
    found: set[int] = set()

    def all_stopped(killed: int) -> bool:
        """Whether as many processes have been stopped as wait in two jails at rest, beside those that were killed."""
        if fresh := waiting(doomed) - found:
            end(fresh, signal.SIGSTOP)
            found.update(fresh)
        return len(found) >= 2 * SPARES + killed

    doomed.run("1")
    doomed.warm()  # the other jail is the reserve
    assert eventually(lambda: all_stopped(0))
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(doomed.run, "1", limits=LIMITS)
        for attempt in range(1, 2 + RETRIES):
            assert eventually(partial(all_stopped, attempt))
            assert eventually(lambda: bool(with_an_order(found)))
            used = with_an_order(found)
            end(used)
            assert eventually(gone(used))
        result = outcome.result()
    assert result.status is ExecStatus.SANDBOX_ERROR, result
    assert "before its program began" in result.fault


@pytest.mark.parametrize("frozen", [False, True])
def test_a_session_whose_interpreter_is_killed_before_its_first_cell_has_failed(
    doomed: JailExecutor, waiting: Waiting, frozen: bool
) -> None:
    before = waiting(doomed)
    with doomed.open(limits=LIMITS) as session:
        if frozen:
            session.snapshot()
        killed = waiting(doomed) - before
        end(killed)
        assert eventually(gone(killed))
        result = session.run("6 * 7")
        assert result.status is ExecStatus.SANDBOX_ERROR, result
        assert result.state_lost


def test_an_interpreter_that_is_killed_after_its_first_cell_is_its_programs_deed(
    doomed: JailExecutor, waiting: Waiting
) -> None:
    """A program can kill itself, and nobody can tell the two apart."""
    before = waiting(doomed)
    with doomed.open(limits=LIMITS) as session:
        time.sleep(0.1)
        fresh = waiting(doomed) - before
        assert session.run("6 * 7").value == "42"
        end(fresh & waiting(doomed))
        result = session.run("6 * 7")
        assert (result.status, result.state_lost) == (ExecStatus.KILLED, True), result


PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


@contextlib.contextmanager
def held(pid: int) -> Iterator[None]:
    """Keeps a process where it stands, whatever signals it is sent but the one that ends it, which is sent at the end."""
    libc = ctypes.CDLL(None, use_errno=True)

    def trace(request: int) -> None:
        if libc.ptrace(request, pid, 0, 0) != 0:
            pytest.skip(f"this process cannot be traced: {os.strerror(ctypes.get_errno())}")

    trace(PTRACE_SEIZE)
    trace(PTRACE_INTERRUPT)
    os.waitpid(pid, 0x40000000)  # __WALL: it stands
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0x40000000)


def youngest_interpreter(fresh: set[int]) -> int:
    """Of processes that began after a session was opened, the last that a template has forked and no supervisor."""
    parents = {pid: parent_of(Path("/proc") / str(pid)) for pid in fresh}
    return max(pid for pid, parent in parents.items() if number_inside(parent) != 1)


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
@pytest.mark.parametrize("frozen", [False, True])
def test_an_interpreter_that_is_killed_between_its_first_cell_and_reading_it_has_failed(
    doomed: JailExecutor, waiting: Waiting, size: int, frozen: bool
) -> None:
    """The cell lies in the socket by then, in whole or in part."""
    before = waiting(doomed)
    with doomed.open(limits=LIMITS) as session, ThreadPoolExecutor(1) as pool:
        if frozen:
            session.snapshot()
        with held(youngest_interpreter(waiting(doomed) - before)):
            outcome = pool.submit(session.run, "#" * size + "\n6 * 7")
            time.sleep(0.3)
        result = outcome.result()
        assert result.status is ExecStatus.SANDBOX_ERROR, result
        assert result.state_lost
        assert session.run("6 * 7").value == "42"


FIRST_CELLS = {
    "more than its memory": "x = 1 #" + "x" * (60 << 20),
    "more lines than its memory": "x = 1\n" * (4 << 20),
    "brackets": "(" * 100_000,
    "closed brackets": "[" * 90 + "]" * 90,
    "many closed brackets": "[" * 50_000 + "]" * 50_000,
    "signs": "-" * 1_000_000 + "1",
    "negations": "not " * 200_000 + "1",
    "powers": "**".join(["1"] * 100_000),
    "attributes": "a" + ".b" * 100_000,
    "calls": "a" + "()" * 100_000,
    "functions": "lambda: " * 50_000 + "1",
    "conditions": "1 if 1 else " * 50_000 + "1",
    "sums": "+".join(["1"] * 300_000),
    "digits": "9" * 5_000_000,
    "large constant": "x = (1,) * 10**10",
    "large shift": "x = 1 << 10**11",
    "texts": "x = 'a' * 10**11",
    "formats": "x = f'{" + "f'{" * 20_000,
    "blocks": "\n".join(" " * depth + "if 1:" for depth in range(5000)),
    "names": "".join(f"x{number} = {number}\n" for number in range(150_000)),
    "a lone surrogate": "x = '\ud800'; '\ud800'",
    "zeros": "x = 1\0",
}
"""Cells that are too large to be read or compiled, in one way or another, and some that are not."""


@pytest.mark.parametrize("first", FIRST_CELLS)
def test_no_first_cell_masks_its_episode(box: JailExecutor, first: str) -> None:
    """Neither the size of a cell nor what its compilation takes is an infrastructure failure: a policy could choose it."""
    with box.open(limits=ExecutionLimits(wall_s=10.0, memory_mb=48)) as session:
        result = session.run(FIRST_CELLS[first])
        assert result.status is not ExecStatus.SANDBOX_ERROR, result
        again = session.run("6 * 7")
        assert (again.status, again.value) == (ExecStatus.OK, "42")


def test_a_first_cell_that_cannot_be_handed_over_in_time_is_its_programs_deed(box: JailExecutor) -> None:
    with box.open(limits=ExecutionLimits(memory_mb=1024)) as session:
        result = session.run("x = 1 #" + "x" * (100 << 20), wall_s=0.1)
        assert result.status in (ExecStatus.KILLED, ExecStatus.TIMEOUT), result


def test_a_process_that_was_killed_is_replaced_though_its_order_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order waits unread, so the new process inherits nothing of it."""

    def sleeper() -> once.Waiting:
        stdin, order, ready, stream = (os.open(os.devnull, os.O_RDWR) for _ in range(4))
        pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
        return once.Waiting(pid, stdin, order, ready, (stream,), os.pidfd_open(pid))

    monkeypatch.setattr(once, "await_program", lambda setup: sleeper())
    killed, (link, order) = sleeper(), os.pipe()
    os.kill(killed.pid, signal.SIGKILL)
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    os.write(order, b"an order")
    fresh = once.replace_killed(killed, {}, link)
    try:
        assert fresh.pid != killed.pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(fresh.pid, signal.SIGKILL)
            os.waitpid(fresh.pid, 0)
        for fd in (link, order, fresh.stdin, fresh.order, fresh.ready, *fresh.streams, fresh.handle):
            os.close(fd)
