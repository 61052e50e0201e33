"""Small models and made-up episodes for the tests of this folder, as fixtures."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task
from agentenv.policies.fakes import random_model

Part = tuple[SegmentKind, Sequence[int]]


class TablePolicy(nn.Module):
    """A policy over two tokens with one row of logits for every history, in float64.

    The hidden state is the history itself, one-hot: the history 0, 1 has the number 0b101. Gradients can therefore be
    written down by hand: d log p(a | c) / d logit(b, c) = [a = b] - p(b | c).
    """

    def __init__(self, length: int, seed: int = 0) -> None:
        super().__init__()
        self.histories = 2 ** (length + 1)
        self.head = nn.Linear(self.histories, 2, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.copy_(
                torch.randn(2, self.histories, generator=torch.Generator().manual_seed(seed))
            )

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        numbers, number = [], torch.ones(len(input_ids), dtype=torch.long)
        for column in input_ids.T:
            number = (2 * number + column) % self.histories  # padding may run over
            numbers.append(number)
        hidden = nn.functional.one_hot(torch.stack(numbers, 1), self.histories).double()
        return SimpleNamespace(logits=self.head(hidden))

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def logprob(self, history: Sequence[int], token: int) -> Tensor:
        number = int("1" + "".join(map(str, history)), 2)
        return torch.log_softmax(self.head.weight[:, number], dim=0)[token]


def _episode(
    parts: Sequence[Part], reward: float = 0.0, *, logprobs: Sequence[float] = (), **changes: Any
) -> Trajectory:
    """An episode of ``parts``; ``logprobs`` are those of all policy tokens in order, 0 where none are given."""
    left = list(logprobs)
    segments = []
    for turn, (kind, ids) in enumerate(parts):
        mine: tuple[float, ...] = ()
        if kind is SegmentKind.POLICY:
            mine = tuple(left[: len(ids)]) if logprobs else (0.0,) * len(ids)
            del left[: len(ids)]
        segments.append(Segment(kind, tuple(ids), turn, logprobs=mine))
    base: dict[str, Any] = {
        "reward": reward,
        "end_reason": EndReason.ANSWERED,
        "segments": tuple(segments),
        "turns": (),
    }
    return Trajectory(task=Task("t", "q"), **(base | changes))


def _turns(
    rewards: Sequence[float],
    *,
    reward: float | None = None,
    keys: Sequence[str | None] = (),
    valid: Sequence[bool] = (),
    logprobs: Sequence[float] = (),
    **changes: Any,
) -> Trajectory:
    """An episode of real turns: two prompt tokens, then for each turn two sampled tokens and one observed one.

    The outcome is the sum of ``rewards`` unless ``reward`` says otherwise; ``logprobs`` is one number a turn, of its first
    token.
    """
    segments = [Segment(SegmentKind.PROMPT, (1, 2), 0)]
    turns = []
    for t, mine in enumerate(rewards):
        first = logprobs[t] if logprobs else 0.0
        segments.append(Segment(SegmentKind.POLICY, (3, 4), t, logprobs=(first, 0.0)))
        if t < len(rewards) - 1:
            segments.append(Segment(SegmentKind.ENV, (5,), t))
        key, good = keys[t] if keys else None, valid[t] if valid else True
        turns.append(Turn(f"action {t}", reward=mine, anchor_key=key, valid=good))
    base: dict[str, Any] = {
        "reward": sum(rewards) if reward is None else reward,
        "end_reason": EndReason.ANSWERED,
        "segments": tuple(segments),
        "turns": tuple(turns),
    }
    return Trajectory(task=Task("t", "q"), **(base | changes))


@pytest.fixture
def turns() -> Callable[..., Trajectory]:
    """Makes a trajectory of turns with rewards."""
    return _turns


@pytest.fixture
def table() -> Callable[..., TablePolicy]:
    """Makes a tabular policy over two tokens."""
    return TablePolicy


@pytest.fixture(scope="session")
def qwen() -> Callable[..., Any]:
    """Makes a random Qwen2 of 2 layers and width 32 over the ids of ``ByteTokenizer``."""
    return random_model


@pytest.fixture
def episode() -> Callable[..., Trajectory]:
    """Makes a trajectory of segments."""
    return _episode
