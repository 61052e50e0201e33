"""Batching: what shares a batch by arrival and under the deterministic batcher, and that nobody waits for ever.

Covered: composition by arrival, accumulation, lingering, max_batch, ranks, order and determinism under the deterministic
batcher under shuffled sleeps, episodes that end, raise or are cancelled, slots, failures and deadlines of a batch, several
loops in turn, copies for other processes.
"""

import asyncio
import pickle
import random
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from agentenv.core.concurrency.batching import Batcher, DeterministicBatcher, _Queue, _Waiter, episode_index
from agentenv.errors import ConfigurationError

T = TypeVar("T")


def play(work: Coroutine[Any, Any, T]) -> T:
    """Runs ``work`` in a fresh loop; a deadlock fails after 5 s instead of hanging the suite."""

    async def limited() -> T:
        return await asyncio.wait_for(work, 5)

    return asyncio.run(limited())


class Doubler:
    """Doubles numbers, keeps the batches that it saw, and sleeps ``seconds`` in each."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[list[int]] = []
        self.seconds = seconds

    def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        time.sleep(self.seconds)
        return [2 * item for item in items]


def test_requests_of_one_turn_of_the_loop_share_a_batch() -> None:
    double = Doubler()

    async def main() -> list[int]:
        batcher = Batcher(double)
        return await asyncio.gather(*(batcher.submit(n) for n in range(5)))

    assert play(main()) == [0, 2, 4, 6, 8]
    assert double.batches == [[0, 1, 2, 3, 4]]


def test_requests_accumulate_while_a_batch_runs() -> None:
    gate = threading.Event()
    batches: list[list[int]] = []

    def run(items: list[int]) -> list[int]:
        batches.append(items)
        gate.wait(5)
        return items

    async def main() -> None:
        batcher = Batcher(run)
        tasks = [asyncio.create_task(batcher.submit(0))]
        while not batches:
            await asyncio.sleep(0.001)
        for n in (1, 2, 3):
            tasks.append(asyncio.create_task(batcher.submit(n)))
            await asyncio.sleep(0.002)
        gate.set()
        assert await asyncio.gather(*tasks) == [0, 1, 2, 3]

    play(main())
    assert batches == [[0], [1, 2, 3]]


def crowd_of_two_halves(linger: float) -> list[int]:
    """Sizes of the batches of four callers, two of whom come while the first two are served, and ask again at once."""
    double = Doubler(0.02)

    async def main() -> None:
        batcher = Batcher(double, max_wait=linger)

        async def caller(asks: int, late: bool) -> None:
            while late and not double.batches:
                await asyncio.sleep(0.001)
            for n in range(asks):
                await batcher.submit(n)

        await asyncio.gather(*(caller(6 - late, bool(late)) for late in (0, 0, 1, 1)))

    play(main())
    return [len(batch) for batch in double.batches]


def test_lingering_brings_the_two_halves_of_a_crowd_together() -> None:
    assert crowd_of_two_halves(linger=200.0) == [2, 4, 4, 4, 4, 4]
    assert sum(crowd_of_two_halves(linger=0.0)) == 22


def test_a_crowd_that_was_answered_all_at_once_is_waited_for_too() -> None:
    double = Doubler(0.02)

    async def main() -> None:
        batcher = Batcher(double, max_wait=50.0)

        async def caller(place: int) -> None:
            for n in range(5):
                await asyncio.sleep(0.002 * place)  # nobody comes back in the same turn of the loop
                await batcher.submit(n)

        await asyncio.gather(*map(caller, range(4)))

    play(main())
    assert [len(batch) for batch in double.batches] == [1, 4, 4, 4, 4, 3]


def test_lingering_in_vain_ends_and_is_not_repeated_at_once() -> None:
    double = Doubler(0.01)

    async def main() -> list[int]:
        batcher = Batcher(double, max_wait=1.0)
        first = asyncio.ensure_future(batcher.submit(0))
        while not double.batches:
            await asyncio.sleep(0.001)
        second = asyncio.ensure_future(batcher.submit(1))  # waits while 0 runs, which does not come back
        return [await first, await second, await batcher.submit(2)]

    assert play(main()) == [0, 2, 4]
    assert double.batches == [[0], [1], [2]]


def test_max_batch_cuts_a_batch_by_arrival() -> None:
    double = Doubler()

    async def main() -> list[int]:
        batcher = Batcher(double, max_batch=2)
        return await asyncio.gather(*(batcher.submit(n) for n in range(5)))

    assert play(main()) == [0, 2, 4, 6, 8]
    assert double.batches == [[0, 1], [2, 3], [4]]


def test_one_batch_of_a_batcher_runs_at_a_time() -> None:
    running, most = 0, 0

    def run(items: list[int]) -> list[int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.002)
        running -= 1
        return items

    async def main() -> None:
        batcher = Batcher(run, max_batch=1)
        await asyncio.gather(*(batcher.submit(n) for n in range(6)))

    play(main())
    assert most == 1


def test_a_failing_batch_fails_all_its_waiters_and_the_next_batch_runs() -> None:
    def run(items: list[int]) -> list[int]:
        if 1 in items:
            raise ZeroDivisionError("boom")
        return items

    async def main() -> None:
        batcher = Batcher(run)
        answers = await asyncio.gather(*(batcher.submit(n) for n in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [ZeroDivisionError] * 3
        assert await batcher.submit(7) == 7

    play(main())


class Panic(BaseException):
    """What a library in Rust raises, which is no ``Exception``."""


@pytest.mark.parametrize("raised", [Panic("boom"), SystemExit("boom"), KeyboardInterrupt("boom")])
def test_a_batch_that_raises_what_is_no_exception_fails_its_waiters_and_is_not_repeated(
    raised: BaseException,
) -> None:
    calls = []

    def run(items: list[int]) -> list[int]:
        calls.append(items)
        raise raised

    async def main() -> None:
        batcher, deterministic_batcher = Batcher(run), DeterministicBatcher()

        async def episode(index: int) -> int:
            with deterministic_batcher.episode(index):
                return await batcher.submit(index)

        for asked in ([batcher.submit(n) for n in range(2)], [episode(n) for n in range(2)]):
            waiting = asyncio.gather(*asked, return_exceptions=True)
            answers = await asyncio.wait_for(waiting, 10)
            assert [type(answer) for answer in answers] == [RuntimeError] * 2
            assert "boom" in str(answers[0])
        assert calls == [[0, 1], [0, 1]]

    play(main())


def test_a_batch_with_too_few_results_is_an_error() -> None:
    async def main() -> None:
        batcher = Batcher[int, int](lambda items: items[1:])
        with pytest.raises(RuntimeError, match=r"\b2\b.*\b1\b"):
            await asyncio.gather(batcher.submit(1), batcher.submit(2))

    play(main())


def test_a_cancelled_waiter_leaves_the_rest_of_its_batch_alone() -> None:
    double = Doubler(seconds=0.05)

    async def main() -> None:
        batcher = Batcher(double)
        tasks = [asyncio.create_task(batcher.submit(n)) for n in range(3)]
        await asyncio.sleep(0.01)  # the batch is in the thread by now
        tasks[1].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert answers[0] == 0
        assert isinstance(answers[1], asyncio.CancelledError)
        assert answers[2] == 4

    play(main())


def test_a_waiter_cancelled_before_its_batch_is_left_out() -> None:
    double = Doubler()

    async def main() -> None:
        batcher = Batcher(double)
        tasks = [asyncio.create_task(batcher.submit(n)) for n in range(3)]
        await asyncio.sleep(0)  # all three have asked, no batch is formed
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    play(main())
    assert double.batches == [[1, 2]]


def test_a_late_batch_times_out_and_the_batcher_recovers() -> None:
    release = threading.Event()

    def run(items: list[int]) -> list[int]:
        if 0 in items:
            release.wait(60)
        return items

    async def main() -> None:
        batcher = Batcher(run, timeout_s=0.05)
        with pytest.raises(TimeoutError):
            await batcher.submit(0)
        with pytest.raises(TimeoutError):  # the thread is still taken
            await batcher.submit(1)
        release.set()
        batcher._timeout_s = 60.0  # what succeeds may take its time
        assert await batcher.submit(2) == 2

    play(main())


def test_one_batcher_serves_several_loops_in_turn() -> None:
    double = Doubler()
    batcher = Batcher(double)
    deterministic_batcher = DeterministicBatcher()

    async def episode(index: int) -> int:
        with deterministic_batcher.episode(index):
            return await batcher.submit(index)

    async def main() -> list[int]:
        return [await batcher.submit(9), *await asyncio.gather(episode(1), episode(2))]

    assert play(main()) == [18, 2, 4]
    assert play(main()) == [18, 2, 4]
    assert double.batches == [[9], [1, 2]] * 2


def test_a_loop_that_dies_in_mid_batch_does_not_spoil_the_batcher() -> None:
    double = Doubler(seconds=0.05)
    batcher = Batcher(double)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batcher.submit(1), 0.01)

    play(give_up())
    assert play(batcher.submit(2)) == 4


def rollout(seed: int, *, max_batch: int | None = None) -> tuple[list[list[int]], list[list[int]]]:
    """Batches of search and of generation over 6 episodes of different lengths with shuffled sleeps."""
    search, generate = Doubler(), Doubler()
    rng = random.Random(seed)

    async def main() -> None:
        searcher = Batcher(search, rank=0)
        generator = Batcher(generate, rank=1, max_batch=max_batch)
        deterministic_batcher = DeterministicBatcher()

        async def episode(index: int) -> None:
            with deterministic_batcher.episode(index):
                for turn in range(1 + index % 3):
                    await asyncio.sleep(rng.random() / 200)
                    await generator.submit(100 * turn + index)
                    await asyncio.sleep(rng.random() / 200)
                    if (index + turn) % 2:
                        await searcher.submit(100 * turn + index)

        order = list(range(6))
        rng.shuffle(order)
        await asyncio.gather(*(episode(index) for index in order))

    play(main())
    return search.batches, generate.batches


def test_lockstep_forms_the_same_batches_under_shuffled_sleeps() -> None:
    # Turns: episodes 0 and 3 have one, 1 and 4 two, 2 and 5 three. A search follows generation where
    # index + turn is odd, and goes first because its rank is lower.
    search = [[1, 3, 5], [102, 104], [205]]
    generate = [[0, 1, 2, 3, 4, 5], [101, 102, 104, 105], [202, 205]]
    for seed in range(8):
        assert rollout(seed) == (search, generate)


def test_no_round_begins_while_somebody_prepares_its_episodes() -> None:
    double = Doubler()

    async def main() -> None:
        batcher, deterministic_batcher = Batcher(double), DeterministicBatcher()

        async def episode(index: int) -> None:
            with deterministic_batcher.episode(index):
                await batcher.submit(index)

        async def prepared(index: int) -> None:
            ready = deterministic_batcher.hold()
            await asyncio.sleep(0.02 * index)
            ready()
            ready()  # a second time is nothing
            await asyncio.gather(episode(index), episode(index + 10))

        async def none() -> None:
            ready = deterministic_batcher.hold()
            await asyncio.sleep(0.08)
            ready()

        await asyncio.gather(prepared(1), none(), prepared(3))
        await episode(5)

    play(main())
    assert double.batches == [[1, 3, 11, 13], [5]]


def test_lockstep_cuts_a_round_into_runs_of_max_batch() -> None:
    for seed in range(4):
        search, generate = rollout(seed, max_batch=4)
        assert generate == [[0, 1, 2, 3], [4, 5], [101, 102, 104, 105], [202, 205]]
        assert search == [[1, 3, 5], [102, 104], [205]]


def test_lockstep_prefers_the_lower_rank_then_the_older_batcher() -> None:
    names: list[str] = []

    def recorder(name: str) -> Batcher[int, int]:
        rank = {"policy": 1}.get(name, 0)

        def run(items: list[int]) -> list[int]:
            names.append(name)
            return items

        return Batcher(run, rank=rank)

    async def main() -> None:
        deterministic_batcher = DeterministicBatcher()
        batchers = [recorder(name) for name in ("policy", "first", "second")]

        async def episode(index: int) -> None:
            with deterministic_batcher.episode(index):
                await batchers[index].submit(index)

        await asyncio.gather(*(episode(index) for index in range(3)))

    play(main())
    assert names == ["first", "second", "policy"]


@pytest.mark.parametrize("end", ["return", "raise", "cancel"])
def test_an_episode_that_ends_in_any_way_lets_the_others_go_on(end: str) -> None:
    double = Doubler()

    async def main() -> None:
        batcher, deterministic_batcher = Batcher(double), DeterministicBatcher()

        async def goes_on(index: int) -> int:
            with deterministic_batcher.episode(index):
                return await batcher.submit(index)

        async def ends() -> None:
            with deterministic_batcher.episode(9):
                await asyncio.sleep(0.01)
                if end == "raise":
                    raise ZeroDivisionError
                if end == "cancel":
                    await asyncio.sleep(60)

        task = asyncio.create_task(ends())
        others = asyncio.gather(goes_on(0), goes_on(1))
        await asyncio.sleep(0.02)
        task.cancel()
        assert list(await others) == [0, 2]
        await asyncio.gather(task, return_exceptions=True)

    play(main())
    assert double.batches == [[0, 1]]


def test_an_episode_cancelled_while_it_waits_is_left_out_of_the_batch() -> None:
    double = Doubler()

    async def main() -> None:
        batcher, deterministic_batcher = Batcher(double), DeterministicBatcher()

        async def episode(index: int, seconds: float) -> int:
            with deterministic_batcher.episode(index):
                await asyncio.sleep(seconds)
                return await batcher.submit(index)

        tasks = [
            asyncio.create_task(episode(index, seconds)) for index, seconds in ((0, 0), (1, 0), (2, 0.03))
        ]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert (answers[0], answers[2]) == (0, 4)

    play(main())
    assert double.batches == [[0, 2]]


def test_an_episode_that_stops_waiting_may_ask_again() -> None:
    double = Doubler()

    async def main() -> None:
        batcher, deterministic_batcher = Batcher(double), DeterministicBatcher()

        async def impatient() -> int:
            with deterministic_batcher.episode(0):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(batcher.submit(100), 0.01)
                return await batcher.submit(0)

        async def late() -> int:
            with deterministic_batcher.episode(1):
                await asyncio.sleep(0.03)
                return await batcher.submit(1)

        assert list(await asyncio.gather(impatient(), late())) == [0, 2]

    play(main())
    assert double.batches == [[0, 1]]


def test_lockstep_survives_a_failing_and_a_hanging_batch() -> None:
    release = threading.Event()

    def hang(items: list[int]) -> list[int]:
        release.wait(60)
        return items

    async def main() -> None:
        broken = Batcher[int, int](lambda items: [1 // 0 for _ in items])
        hanging, double, deterministic_batcher = (
            Batcher(hang, timeout_s=0.05),
            Batcher(Doubler(), rank=1),
            DeterministicBatcher(),
        )

        async def episode(index: int) -> int:
            with deterministic_batcher.episode(index):
                with pytest.raises(ZeroDivisionError):
                    await broken.submit(index)
                with pytest.raises(TimeoutError):
                    await hanging.submit(index)
                return await double.submit(index)

        assert await asyncio.gather(*(episode(index) for index in range(3))) == [0, 2, 4]
        release.set()

    play(main())


def test_lanes_run_more_episodes_than_are_live() -> None:
    double = Doubler()

    async def main() -> None:
        batcher, deterministic_batcher = Batcher(double), DeterministicBatcher()

        async def slot(number: int) -> None:
            with deterministic_batcher.episode(number):
                for index in range(number, 5, 2):
                    episode_index.set(index)
                    await batcher.submit(index)

        await asyncio.gather(slot(1), slot(0))

    play(main())
    assert double.batches == [[0, 1], [2, 3], [4]]


def test_episode_index_is_set_inside_and_put_back_after() -> None:
    async def main() -> None:
        deterministic_batcher = DeterministicBatcher()
        with deterministic_batcher.episode(3):
            assert episode_index.get() == 3
        assert episode_index.get() == 0

    play(main())


def test_an_index_that_is_live_is_refused() -> None:
    async def main() -> None:
        deterministic_batcher = DeterministicBatcher()
        with (
            deterministic_batcher.episode(3),
            pytest.raises(ConfigurationError, match=r"\b3\b"),
            deterministic_batcher.episode(3),
        ):
            pass

    play(main())


def test_an_episode_that_awaits_two_batchers_at_once_is_refused() -> None:
    async def main() -> None:
        batcher, deterministic_batcher = Batcher(Doubler()), DeterministicBatcher()
        with deterministic_batcher.episode(0):
            answers = await asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True)
        assert answers[0] == 2
        assert isinstance(answers[1], RuntimeError)

    play(main())


def test_a_task_that_outlives_its_episode_is_served_by_arrival() -> None:
    async def main() -> None:
        batcher, deterministic_batcher = Batcher(Doubler()), DeterministicBatcher()

        async def straggler() -> int:
            await asyncio.sleep(0.01)
            return await batcher.submit(4)

        with deterministic_batcher.episode(0):
            task = asyncio.create_task(straggler())
        assert await task == 8

    play(main())


def stall(items: list[int]) -> list[int]:
    time.sleep(0.3)
    return items


def test_a_copy_for_another_process_has_the_same_settings() -> None:
    """A rollout actor of a cluster is sent its batchers."""
    batcher = Batcher(stall, rank=3, max_batch=2, timeout_s=0.05, max_wait=0.5)
    twin: Batcher[int, int] = pickle.loads(pickle.dumps(batcher))
    assert (twin.order[0], twin.max_batch, twin.max_wait) == (3, 2, 0.5)
    with pytest.raises(TimeoutError):
        play(twin.submit(1))


def test_without_a_wait_a_caller_that_comes_back_does_not_hold_up_the_next_batch() -> None:
    """Three ask, one of them asks again: it is answered alone, and the count of the last batch binds nobody."""
    double = Doubler(0.02)

    async def main() -> None:
        batcher = Batcher(double)
        await asyncio.gather(*(batcher.submit(n) for n in range(3)))
        assert await batcher.submit(7) == 14

    play(main())
    assert double.batches == [[0, 1, 2], [7]]


def test_with_a_bound_no_more_are_waited_for_than_a_batch_takes() -> None:
    double = Doubler(0.3)

    async def main() -> float:
        batcher = Batcher(double, max_batch=2, max_wait=30.0)
        await asyncio.gather(*(batcher.submit(n) for n in range(4)))
        return (await asyncio.gather(batcher.submit(8), batcher.submit(9)))[0]

    assert play(main()) == 16
    assert double.batches == [[0, 1], [2, 3], [8, 9]]


def test_who_stays_away_is_not_waited_for_in_the_next_eight_batches() -> None:
    async def main() -> list[int]:
        batcher = Batcher(Doubler(), max_wait=1.0)
        queue = _Queue[int, int](last_batch_size=2, batch_s=0.01, ended=time.monotonic())
        queue.waiters = [_Waiter(0, asyncio.get_running_loop().create_future(), 0)]
        left = []
        for _ in range(9):
            await batcher._wait_for_more(queue)
            left.append(queue.skip_waits)
        return left

    assert play(main()) == [8, 7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("waiting", "ended_ago", "max_wait"), [(2, 0.0, 1.0), (1, 9.0, 1.0), (1, 0.0, 0.0)], ids=str
)
def test_nobody_is_waited_for_where_all_are_there_or_it_is_too_late_or_waits_are_off(
    waiting: int, ended_ago: float, max_wait: float
) -> None:
    async def main() -> int:
        batcher = Batcher(Doubler(), max_wait=max_wait)
        queue = _Queue[int, int](last_batch_size=2, batch_s=3.0, ended=time.monotonic() - ended_ago)
        loop = asyncio.get_running_loop()
        queue.waiters = [_Waiter(n, loop.create_future(), n) for n in range(waiting)]
        await batcher._wait_for_more(queue)
        return queue.skip_waits

    assert play(main()) == 0


def test_an_exception_among_the_results_reaches_its_own_waiter_alone() -> None:
    async def answered(batcher: Batcher[int, int], item: int) -> int | str:
        try:
            return await batcher.submit(item)
        except ValueError as error:
            return str(error)

    async def main() -> list[int | str]:
        batcher: Batcher[int, int] = Batcher(lambda items: [ValueError("no") if i == 1 else i for i in items])
        return await asyncio.gather(*(answered(batcher, i) for i in range(3)))

    assert asyncio.run(main()) == [0, "no", 2]
