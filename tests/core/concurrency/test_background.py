"""A loop in a thread of its own: results, deadlines, callers on several loops, callers that give up."""

import asyncio
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
