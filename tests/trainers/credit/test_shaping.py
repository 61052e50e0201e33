"""Penalties in the reward and the novelty bonus: published numbers, which episodes pay, and that nothing else changes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import EndReason
from agentenv.trainers.credit.shaping import (
    novelty_bonus,
    overlong_penalty,
    relative_length_penalties,
    shape_rewards,
)

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
    whole = turns([0.25, 0.5, 0.75, 1.0])
    tokens = len(whole.ids)
    # Half way again, in the last of four turns.
    (late,) = shape_rewards([whole], limit=tokens + 1, overlong_buffer=2)
    assert [turn.reward for turn in late.turns] == pytest.approx([0.25, 0.5, 0.75, 0.5])


def test_the_longest_row_counts(turns: Turns) -> None:
    whole = turns([0.0, 1.0])
    split = replace(whole, segments=tuple(replace(s, row=s.turn) for s in whole.segments))
    assert [part.stop - part.start for part in split.row_slices] == [5, 2]
    assert shape_rewards([split], limit=8, overlong_buffer=2)[0].reward == 1.0
    assert shape_rewards([split], limit=6, overlong_buffer=2)[0].reward == pytest.approx(0.5)


def test_the_size_of_the_length_penalty_is_an_option(turns: Turns) -> None:
    """Seven tokens of at most eight, a buffer of two: half of .4."""
    (shaped,) = shape_rewards([turns([0.25, 1.0])], limit=8, overlong_buffer=2, overlong_factor=0.4)
    assert shaped.reward == pytest.approx(1.25 - 0.2)


def test_an_episode_without_tokens_pays_nothing_for_its_length(turns: Turns) -> None:
    empty = replace(turns([1.0]), segments=())
    assert shape_rewards([empty], limit=1, overlong_buffer=1)[0].reward == empty.reward
    assert shape_rewards([empty], limit=1, overlong_buffer=1)[0] is empty


def test_an_answer_is_free_of_charge_by_default(turns: Turns) -> None:
    silent = turns([0.0], end_reason=EndReason.TURN_LIMIT)
    assert shape_rewards([silent], limit=9)[0] is silent


def test_silence_is_worse_than_a_wrong_answer(turns: Turns) -> None:
    ends = (EndReason.ANSWERED, EndReason.SUBMITTED, EndReason.TURN_LIMIT, EndReason.TOKEN_LIMIT)
    group = [turns([0.0], end_reason=end) for end in ends]
    assert [t.reward for t in shape_rewards(group, limit=9, answer_penalty=0.2)] == [0.0, 0.0, -0.2, -0.2]


def said(episode: Turns, *logprobs: float, off_context: bool = False) -> Trajectory:
    """A prompt token, sampled tokens with these log-probs, and an observed token."""
    made = episode(
        [
            (SegmentKind.PROMPT, (1,)),
            (SegmentKind.POLICY, (2,) * len(logprobs)),
            (SegmentKind.ENV, (3,)),
        ],
        logprobs=logprobs,
    )
    if off_context:
        segments = tuple(
            replace(s, context_mismatch=True) if s.kind is SegmentKind.POLICY else s for s in made.segments
        )
        made = replace(made, segments=segments)
    return made


@pytest.mark.parametrize(
    ("strength", "cap", "expected"),
    [
        # s = -1.2 against a mean of -1: eta = exp(-.2) = .81873; 2.5 (1 - eta) = .45317, at most .5 * .5.
        (2.5, 0.5, 0.75),
        # 1 (1 - eta) = .18127, below 1 * .5.
        (1.0, 1.0, 0.68127),
        (0.0, 0.5, 0.5),
    ],
)
def test_the_novelty_bonus(episode: Turns, strength: float, cap: float, expected: float) -> None:
    group = [said(episode, -1.0, -1.4), said(episode, -0.8)]
    credit = [np.full(4, 0.5), np.full(3, 0.5)]
    unlikely, likely = novelty_bonus(group, credit, [1.0, 1.0], strength=strength, cap=cap)
    np.testing.assert_allclose(unlikely, [expected] * 4, atol=1e-5)
    np.testing.assert_allclose(likely, [0.5] * 3, atol=1e-12)  # eta above 1: unchanged


def test_novelty_leaves_errors_alone(episode: Turns) -> None:
    group = [said(episode, -2.0), said(episode, -1.0)]
    credit = [np.array([-1.0, 0.0, 0.5]), np.full(3, -0.5)]
    first, second = novelty_bonus(group, credit, [1.0, 0.0], strength=2.5)
    np.testing.assert_allclose(first, [-1.0, 0.0, 0.75])
    assert second.tolist() == [-0.5] * 3


def test_novelty_is_for_correct_episodes(episode: Turns) -> None:
    """Outcomes 1, .8 and 0 have a mean of .6: the second is above average and wrong, and moves the mean of s alone."""
    group = [said(episode, -1.2), said(episode, -1.2), said(episode, -0.6)]
    credit = [np.full(3, 0.4), np.full(3, 0.2), np.full(3, -0.6)]
    bonus = novelty_bonus(group, credit, [1.0, 0.8, 0.0], strength=2.5)
    # s = -1.2 against a mean of -1: 2.5 (1 - exp(-.2)) = .45317, at most half of the credit.
    np.testing.assert_allclose([values[0] for values in bonus], [0.6, 0.2, -0.6], atol=1e-12)
    bonus = novelty_bonus(group, credit, [1.0, 0.8, 0.0], strength=2.5, success=0.8)
    np.testing.assert_allclose([values[0] for values in bonus], [0.6, 0.3, -0.6], atol=1e-12)


def test_tokens_of_another_context_are_in_no_novelty(episode: Turns) -> None:
    """A spliced episode has no log-probs of its own context: it gets no bonus and moves no mean."""
    group = [said(episode, -9.0, off_context=True), said(episode, -1.2), said(episode, -0.8)]
    bonus = novelty_bonus(group, [np.full(3, 0.5)] * 3, [1.0] * 3, strength=1.0, cap=1.0)
    np.testing.assert_allclose([values[0] for values in bonus], [0.5, 0.68127, 0.5], atol=1e-5)


def test_long_successes_lose_what_they_exceed_the_others_by() -> None:
    """Successes of 10, 20 and 30 tokens: mean 20, deviation 10; a half success of 60 loses .4, no more than it has."""
    lengths, rewards = (10, 20, 30, 60, 60, 90), (1.0, 0.9, 1.0, 0.5, 0.3, 0.0)
    found = relative_length_penalties(lengths, rewards, rate=0.1)
    assert found == pytest.approx([0.0, 0.0, 0.1, 0.4, 0.3, 0.0])
    assert relative_length_penalties((100, 100, 400), (1.0, 1.0, 0.2), rate=0.1) == pytest.approx(
        [0.0, 0.0, 0.2]
    )
    assert relative_length_penalties((100, 100, 2000), (1.0, 1.0, 2.0), rate=9.0)[2] == 0.9  # never more


def test_one_success_or_no_rate_gives_no_penalty(turns: Turns) -> None:
    assert relative_length_penalties((10, 90), (1.0, 0.4), rate=0.1) == [0.0, 0.0]
    assert relative_length_penalties((10, 90), (1.0, 1.0), rate=0.0) == [0.0, 0.0]
    group = [turns([1.0]), turns([0.0, 0.0, 1.0])]
    assert [t.response_tokens for t in group] == [2, 6]
    shaped = shape_rewards(group, limit=100, relative_length=0.1)
    # mean 4, deviation sqrt(8): z of the longer one is 2 / sqrt(8)
    assert [t.reward for t in shaped] == pytest.approx([1.0, 1.0 - 0.2 / 8**0.5])
    assert shaped[1].turns[-1].reward == pytest.approx(1.0 - 0.2 / 8**0.5)


def test_every_penalty_is_reckoned_from_the_reward_of_the_environment(turns: Turns) -> None:
    """An overlong success stays one for the penalty on length: 1 - .5 - .2 / sqrt(8).

    Taken first, the half that it loses for being overlong would leave one success, and no penalty on length.
    """
    group = [turns([1.0]), turns([0.0, 0.0, 1.0])]
    limit = len(group[1].ids) + 2  # two tokens into a buffer of four
    shaped = shape_rewards(group, limit=limit, overlong_buffer=4, relative_length=0.1)
    assert [t.reward for t in shaped] == pytest.approx([1.0, 0.5 - 0.2 / 8**0.5])
    (late,) = shape_rewards([turns([0.0, 0.0, 0.5])], limit=limit, overlong_buffer=4)
    after = relative_length_penalties([2, 6], [1.0, late.reward], rate=0.1)
    assert after == [0.0, 0.0]


def test_penalties_add_up(turns: Turns) -> None:
    """The bound of the penalty on length is the reward, and another penalty may lead below 0."""
    silent = [replace(one, end_reason=EndReason.TURN_LIMIT) for one in (turns([1.0]), turns([0.0, 0.0, 1.0]))]
    shaped = shape_rewards(silent, limit=100, relative_length=9.0, answer_penalty=0.2)
    assert [t.reward for t in shaped] == pytest.approx([0.8, 1.0 - 0.9 - 0.2])
