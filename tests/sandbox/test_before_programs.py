"""A process that something outside ends before its program begins is an infrastructure failure, not the program's deed.

The kernel does so where the machine runs out of memory: it kills processes that are to be programs before any other.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecStatus, ExecutionLimits

LIMITS = ExecutionLimits(wall_s=20.0)


def eventually(check: Callable[[], bool]) -> bool:
    end = time.monotonic() + 5.0
    while not (found := check()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


Waiting = Callable[[JailExecutor], set[int]]


def end(pids: set[int]) -> None:
    assert pids
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
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
    assert eventually(lambda: bool(waiting(doomed)))
    for _ in range(2):
        killed = waiting(doomed)
        end(killed)
        assert eventually(gone(killed))
        result = doomed.run("print(6 * 7)", limits=LIMITS)
        assert (result.status, result.stdout) == (ExecStatus.OK, "42\n"), result


def test_a_run_whose_process_is_killed_every_time_is_an_infrastructure_failure(
    doomed: JailExecutor, waiting: Waiting
) -> None:
    doomed.run("1")
    end(waiting(doomed))
    stopped = threading.Event()

    def kill_all() -> None:
        while not stopped.is_set():
            for pid in waiting(doomed):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        # Its order takes a while to be read, within which the process is found and killed.
        result = doomed.run(
            "#" * (24 << 20) + "\nimport time; time.sleep(0)", limits=ExecutionLimits(memory_mb=1024)
        )
    finally:
        stopped.set()
        killer.join()
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
