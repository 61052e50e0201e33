"""Deadlines: the time stands still while a call is held, and whoever watches is told once of each change."""

import asyncio
import inspect
import math
import time
from collections.abc import Coroutine
from typing import Any

from agentenv.core.concurrency.deadlines import (
    Deadline,
    bounded_by_call,
    deadline_of,
    ends_within,
    seconds_left,
    short_of_time,
    waiting_for_others,
    within,
)
from agentenv.errors import PolicyFault


def test_the_time_stands_still_while_any_hold_lasts() -> None:
    deadline = Deadline(60.0)
    first, second = deadline.hold(), deadline.hold()
    left = deadline.left()
    first.end()
    time.sleep(0.01)
    assert (deadline.held, deadline.left()) == (True, left)
    second.end()
    time.sleep(0.01)
    assert not deadline.held
    assert deadline.left() < left


def test_who_watches_is_told_when_the_time_stops_and_when_it_goes_on() -> None:
    around = Deadline(60.0)
    deadline = Deadline(60.0, around)
    seen: list[tuple[str, bool]] = []
    deadline.watch(lambda: seen.append(("own", deadline.held)))
    around.watch(lambda: seen.append(("around", around.held)))
    first, second = deadline.hold(), deadline.hold()
    assert seen == [("own", True), ("around", True)]
    first.end()
    first.end()
    assert len(seen) == 2
    second.end()
    assert seen[2:] == [("own", False), ("around", False)]


def test_without_a_deadline_there_is_no_end_of_time() -> None:
    assert (seconds_left(), short_of_time(), bounded_by_call(7.0)) == (math.inf, False, 7.0)


def test_what_a_policy_lets_last_takes_half_of_what_is_left_at_most() -> None:
    with deadline_of(60.0):
        assert bounded_by_call(7.0) == 7.0
        assert 29.0 < bounded_by_call(50.0) <= 30.0
        assert not short_of_time()
    with deadline_of(0.02):
        time.sleep(0.03)
        assert (bounded_by_call(7.0), short_of_time()) == (0.0, True)
    assert seconds_left() == math.inf


def test_whoever_waits_for_others_uses_none_of_its_time() -> None:
    with deadline_of(60.0) as deadline:
        with waiting_for_others():
            left = seconds_left()
            time.sleep(0.02)
            assert (deadline.held, seconds_left()) == (True, left)
        assert not deadline.held


def test_a_call_that_ends_in_time_is_told_from_a_late_one() -> None:
    async def ends(seconds: float) -> bool:
        with deadline_of(0.05) as deadline:
            call = asyncio.ensure_future(asyncio.sleep(seconds))
        try:
            return await ends_within(deadline, call)
        finally:
            call.cancel()

    assert asyncio.run(ends(0.0))
    assert not asyncio.run(ends(60.0))


def test_work_that_is_cancelled_before_it_begins_is_closed() -> None:
    """Otherwise Python warns, at any later time, of a coroutine that was never awaited."""

    async def work() -> None: ...

    async def end_loop(coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(within(60.0, coroutine, PolicyFault("the policy")))
        await asyncio.sleep(0)  # the task that awaits the coroutine is there and has not begun
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    coroutine = work()
    asyncio.run(end_loop(coroutine))
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
