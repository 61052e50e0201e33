"""Runs coroutines to their end or to the first error, which is raised unchanged and reported once."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Makes an ``asyncio.TaskGroup`` that raises the first error of its tasks instead of a group of errors.

    The tasks of one group do the same kind of work, so they fail for the same reason: the first error says what is wrong,
    and callers can catch it by its class.

    Raises:
        Exception: the first error that a task raised; the other tasks are cancelled.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as several:
        raise several.exceptions[0] from None


async def gather_all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs ``work`` concurrently and returns the results. The first error cancels the rest.

    Every coroutine begins before any of them continues after its first wait. So all slots of a deterministic batcher that
    they reserve at their beginning are reserved before the first batch.
    """
    async with task_group() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]


def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Does what ``asyncio.run`` does, without the message that asyncio logs after an interrupt.

    An exception that a signal handler raises inside a task ends the event loop. The task that awaited this one ends with the
    same error, which nobody retrieves: asyncio would log "Task exception was never retrieved" with a long traceback at some
    later moment, when the task is garbage-collected.

    Raises:
        BaseException: ``work`` raised it.
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
