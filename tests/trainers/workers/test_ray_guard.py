"""The guard of a Ray cluster: what still has a file of the session open ends, and nothing else, once the run is gone."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentenv.trainers.workers import ray_guard
from agentenv.trainers.workers.ray_guard import end_session, users_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
Start = Callable[..., "subprocess.Popen[Any]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that sleeps, with its output in a file where one is named."""
    with ExitStack() as stack:

        def started(output: Path | None = None, seconds: float = 600) -> "subprocess.Popen[Any]":
            file = subprocess.DEVNULL if output is None else stack.enter_context(output.open("wb"))
            process = subprocess.Popen(["sleep", str(seconds)], stdout=file)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield started


@pytest.fixture
def session(tmp_path: Path) -> Path:
    (tmp_path / "session" / "logs").mkdir(parents=True)
    return tmp_path / "session"


def test_who_has_a_file_of_the_session_open_is_found(session: Path, tmp_path: Path, start: Start) -> None:
    agent, other, bare = start(session / "logs" / "agent.out"), start(tmp_path / "session.out"), start()
    found = users_of(session, but=os.getpid())
    assert agent.pid in found
    assert not {other.pid, bare.pid, os.getpid()} & set(found)
    assert users_of(session, but=agent.pid) == []  # this process holds the file open too, and asks


def test_who_does_not_end_by_itself_is_killed(session: Path, start: Start) -> None:
    quick, stuck = start(session / "logs" / "quick.out", 0.2), start(session / "logs" / "stuck.out")
    assert end_session(session, but=os.getpid(), patience_s=2.0) == [stuck.pid]
    assert (quick.wait(10), stuck.wait(10)) == (0, -9)


def test_a_session_that_is_over_is_not_waited_for(session: Path) -> None:
    assert end_session(session, but=os.getpid(), patience_s=600.0) == []


def test_it_begins_when_the_run_is_gone(session: Path, start: Start) -> None:
    agent = start(session / "logs" / "agent.out")
    command = [sys.executable, "-I", "-S", ray_guard.__file__, str(session), str(os.getpid())]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        guard.wait(1.0)
    assert agent.poll() is None  # the run is there
    guard.communicate(timeout=60)
    assert (guard.returncode, agent.wait(10)) == (0, -9)
