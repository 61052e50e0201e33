"""Training on the turns of highest entropy: entropies by hand, ties, spliced turns, and the estimator built on them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.credit.step_selection import high_entropy_tokens, turn_entropies, without_turns


def played(*turns: tuple[float, ...], reward: float = 0.0, mismatch: int = -1) -> Trajectory:
    """An episode whose tokens had these probabilities, one tuple a turn, each followed by one token of observation."""
    segments = [Segment(SegmentKind.PROMPT, (7,), 0)]
    for index, chances in enumerate(turns):
        logprobs = tuple(math.log(chance) for chance in chances)
        segments += [
            Segment(
                SegmentKind.POLICY,
                (1,) * len(chances),
                index,
                logprobs=logprobs,
                context_mismatch=index == mismatch,
            ),
            Segment(SegmentKind.ENV, (9,), index),
        ]
    acts = tuple(Turn("a") for _ in turns)
    return Trajectory(Task("t", "q"), tuple(segments), acts, reward, EndReason.ANSWERED)


def test_the_entropy_of_a_turn_is_the_mean_surprise_of_its_own_tokens() -> None:
    # -(ln 1/2 + ln 1/8) / 2 = (1 + 3) / 2 ln 2; the second turn was sampled elsewhere
    found = turn_entropies(played((0.5, 0.125), (0.25,), (1.0,), mismatch=1))
    assert found == pytest.approx({0: 2 * math.log(2), 2: 0.0}, abs=1e-6)


def test_the_share_is_of_the_turns_of_the_group_and_a_tie_is_kept() -> None:
    # entropies in bits: 2, 1 and 1, 0
    group = [played((0.25,), (0.5,)), played((0.5,), (1.0,))]
    # tokens: prompt 0, policy 0, env 0, policy 1, env 1
    first, both, second = [True, True, True, False, False], [True] * 5, [True, True, True, False, False]
    for share, expected in ((0.25, [first, [False] * 5]), (0.5, [both, second]), (1.0, [both, both])):
        found = high_entropy_tokens(group, share)
        assert [mask.tolist() for mask in found] == expected


def test_a_turn_of_unknown_entropy_is_kept_and_does_not_count() -> None:
    group = [played((0.9,), (0.25,), (0.5,), mismatch=0)]
    (mask,) = high_entropy_tokens(group, 0.5)
    assert mask.tolist() == [True, True, True, True, True, False, False]
    (mask,) = high_entropy_tokens([played((0.9,), mismatch=0)], 0.5)
    assert mask.all()


def test_the_estimator_gives_the_others_nothing() -> None:
    group = [played((0.25,), (0.5,), reward=1.0), played((0.5,), (1.0,))]
    plain = get_estimator("group_relative")(group)
    chosen = get_estimator("high_entropy", {"share": 0.25})(group)
    np.testing.assert_array_equal(chosen[0], plain[0] * [1, 1, 1, 0, 0])
    np.testing.assert_array_equal(chosen[1], np.zeros(5))
    everything = get_estimator("high_entropy", {"share": 1.0, "estimator": "leave_one_out"})(group)
    for mine, other in zip(everything, get_estimator("leave_one_out")(group), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("share", [0.0, 1.01, -1.0])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ConfigurationError, match="within"):
        get_estimator("high_entropy", {"share": share})([played((0.5,))])


def test_the_estimator_below_must_exist() -> None:
    with pytest.raises(UnknownName, match="group_relativ"):
        get_estimator("high_entropy", {"estimator": "group_relativ"})([played((0.5,))])


def test_turns_are_left_out_by_the_segments() -> None:
    """Two tokens a turn in three turns; a turn without tokens does not shift it."""
    t = played(*[(0.5, 0.5)] * 3)
    assert [int(without_turns(t, range(p)).loss_mask.sum()) for p in (0, 1, 2, 3, 9)] == [6, 4, 2, 0, 0]
    assert without_turns(t, range(0)) == t
    silent = replace(
        t, segments=tuple(s for s in t.segments if s.kind is not SegmentKind.POLICY or s.turn != 0)
    )
    assert int(without_turns(silent, range(1)).loss_mask.sum()) == 4
    assert without_turns(t, range(2)).ids.tolist() == t.ids.tolist()
