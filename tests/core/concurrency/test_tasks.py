"""Coroutines at once: results in order, and the first error alone, which ends the rest."""

import asyncio
import gc

import pytest

from agentenv.core.concurrency.tasks import gather_all, run_to_completion, task_group


async def answer(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def refuse(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


def test_results_come_in_the_order_of_the_work() -> None:
    async def work() -> list[int]:
        return await gather_all(answer(number) for number in range(3))

    assert asyncio.run(work()) == [0, 1, 2]


def test_the_first_error_is_raised_as_it_is_and_the_others_are_cancelled() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def work() -> None:
        await gather_all([wait(), refuse(KeyError("first"))])

    with pytest.raises(KeyError, match="first") as caught:
        asyncio.run(work())
    assert caught.value.__suppress_context__
    assert ended == [True]


def test_an_error_of_the_block_itself_is_raised_as_it_is() -> None:
    async def work() -> None:
        async with task_group() as group:
            group.create_task(asyncio.sleep(60))
            raise KeyError("block")

    with pytest.raises(KeyError, match="block"):
        asyncio.run(work())


def test_cancelling_the_caller_is_no_error_of_the_tasks() -> None:
    async def work() -> None:
        await asyncio.wait_for(gather_all([asyncio.sleep(60)]), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(work())


@pytest.mark.parametrize("nested", [False, True])
def test_an_interrupt_amid_a_task_is_raised_and_not_logged(
    nested: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def interrupted() -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt("now")

    async def several() -> None:
        await gather_all([interrupted(), asyncio.sleep(60)])

    with pytest.raises(KeyboardInterrupt, match="now"):
        run_to_completion(several() if nested else interrupted())
    gc.collect()
    assert not caplog.records


def test_a_result_and_an_error_come_through() -> None:
    async def doubled(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number // (number != 3)

    assert run_to_completion(doubled(4)) == 8
    with pytest.raises(ZeroDivisionError):
        run_to_completion(doubled(3))
