"""Coroutines that run to their end or to the first error, which is raised as it is and reported once."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """An ``asyncio.TaskGroup`` that raises the first error of its tasks instead of a group of errors.

    What runs at once here is of one kind, so that the errors are too: the first says what is wrong, and callers can
    catch it by its class.

    Raises:
        Exception: the first that a task raised; the other tasks are cancelled.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as several:
        raise several.exceptions[0] from None


async def gather_all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of ``work``, which runs concurrently; the first error ends the rest.

    Every coroutine begins before any of them goes on after its first wait, so that slots of a deterministic batcher that
    they take at their beginning are all taken in time.
    """
    async with task_group() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]


def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` without the message that asyncio logs where an interrupt ends it.

    What a signal's handler raises amid a task ends the event loop. The task that waits for that one then ends with the same
    error, which nobody takes from it any more: asyncio logs "Task exception was never retrieved" with a long traceback, at
    whatever moment the task is collected as garbage.

    Raises:
        BaseException: whatever ``work`` raises.
    """

    async def caught() -> tuple[T, None] | tuple[None, BaseException]:
        try:
            return await work, None
        except (KeyboardInterrupt, SystemExit) as error:
            return None, error

    result, interrupt = asyncio.run(caught())
    if interrupt is not None:
        raise interrupt
    return cast("T", result)
