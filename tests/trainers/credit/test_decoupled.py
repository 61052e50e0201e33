"""Several rewards of an episode, each compared by itself (GDPO): worked by hand, what has no name, and what is refused."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn, from_record, to_record
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.decoupled import decoupled, reward_parts, with_decoupled_deviation
from agentenv.trainers.credit.estimators import get_estimator

TASK = Task("t", "q")


def episode(*turns: Mapping[str, float], more: float = 0.0) -> Trajectory:
    """One token a turn; the reward is the sum of its parts and ``more``."""
    segments = [Segment(SegmentKind.POLICY, (1,), at, logprobs=(-1.0,)) for at in range(len(turns))]
    played = [Turn("a", reward=sum(parts.values()), reward_parts=parts) for parts in turns]
    total = sum(turn.reward for turn in played) + more
    return Trajectory(TASK, tuple(segments), tuple(played), total, EndReason.ANSWERED)


def credit(group: Sequence[Trajectory], **options: Any) -> list[list[float]]:
    return [values.tolist() for values in decoupled(group, epsilon=0.0, **options)]


def test_groups_that_differ_in_one_reward_and_in_two_have_other_credit() -> None:
    """Of two members the standardised ones are -+ 1 / sqrt 2 = .7071; where both rewards differ they add up to 1.4142."""
    one = [episode({"right": 0, "form": 1}), episode({"right": 1, "form": 1})]
    two = [episode({"right": 0, "form": 0}), episode({"right": 1, "form": 1})]
    added = get_estimator("group_relative", {"epsilon": 0.0})
    assert added(one)[1].tolist() == added(two)[1].tolist() == pytest.approx([0.7071], abs=1e-4)
    assert credit(one) == [pytest.approx([-0.7071], abs=1e-4), pytest.approx([0.7071], abs=1e-4)]
    assert credit(two) == [pytest.approx([-1.4142], abs=1e-4), pytest.approx([1.4142], abs=1e-4)]
    # Over the step: sqrt((2 * .5 + 2 * 2) / 3) = 1.2910, and .7071 / 1.2910 = .5477.
    first, second = with_decoupled_deviation([one, two], epsilon=0.0)
    assert credit(first, scale="batch") == [
        pytest.approx([-0.5477], abs=1e-4),
        pytest.approx([0.5477], abs=1e-4),
    ]
    assert credit(second, scale="batch") == [
        pytest.approx([-1.0954], abs=1e-4),
        pytest.approx([1.0954], abs=1e-4),
    ]


def test_a_weight_counts_after_the_normalisation_and_equal_sums_may_differ() -> None:
    """[1, 0, 0, 1] standardised is +-.8660; (1, 0) and (0, 1) have one sum, and with weights 1 and .5 other credit."""
    group = [episode({"right": r, "found": f}) for r, f in ((1, 0), (0, 1), (0, 1), (1, 0))]
    assert [played.reward for played in group] == [1, 1, 1, 1]
    found = credit(group, weights={"found": 0.5})
    assert found == [pytest.approx([sign * 0.4330], abs=1e-4) for sign in (1, -1, -1, 1)]


def test_rewards_of_all_turns_add_up_by_name_and_what_has_no_name_is_the_rest() -> None:
    played = episode({"found": 0.5}, {"outcome": 1.0, "found": 0.0}, more=-0.25)
    assert reward_parts(played) == {"found": 0.5, "outcome": 1.0, "rest": -0.25}
    assert reward_parts(from_record(to_record(played), TASK)) == reward_parts(played)


def test_without_names_it_is_group_relative() -> None:
    group = [Trajectory(TASK, episode({}).segments, (), r, EndReason.ANSWERED) for r in (1.0, 0.0, 0.5)]
    plain = get_estimator("group_relative")(group)
    assert [v.tolist() for v in decoupled(group)] == [v.tolist() for v in plain]
    (equal,) = with_decoupled_deviation([[episode({"right": 1})] * 3])
    assert [v.tolist() for v in decoupled(equal, scale="batch")] == [[0.0]] * 3


def test_what_it_cannot_know_is_one_sentence() -> None:
    group = [episode({"right": 1}), episode({"right": 0})]
    with pytest.raises(ConfigurationError, match="scale='batch'"):
        decoupled(group, scale="batch")
    with pytest.raises(ConfigurationError, match=r"\['rihgt'\].*'right'"):
        with_decoupled_deviation([group], weights={"rihgt": 2.0})
