"""Coroutines that run at once, where the first error ends the others and is raised as it is."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

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
