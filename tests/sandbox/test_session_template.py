"""What becomes of a session whose template ends, which a program could bring about by using up the machine's memory."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.jail_session import JailSession
from agentenv.sandbox.types import ExecStatus
from tests.sandbox.conftest import descendants, first_process, jails_of, number_inside, parent_of

END = "import os\nos._exit(1)"
INIT = 1


def entry(pid: int, name: str) -> str:
    return (Path("/proc") / str(pid) / name).read_text(encoding="utf-8", errors="replace")


def roots(executor: JailExecutor) -> set[int]:
    found: set[int] = set()
    for jail in jails_of(executor):
        outside = jail._outside
        found |= first_process(outside._name) if hasattr(outside, "_name") else {outside.pid}
    return found


def templates(executor: JailExecutor) -> set[int]:
    """Processes from which interpreters were forked: no init of a namespace, but children of one, with children."""
    found = set()
    for pid in descendants(roots(executor)):
        with suppress(OSError, StopIteration):
            parent = parent_of(Path("/proc") / str(pid))
            if number_inside(pid) != INIT and number_inside(parent) != INIT:
                found.add(parent)
    return {pid for pid in found if number_inside(parent_of(Path("/proc") / str(pid))) == INIT}


@pytest.fixture(name="opened")
def _opened(doomed: JailExecutor) -> JailSession:
    session = doomed.open()
    session.run("x = 7")
    return session


def score(pid: int) -> int:
    return int(entry(pid, "oom_score_adj"))


def kill(pids: set[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except PermissionError:
            pytest.skip("processes of this backend belong to another user")


def test_the_kernel_ends_programs_before_their_template(
    doomed: JailExecutor, opened: JailSession, waiting: Callable[[JailExecutor], set[int]]
) -> None:
    [template] = templates(doomed)
    programs = {pid for pid in waiting(doomed) if parent_of(Path("/proc") / str(pid)) == template}
    assert programs
    assert all(score(pid) > score(template) for pid in programs), template
    opened.close()


def test_a_session_without_a_template_goes_on_in_a_new_one(doomed: JailExecutor, opened: JailSession) -> None:
    [sibling] = opened.fork(1)
    point = opened.snapshot()
    kill(templates(doomed))
    assert opened.run("x").value == "7"  # its interpreter is still there
    first = opened.run(END)
    assert (first.status, first.state_lost) == (ExecStatus.KILLED, True)
    assert opened.run("6 * 7").value == "42"
    other = sibling.run("x")
    assert (other.status, other.state_lost) == (ExecStatus.KILLED, True), other
    assert sibling.run("6 * 7").value == "42"
    opened.restore(point)
    assert opened.run("x").value == "7"
    sibling.close()
    opened.close()
