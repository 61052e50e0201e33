"""A loop in a thread of its own: results, deadlines, callers on several loops, callers that give up."""

import asyncio
import gc
import os
import resource
import threading
from collections.abc import Iterator

import pytest

from agentenv.core.concurrency.background import BackgroundLoop


@pytest.fixture
def background() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop()
    yield loop
    loop.close()


async def thread() -> str:
    return threading.current_thread().name


def test_callers_without_a_loop_and_on_loops_in_turn_share_one_thread(background: BackgroundLoop) -> None:
    assert background.run(thread()) == "background-loop"
    assert {asyncio.run(background.join(thread(), 5)) for _ in range(2)} == {"background-loop"}


def test_work_past_its_deadline_is_cancelled(background: BackgroundLoop) -> None:
    cancelled = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError):
        background.run(endless(), 0.01)
    assert cancelled.is_set()

    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await background.join(endless())

    cancelled.clear()
    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    assert cancelled.wait(10)


def test_a_task_that_ends_the_process_ends_no_other_work(background: BackgroundLoop) -> None:
    async def leave() -> None:
        raise SystemExit(1)

    waiting = background.submit(asyncio.sleep(0.05, "done"))
    left = background.submit(leave())
    assert waiting.result(10) == "done"
    with pytest.raises(SystemExit):
        left.result(10)


def test_a_caller_knows_whether_it_runs_on_the_loop(background: BackgroundLoop) -> None:
    async def here() -> bool:
        return background.is_current()

    assert background.run(here())
    assert not background.is_current()
    assert not asyncio.run(here())


def test_what_is_submitted_after_closing_starts_a_new_thread(background: BackgroundLoop) -> None:
    assert background.run(thread()) == "background-loop"
    background.close()
    assert background.run(thread(), 5) == "background-loop"


def test_closing_ends_what_runs_and_the_thread(background: BackgroundLoop) -> None:
    ended = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def begin() -> "asyncio.Task[None]":
        task = asyncio.create_task(endless())
        await asyncio.sleep(0)
        return task

    background.run(begin())
    background.close()
    assert ended.is_set()
    assert "background-loop" not in {each.name for each in threading.enumerate()}


def test_what_was_submitted_before_closing_begins_and_is_cancelled(background: BackgroundLoop) -> None:
    """A task that is cancelled before it begins leaves coroutines that are never awaited, of which Python warns."""
    told: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def work() -> None:
        told.append("began")
        try:
            await asyncio.sleep(60)
        finally:
            told.append("ended")

    async def begin() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            loop.call_soon(lambda: tasks.append(loop.create_task(work())))
        threading.Thread(target=background.close).start()
        threading.Event().wait(0.05)  # the request to close is there before the tasks are made

    background.run(begin())
    background._thread.join(10)  # type: ignore[union-attr]
    assert told == ["began"] * 3 + ["ended"] * 3


# Python warns of its own loop that it could make only in part.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function BaseEventLoop")
def test_a_loop_that_the_system_does_not_give_is_an_error_of_the_caller(background: BackgroundLoop) -> None:
    """A process that has as many files open as it may have gets no loop; the caller must not wait for it for ever."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.open(os.devnull, os.O_RDONLY))  # the lowest number that no open file has
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, most[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as failed:
            background.run(thread(), 5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    del failed
    gc.collect()
    assert background.run(thread(), 5) == "background-loop"  # once there is room again
