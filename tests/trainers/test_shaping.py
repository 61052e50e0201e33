"""Penalties in the reward: DAPO's numbers, which episodes pay, and that nothing else changes."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason
from agentenv.trainers.shaping import overlong_penalty, shape_rewards

Turns = Callable[..., Trajectory]


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [(100, 0.0), (16384, 0.0), (17408, -0.25), (18432, -0.5), (20480, -1.0), (30000, -1.0)],
)
def test_overlong_episodes(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, limit=20480, buffer=4096) == pytest.approx(penalty)
    assert overlong_penalty(tokens, limit=20480, buffer=4096, factor=0.5) == pytest.approx(penalty / 2)
    assert overlong_penalty(tokens, limit=20480, buffer=0) == 0.0


def test_the_published_code_has_no_floor() -> None:
    assert overlong_penalty(24576, limit=20480, buffer=4096, floor=-float("inf")) == pytest.approx(-2.0)


def test_without_penalties_the_trajectories_are_themselves(turns: Turns) -> None:
    group = [turns([0.0, 1.0]), turns([0.0])]
    assert all(a is b for a, b in zip(shape_rewards(group, limit=8), group, strict=True))
    assert all(a is b for a, b in zip(shape_rewards(group, limit=8, overlong_buffer=1), group, strict=True))


def test_a_penalty_is_in_the_outcome_and_in_the_last_turn(turns: Turns) -> None:
    """Seven tokens of at most eight, a buffer of two: half way."""
    (shaped,) = shape_rewards([turns([0.25, 1.0])], limit=8, overlong_buffer=2)
    assert shaped.reward == pytest.approx(0.75)
    assert [turn.reward for turn in shaped.turns] == pytest.approx([0.25, 0.5])


def test_the_longest_row_counts(turns: Turns) -> None:
    whole = turns([0.0, 1.0])
    split = replace(whole, segments=tuple(replace(s, row=s.turn) for s in whole.segments))
    assert [part.stop - part.start for part in split.row_slices] == [5, 2]
    assert shape_rewards([split], limit=8, overlong_buffer=2)[0].reward == 1.0
    assert shape_rewards([split], limit=6, overlong_buffer=2)[0].reward == pytest.approx(0.5)


def test_silence_is_worse_than_a_wrong_answer(turns: Turns) -> None:
    ends = (EndReason.ANSWERED, EndReason.SUBMITTED, EndReason.TURN_LIMIT, EndReason.TOKEN_LIMIT)
    group = [turns([0.0], end_reason=end) for end in ends]
    assert [t.reward for t in shape_rewards(group, limit=9, answer_penalty=0.2)] == [0.0, 0.0, -0.2, -0.2]
