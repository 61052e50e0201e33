"""Daemon threads: what is called, how many at a time, calls that are given up, and waiting for what still runs."""

import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from agentenv.core.concurrency import threads
from agentenv.core.concurrency.deadlines import deadline_of, waiting_for_others
from agentenv.core.concurrency.threads import DaemonThreads, in_time, wait_until_idle
from agentenv.errors import EnvFault


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Opens after the test, so that nothing hangs for longer."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def pool() -> Iterator[DaemonThreads]:
    made = DaemonThreads(2, "some")
    yield made
    made.shutdown()


def hang(began: threading.Event, gate: threading.Event) -> None:
    began.set()
    gate.wait(10)


def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.002)
    assert holds()


def test_a_function_is_called_with_its_arguments_in_a_daemon_thread_of_the_name(pool: DaemonThreads) -> None:
    def work(a: int, b: int, *, c: int) -> tuple[int, str, bool]:
        return a * 100 + b * 10 + c, threading.current_thread().name, threading.current_thread().daemon

    value, name, daemon = pool.submit(work, 1, 2, c=3).result(5)
    assert (value, daemon) == (123, True)
    assert name.startswith("some")


def test_at_most_so_many_calls_run_at_a_time(pool: DaemonThreads, gate: threading.Event) -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        gate.wait(10)

    calls = [pool.submit(work, number) for number in range(4)]
    until(lambda: len(begun) == 2)
    time.sleep(0.05)
    assert begun == [0, 1]
    gate.set()
    for call in calls:
        call.result(5)
    assert sorted(begun) == [0, 1, 2, 3]


@pytest.mark.parametrize("replaces", [True, False])
def test_a_call_that_is_given_up_makes_room_where_its_thread_is_replaced(
    replaces: bool, gate: threading.Event
) -> None:
    pool = DaemonThreads(1, "some", replaces=replaces)
    began = threading.Event()
    hanging = pool.submit(hang, began, gate)
    assert began.wait(5)
    assert not hanging.cancel()  # it runs
    assert pool.abandoned == (1 if replaces else 0)
    following = pool.submit(lambda: "done")
    if replaces:
        assert following.result(5) == "done"
        gate.set()
    else:
        time.sleep(0.05)
        assert not following.done()
        gate.set()
        assert following.result(5) == "done"
    until(lambda: pool.abandoned == 0)
    pool.shutdown()


def test_a_call_that_has_not_begun_can_be_cancelled(pool: DaemonThreads, gate: threading.Event) -> None:
    for _ in range(2):
        pool.submit(gate.wait, 10)
    waiting = pool.submit(lambda: "never")
    assert waiting.cancel()
    assert waiting.cancelled()
    assert pool.abandoned == 0
    gate.set()
    assert pool.submit(lambda: "next").result(5) == "next"


def test_what_is_raised_comes_back_and_the_end_of_an_iteration_as_another_error(pool: DaemonThreads) -> None:
    def failing(error: BaseException) -> None:
        raise error

    with pytest.raises(KeyError, match="gone"):
        pool.submit(failing, KeyError("gone")).result(5)
    with pytest.raises(RuntimeError, match=r"StopIteration.*done"):
        pool.submit(failing, StopIteration("done")).result(5)
    with pytest.raises(SystemExit):
        pool.submit(failing, SystemExit(3)).result(5)
    assert pool.submit(lambda: "next").result(5) == "next"


def test_a_closed_pool_and_one_whose_threads_all_hang_take_no_call(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    monkeypatch.setattr(threads, "MAX_ABANDONED", 1)
    pool = DaemonThreads(1, "some")
    began = threading.Event()
    call = pool.submit(hang, began, gate)
    assert began.wait(5)
    call.cancel()
    with pytest.raises(EnvFault, match=r"\b1\b"):
        pool.submit(lambda: None)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(lambda: None)


def no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_pool_whose_thread_could_not_be_started_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = DaemonThreads(1, "some")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="thread"):
            pool.submit(lambda: "never")
    calls: list[str] = []
    assert pool.submit(lambda: calls.append("next")).result(5) is None
    assert calls == ["next"]


def test_what_waits_fails_where_a_thread_that_hangs_cannot_be_replaced(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    pool, began = DaemonThreads(1, "some"), threading.Event()
    hanging = pool.submit(hang, began, gate)
    assert began.wait(5)
    with deadline_of(60) as deadline:
        waiting = pool.submit(lambda: "never")
    assert deadline.held
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        hanging.cancel()
    with pytest.raises(EnvFault, match="thread"):
        waiting.result(5)
    assert not deadline.held
    assert pool.submit(lambda: "next").result(5) == "next"


def test_what_waits_fails_where_a_call_that_waits_for_it_gets_no_further_thread(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    pool, began = DaemonThreads(1, "some"), threading.Event()

    def holds() -> str:
        began.set()
        gate.wait(5)
        with waiting_for_others():
            return "held"

    with deadline_of(60):
        holding = pool.submit(contextvars.copy_context().run, holds)
    assert began.wait(5)
    waiting = pool.submit(lambda: "never")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        gate.set()
        assert holding.result(5) == "held"
    with pytest.raises(EnvFault, match="thread"):
        waiting.result(5)


def test_what_waits_when_a_pool_is_closed_is_still_done(gate: threading.Event) -> None:
    pool = DaemonThreads(1, "some")
    pool.submit(gate.wait, 10)
    last = pool.submit(lambda: "done")
    pool.shutdown()
    gate.set()
    assert last.result(5) == "done"


def test_work_in_time_gives_its_result_or_error() -> None:
    def late() -> None:
        raise TimeoutError("the work's own")

    def leaving() -> None:
        raise SystemExit(7)

    assert in_time(5, lambda: 3) == 3
    with pytest.raises(TimeoutError, match="own"):
        in_time(5, late)
    with pytest.raises(EnvFault, match=r"SystemExit.*7"):
        in_time(5, leaving)


def test_work_that_takes_too_long_is_left_behind(pool: DaemonThreads, gate: threading.Event) -> None:
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        in_time(0.01, lambda: gate.wait(10), pool)
    assert pool.abandoned == 1
    assert in_time(5, lambda: threading.current_thread().name.startswith("some"), pool)
    assert not wait_until_idle(0.01)  # something still runs
    gate.set()
    until(lambda: wait_until_idle(5))


def test_a_thread_that_was_made_for_one_piece_of_work_ends_with_it() -> None:
    name = in_time(5, lambda: threading.current_thread().name)
    assert name.startswith("agentenv-in-time")
    until(lambda: not any(thread.name == name for thread in threading.enumerate()))


FORKED = """
import os, signal
from agentenv.core.concurrency.threads import DaemonThreads, wait_until_idle
pool = DaemonThreads(1, "some", replaces=False)
assert pool.submit(lambda: 1).result(10) == 1
child = os.fork()
if child == 0:
    signal.alarm(100)  # ends a child that hangs
    os._exit(0 if pool.submit(lambda: 2).result() == 2 and wait_until_idle(1.0) else 1)
print(os.waitpid(child, 0)[1])
"""


def test_a_pool_works_in_a_forked_process_too() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=600
    )
    assert ran.stdout.strip() == "0", ran.stderr
