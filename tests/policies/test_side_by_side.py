"""Parts of a computation at once: order, errors, threads, floating-point settings, and that results stay what they are."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from agentenv.core.types import Completion, Sampling
from agentenv.policies.decoding import Request, Row
from agentenv.policies.fakes import ByteTokenizer, random_model
from agentenv.policies.fused_decoder import fused_decoder
from agentenv.policies.hf import HFPolicy, _cuts
from agentenv.policies.side_by_side import parts_at_once, side_by_side


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_and_each_part_has_its_share_of_the_threads() -> None:
    def work(item: int) -> tuple[int, int, int]:
        time.sleep(0.02 * (3 - item % 3))
        return item, torch.get_num_threads(), threading.get_ident()

    found = list(side_by_side(work, range(9), 2))
    assert [item for item, *_ in found] == list(range(9))
    assert {share for _, share, _ in found} == {2}
    workers = {worker for *_, worker in found}
    assert len(workers) == 2
    assert threading.get_ident() not in workers
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("items", [[], [7]])
def test_what_is_alone_is_computed_where_it_is_asked_for(items: list[int]) -> None:
    found = list(side_by_side(lambda item: (item, threading.get_ident(), torch.get_num_threads()), items, 4))
    assert found == [(item, threading.get_ident(), 4) for item in items]


def test_items_are_taken_no_further_ahead_than_two_a_part() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(50):
            taken.append(item)
            yield item

    results = side_by_side(lambda item: item, items(), 2)
    assert next(results) == 0
    assert len(taken) == 5
    assert list(results) == list(range(1, 50))


def test_an_error_is_raised_when_what_runs_has_ended_and_the_threads_are_whole_again() -> None:
    running: set[int] = set()

    def work(item: int) -> int:
        running.add(item)
        time.sleep(0.05 * item)
        running.discard(item)
        if item == 1:
            raise ValueError("the second one fails")
        return item

    with pytest.raises(ValueError, match="second"):
        list(side_by_side(work, range(20), 4))
    assert not running
    assert torch.get_num_threads() == 4
    assert list(side_by_side(lambda item: item, range(5), 4)) == list(range(5))


def test_who_stops_asking_leaves_nothing_behind() -> None:
    results = side_by_side(lambda item: item, range(20), 2)
    next(results)
    results.close()
    assert torch.get_num_threads() == 4


def test_two_callers_at_once_are_given_the_same_parts_and_leave_the_threads_whole() -> None:
    """Otherwise what a policy samples would depend on whether a learner computes just then."""
    inside, counted = threading.Event(), threading.Event()

    def work(item: int) -> int:
        inside.set()
        assert counted.wait(20)
        return item

    thread = threading.Thread(target=lambda: list(side_by_side(work, range(4), 2)))
    thread.start()
    assert inside.wait(20)
    assert parts_at_once() == 4
    counted.set()
    assert list(side_by_side(lambda item: item, range(6), 2)) == list(range(6))
    thread.join(20)
    assert torch.get_num_threads() == 4


def test_a_thread_that_meets_torch_while_parts_compute_has_all_threads_for_good() -> None:
    """Otherwise a sampler that begins while a learner computes would cut its batches otherwise for the rest of the run."""
    inside, counted = threading.Event(), threading.Event()

    def work(item: int) -> int:
        inside.set()
        assert counted.wait(20)
        return item

    found: list[int] = []

    def late() -> None:
        assert inside.wait(20)
        torch.get_num_threads()
        counted.set()
        computing.join(60)
        found.append(parts_at_once())

    computing = threading.Thread(target=lambda: list(side_by_side(work, range(4), 2)))
    beginning = threading.Thread(target=late)
    computing.start()
    beginning.start()
    beginning.join(60)
    assert found == [4]


def test_a_part_is_not_cut_again() -> None:
    """Its own parts would wait for the threads that wait for them."""

    def work(item: int) -> list[int]:
        assert parts_at_once() == 1
        return list(side_by_side(lambda inner: item * 10 + inner, range(3), 2))

    found: list[list[int]] = []
    asking = threading.Thread(target=lambda: found.extend(side_by_side(work, range(4), 2)), daemon=True)
    asking.start()
    asking.join(60)
    assert found == [[item * 10 + inner for inner in range(3)] for item in range(4)]


FORKED = """
import os, signal, torch
from agentenv.policies.side_by_side import side_by_side
torch.set_num_threads(2)
work = lambda item: float(torch.ones(200, 200).matmul(torch.ones(200, 200))[0, 0]) + item
before = list(side_by_side(work, range(4), 2))
child = os.fork()
if child == 0:
    signal.alarm(100)  # ends a child that hangs
    os._exit(0 if list(side_by_side(work, range(4), 2)) == before else 1)
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_computes_in_threads_of_its_own() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=600
    )
    assert ran.stdout.strip() == "0", ran.stderr


@pytest.mark.parametrize("flushes", [False, True])
def test_denormals_are_what_they_are_for_the_caller(flushes: bool) -> None:
    list(side_by_side(lambda item: item, range(4), 2))  # the threads are there before the setting changes
    torch.set_flush_denormal(flushes)
    try:
        sums = list(side_by_side(lambda item: (torch.tensor([1e-40]) * item).item(), range(1, 5), 2))
    finally:
        torch.set_flush_denormal(False)
    assert [total == 0 for total in sums] == [flushes] * 4


def policy() -> HFPolicy:
    made = HFPolicy(random_model(257, seed=3, context=128, spread=0.2), ByteTokenizer())
    assert fused_decoder(made.model) is not None
    return made


def asked(turn: int = 0) -> list[Request]:
    """Groups of three with equal prompts, some of which end early."""
    prompts = [[65 + i // 3] * (3 + i // 3 % 5) + [70 + turn] for i in range(48)]
    return [Request(ids, Sampling(4 + i % 9, seed=i), f"{i}") for i, ids in enumerate(prompts)]


def test_a_batch_in_parts_samples_what_it_samples_on_one_thread() -> None:
    parts, alone = policy(), policy()
    assert len(_cuts(_rows(parts), parts_at_once(48 // 16))) == 3
    found = parts._batch(asked())
    torch.set_num_threads(1)
    wanted = alone._batch(asked())
    assert [one.ids for one in found] == [one.ids for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_the_next_turn_goes_on_from_what_parts_have_cached() -> None:
    parts, fresh = policy(), policy()
    parts._batch(asked())
    assert len(parts._cache.held) == 48
    longer = [Request([*r.ids, 80, 81], r.sampling, r.episode) for r in asked()]
    alone = [Request(r.ids, r.sampling, None) for r in longer]
    found, wanted = parts._batch(longer), fresh._batch(alone)
    assert [one.ids for one in found] == [one.ids for one in wanted]


def test_an_error_in_one_part_fails_the_batch_and_the_next_one_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, fresh = policy(), policy()
    decode = broken._decode

    def failing(slots: Tensor, rows: list[Row], logits: Tensor) -> None:
        if slots.storage_offset():
            raise RuntimeError("out of memory")
        decode(slots, rows, logits)

    with monkeypatch.context() as patched:
        patched.setattr(broken, "_decode", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            broken._batch(asked())
    found: list[Completion] = broken._batch(asked(1))
    assert [one.ids for one in found] == [one.ids for one in fresh._batch(asked(1))]


def test_seconds_of_forward_passes_are_no_more_than_what_the_clock_shows() -> None:
    made = policy()
    began = time.perf_counter()
    made._batch(asked())
    assert 0 < made.forward_seconds < time.perf_counter() - began


def test_parts_keep_neighbours_with_equal_prompts_together() -> None:
    rows = _rows(policy())
    for parts in (1, 2, 3, 4):
        cuts = _cuts(rows, parts)
        assert [row for cut in cuts for row in rows[cut]] == rows
        assert all(cut.start % 3 == 0 for cut in cuts)
    assert len(_cuts(rows[:3], 4)) == 1  # one prompt alone


def _rows(made: HFPolicy) -> list[Row]:
    seen: list[Row] = []
    original = made._decode
    made._decode = lambda slots, rows, logits: seen.extend(rows) or original(slots, rows, logits)  # type: ignore
    torch.set_num_threads(1)
    made._batch(asked())
    torch.set_num_threads(4)
    made._decode = original  # type: ignore[method-assign]
    made._cache.clear()
    return seen


def test_generation_of_many_episodes_at_once_ends() -> None:
    made = policy()

    async def play() -> list[Completion]:
        return await asyncio.gather(*(made.generate(r.ids, r.sampling, episode=r.episode) for r in asked()))

    assert len(asyncio.run(asyncio.wait_for(play(), 60))) == 48
