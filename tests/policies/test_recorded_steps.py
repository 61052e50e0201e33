"""Recorded decoding steps, with a recorder of the tests: like a CUDA graph it reads and writes at fixed addresses.

The reference is the same policy without a recorder.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.policies.fakes import ByteTokenizer, random_model
from agentenv.policies.forward import RowCache
from agentenv.policies.hf import HFPolicy
from agentenv.policies.recorded_steps import REACH, RecordedSteps


class Tape:
    """Does recorded work again into one tensor, and counts what it recorded and played."""

    def __init__(self) -> None:
        self.recorded = self.played = 0

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.recorded += 1
        held = work()

        def replay() -> Tensor:
            self.played += 1
            return held.copy_(work())

        return replay


class Refuses:
    """A device on which the step waits for something."""

    calls = 0

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        type(self).calls += 1
        raise RuntimeError("operation not permitted when stream is capturing\nMore words")


def policy(recorder: Callable[[], Any] | None = None) -> HFPolicy:
    made = HFPolicy(random_model(257, layers=2, seed=0, context=1024, spread=0.2), ByteTokenizer())
    if recorder is not None:
        made.recorded = RecordedSteps(made._step, recorder)
    return made


def turns(made: HFPolicy, asked: Sequence[Sequence[tuple[Sequence[int], int, str]]]) -> list[Completion]:
    """What the policy gives for batches of prompt, tokens and name of the episode, one batch after the other."""

    async def batch(requests: Sequence[tuple[Sequence[int], int, str]]) -> list[Completion]:
        work = (
            made.generate(ids, Sampling(tokens, seed=len(ids) + place), episode=name)
            for place, (ids, tokens, name) in enumerate(requests)
        )
        return list(await asyncio.gather(*work))

    return [done for requests in asked for done in asyncio.run(batch(requests))]


def ids(count: int, start: int = 5) -> list[int]:
    return [(start + 7 * place) % 250 + 3 for place in range(count)]


# Rows of several lengths, of which more than half end early, so that the batch is cut down; across a multiple of REACH;
# then a second turn, an episode that is rewound, and one that is new.
ASKED = [
    [(ids(REACH - 6), 12, "a"), (ids(3), 2, "b"), (ids(9), 3, "c")],
    [(ids(REACH - 6), 12, "a"), (ids(2), 6, "b"), (ids(5, 8), 6, "d")],
]


def test_recorded_steps_sample_what_others_do() -> None:
    tapes: list[Tape] = []

    def tape() -> Tape:
        tapes.append(Tape())
        return tapes[-1]

    plain, recorded = turns(policy(), ASKED), turns(policy(tape), ASKED)
    for one, other in zip(plain, recorded, strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert one.finish is other.finish is FinishReason.LENGTH
    used = [(tape.recorded, tape.played) for tape in tapes if tape.recorded]
    # First batch, passes after the token of the prompt: 11, of which two are for all rows (lengths up to 252), and of those
    # for the row that is left four more below 256, then five beyond. The first of each shape is not recorded.
    assert used[0] == (3, 11 - 3)
    assert len(used) == 2  # one recorder for each batch


def test_a_step_that_cannot_be_recorded_is_taken_without_that(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = turns(policy(Refuses), ASKED)
    assert [one.ids for one in found] == [one.ids for one in turns(policy(), ASKED)]
    assert Refuses.calls == 1  # it is not tried again
    assert [record.getMessage() for record in caplog.records] == [
        "the steps of this model cannot be recorded as CUDA graphs, so that sampling is slower: "
        "operation not permitted when stream is capturing"
    ]


def test_a_failed_batch_leaves_nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy(Tape)
    assert made.recorded is not None

    def draw(*_: Any) -> Any:
        raise RuntimeError("no token")

    monkeypatch.setattr("agentenv.policies.hf.draw", draw)
    with pytest.raises(Exception, match="no token"):
        turns(made, ASKED)
    assert made.recorded._cache is None


def test_a_policy_on_the_processor_records_nothing() -> None:
    assert policy().recorded is None


def test_a_cache_that_is_shorter_than_a_multiple_is_read_to_its_end() -> None:
    """Of 40 slots a step at the third position reads all 40, and not 256."""
    seen: list[int] = []

    def take(cache: Any, ids: Tensor, positions: Tensor, reach: int) -> Tensor:
        seen.append(reach)
        return torch.zeros(1, 4)

    cache = RowCache(torch.zeros(1, 2, 1, 1, 40, 2))
    steps = RecordedSteps(take, Tape)
    for _ in range(3):
        steps(cache, torch.tensor([[1]]), torch.tensor([[2]]), 3)
    assert seen == [40, 40, 40, 40]  # taken, recorded and played, played
