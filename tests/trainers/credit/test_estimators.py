"""Credit of whole trajectories: hand-derived scores, groups of zero variance, what counts as a member, names, options."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.trainers.credit.estimators import ESTIMATORS, get_estimator
from agentenv.trainers.credit.group_statistics import (
    BATCH_DEVIATION,
    has_zero_variance,
    on_all_tokens,
    standardize,
    with_batch_deviation,
)
from agentenv.trainers.credit.outcome import LOG_RATIOS, MEASURED, group_relative

PROMPT, POLICY, ENV = SegmentKind.PROMPT, SegmentKind.POLICY, SegmentKind.ENV
Episode = Callable[..., Trajectory]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        # mean 1/2, squared deviations 4 x 1/4, unbiased variance 1/3: 1/2 : sqrt(1/3) = sqrt(3)/2.
        ([1, 0, 0, 1], [0.75**0.5, -(0.75**0.5), -(0.75**0.5), 0.75**0.5]),
        # mean 1/4, squared deviations 9/16 + 3/16, unbiased variance 1/4: 3/4 : 1/2 and -1/4 : 1/2.
        ([1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        # two members: deviations +-d/2, unbiased deviation d/sqrt(2); the scale of the reward drops out.
        ([7, 3], [0.5**0.5, -(0.5**0.5)]),
    ],
)
def test_standardised_rewards(rewards: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(standardize(rewards, epsilon=0.0), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("rewards", "epsilon", "first"),
    [([1, 0, 0, 1], 1e-6, 0.866024), ([1, 0, 0, 1], 1e-4, 0.865875), ([1, 0, 0, 0], 1e-4, 1.4997)],
)
def test_the_epsilons_of_verl_and_trl(rewards: list[float], epsilon: float, first: float) -> None:
    # 1/2 : (sqrt(1/3) + 1e-6) = .8660239; + 1e-4 = .8658754; 3/4 : (1/2 + 1e-4) = 1.49970
    assert standardize(rewards, epsilon=epsilon)[0] == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize("rewards", [[], [1.0], [1, 1, 1, 1], [0.0, 0.0], [0.1 + 0.2, 0.3, 0.3], [1e-9, 0.0]])
def test_a_group_without_signal_is_exactly_zero(rewards: list[float]) -> None:
    """Also where rewards differ by float noise: divided by a tiny deviation it would become a signal."""
    assert has_zero_variance(rewards)
    assert standardize(rewards).tolist() == [0.0] * len(rewards)


def test_a_small_difference_is_a_signal() -> None:
    assert not has_zero_variance([0.0, 1e-6])
    assert standardize([0.0, 1e-6], epsilon=0.0)[1] == pytest.approx(0.5**0.5)


def test_every_token_of_an_episode_gets_its_score(episode: Episode) -> None:
    group = [
        episode([(PROMPT, (1, 2)), (POLICY, (3,)), (ENV, (4,)), (POLICY, (5,))], reward=1.0),
        episode([(PROMPT, (1, 2)), (POLICY, (3,))], reward=0.0),
    ]
    values = group_relative(group)
    assert [len(v) for v in values] == [5, 3]
    assert np.ptp(values[0]) == 0 == np.ptp(values[1])
    assert values[0][0] == -values[1][0] == pytest.approx(0.5**0.5, abs=1e-5)


def test_statistics_count_trajectories_and_never_rows(episode: Episode) -> None:
    """A broken prefix opens a row; the group's mean and deviation may not notice."""
    parts = [(PROMPT, (1, 2)), (POLICY, (3,)), (ENV, (4,)), (POLICY, (5,))]
    whole = [episode(parts, reward=reward) for reward in (1.0, 0.0, 0.0)]

    def split(trajectory: Trajectory) -> Trajectory:
        again = Segment(PROMPT, (1, 2, 9), 1, row=1)
        rows = [replace(segment, row=int(i > 2)) for i, segment in enumerate(trajectory.segments)]
        return replace(trajectory, segments=(*rows[:3], again, *rows[3:]))

    halves = [split(whole[0]), *whole[1:]]
    assert len(halves[0].row_slices) == 2
    scores = [[float(v[0]) for v in group_relative(group)] for group in (whole, halves)]
    assert scores[0] == scores[1]
    assert len(group_relative(halves)[0]) == 8


def test_the_deviation_of_a_batch_is_over_all_its_groups(episode: Episode) -> None:
    """Rewards 1, 0 and 0, 0: the mean is 1/4, and the variance (9/16 + 3/16) / 3 = 1/4."""
    groups = [
        [episode([(POLICY, (1,))], reward=reward) for reward in rewards] for rewards in ((1, 0), (0, 0))
    ]
    noted = with_batch_deviation(groups)
    assert [[t.info[BATCH_DEVIATION] for t in group] for group in noted] == [[0.5, 0.5], [0.5, 0.5]]
    assert [t.info[BATCH_DEVIATION] for t in with_batch_deviation(groups[1:])[0]] == [0.0, 0.0]


def test_an_unknown_estimator_names_the_nearest() -> None:
    assert get_estimator("group_relative") is group_relative
    with pytest.raises(UnknownName, match="'group_relative'"):
        get_estimator("group_relativ")


def scores(name: str, episode: Episode, rewards: Sequence[float], **options: Any) -> list[float]:
    """The score of each trajectory of a group with these outcomes; equal on all of its tokens."""
    group = [episode([(PROMPT, (1, 2)), (POLICY, (3,))], reward=reward) for reward in rewards]
    values = get_estimator(name, options)(group)
    assert all(len(v) == 3 and v.dtype == np.float64 and np.ptp(v) == 0 for v in values)
    return [float(v[0]) for v in values]


def test_the_baseline_of_least_variance_weighs_what_was_unlikely(episode: Episode) -> None:
    """g^2 of one token of p = 1/2 is 1/4, of two of p = 3/4 together 1/8; so b = 1/4 / (1/4 + 1/8) = 2/3."""
    group = [
        episode([(POLICY, (1,))], 1.0, logprobs=[np.log(0.5)]),
        episode([(POLICY, (1, 2))], 0.0, logprobs=[np.log(0.75)] * 2),
    ]
    first, second = get_estimator("optimal_baseline")(group)
    assert [first[0], *second] == pytest.approx([1 / 3, -2 / 3, -2 / 3], abs=1e-6)
    first, second = get_estimator("optimal_baseline", {"norm": "length"})(group)  # g^2 1 and 2: b = 1/3
    assert [first[0], *second] == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_the_published_baseline_weighs_by_importance_and_gradient(episode: Episode) -> None:
    """W 1 and 2, g 1 and 1, R 1 and 0: b = 1 / (1 + 4) = .2. The population deviation of 1 and 0 is .5."""
    measures = ([1.0, 1.0], [2.0, 1.0])
    group = [
        episode([(POLICY, (1,))], reward, info={MEASURED: mine})
        for reward, mine in zip((1.0, 0.0), measures, strict=True)
    ]
    first, second = get_estimator("optimal_baseline", {"norm": "gradient"})(group)
    assert [first[0], second[0]] == pytest.approx([0.8, -0.2])
    first, second = get_estimator("optimal_baseline", {"norm": "gradient", "scale": "std"})(group)
    assert [first[0], second[0]] == pytest.approx([1.6, -0.4])
    bare = [replace(member, info={}) for member in group]
    with pytest.raises(ConfigurationError, match=bare[0].id):
        get_estimator("optimal_baseline", {"norm": "gradient"})(bare)


def test_what_was_recorded_in_another_context_is_no_probability_here(episode: Episode) -> None:
    """A token of another context counts 1, whatever stands there for p: g^2 is 1 and 1/4, so b = 1 / (1 + 1/4) = .8."""
    there, here = (episode([(POLICY, (1,))], r, logprobs=[np.log(0.5)]) for r in (1.0, 0.0))
    segments = tuple(replace(segment, context_mismatch=True) for segment in there.segments)
    first, second = get_estimator("optimal_baseline")([replace(there, segments=segments), here])
    assert [first[0], second[0]] == pytest.approx([0.2, -0.8])


@pytest.mark.parametrize(
    ("name", "options", "rewards", "expected"),
    [
        ("group_relative", {}, [1, 0, 0, 1], [0.866024, -0.866024, -0.866024, 0.866024]),
        ("group_relative", {"epsilon": 1e-4}, [1, 0, 0, 0], [1.4997, -0.4999, -0.4999, -0.4999]),
        ("group_relative", {}, [1], [0]),
        ("group_relative", {"singleton": "reward"}, [1], [1]),
        ("group_relative", {"singleton": "reward"}, [1, 1], [0, 0]),
        # mean 1/4
        ("dr_grpo", {}, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ("dr_grpo", {}, [5], [0]),
        # others of the first: mean 0; of the second: 1/3
        ("leave_one_out", {}, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        ("leave_one_out", {}, [2, 5], [-3, 3]),
        ("leave_one_out", {}, [5], [0]),
        # median 0, deviations 1, 0, 0, 0, 1: MAD 0, so the floor .5 divides
        ("median_centered", {}, [1, 0, 0, 0, 1], [2, 0, 0, 0, 2]),
        ("median_centered", {"floor": 0.0}, [1, 0, 0], [1, 0, 0]),  # neither floor nor epsilon: unscaled
        ("median_centered", {"floor": 0.0, "epsilon": 1e-3}, [1, 0, 0], [1000, 0, 0]),  # as published
        # median 3, deviations 3, 2, 0, 1, 6: sorted 0 1 2 3 6, MAD 2
        ("median_centered", {}, [0, 1, 3, 4, 9], [-1.5, -1, 0, 0.5, 3]),
        ("median_centered", {"epsilon": 1.0}, [0, 1, 3, 4, 9], [-1, -2 / 3, 0, 1 / 3, 2]),
        # an even number, after a fault: the lower median 1; deviations 1, 0, 1, 2, lower median 1
        ("median_centered", {}, [0, 1, 2, 3], [-1, 0, 1, 2]),
        ("median_centered", {}, [7], [0]),
        ("median_centered", {}, [1, 1, 1], [0, 0, 0]),
    ],
)
def test_scores_by_hand(
    episode: Episode, name: str, options: dict[str, Any], rewards: list[float], expected: list[float]
) -> None:
    assert scores(name, episode, rewards, **options) == pytest.approx(
        expected, abs=1e-6 if options != {"epsilon": 1e-4} else 5e-5
    )


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_a_group_of_one_gives_zero_unless_the_method_says_otherwise(name: str, turns: Episode) -> None:
    (values,) = get_estimator(name)([turns([0.0, 1.0], keys=["a", "b"])])
    assert len(values) == 7
    # R3L defines its baseline as 0 there: alpha = 3 times the reward.
    assert values.tolist() == [3.0 if name == "pivotal" else 0.0] * 7


@pytest.mark.parametrize("rewards", [[0.0, 1.0], [0.1, 0.6]])  # three times .7 have another mean in floats
@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_equal_trajectories_give_zero_and_no_trajectory_nothing(
    name: str, rewards: list[float], turns: Episode
) -> None:
    group = [turns(rewards, keys=["a", "b"]) for _ in range(3)]
    for values in get_estimator(name)(group):
        assert values.tolist() == [0.0] * 7
    assert get_estimator(name)([]) == []


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_no_estimator_counts_rows(name: str, turns: Episode) -> None:
    """The second turn of the first trajectory stands in a row of its own; nothing changes on its sampled tokens."""
    whole = [turns([0.0, 1.0]), turns([0.5, 0.0]), turns([0.25])]
    again = Segment(PROMPT, (1, 2, 9), 1, row=1)
    parts = [replace(segment, row=segment.turn) for segment in whole[0].segments]
    split = [replace(whole[0], segments=(*parts[:3], again, *parts[3:])), *whole[1:]]
    assert len(split[0].row_slices) == 2
    for one, two, first, second in zip(
        whole, split, get_estimator(name)(whole), get_estimator(name)(split), strict=True
    ):
        assert first[one.loss_mask].tolist() == second[two.loss_mask].tolist()


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"epsilo": 1}, UnknownName, "'group_relative'.*'epsilo'.*'epsilon'"),
        ({"epsilon": "small"}, ConfigurationError, "'epsilon'.*'small'"),
        ({"singleton": "raw"}, ConfigurationError, "'singleton'.*'zero'.*'reward'.*'raw'"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named) as caught:
        get_estimator("group_relative", options)
    assert "\n" not in str(caught.value)


def test_an_estimator_without_options_says_so() -> None:
    with pytest.raises(UnknownName, match=r"'leave_one_out'.*'gamma'"):
        get_estimator("leave_one_out", {"gamma": 1})


def test_credit_of_whole_numbers_can_take_fractions() -> None:
    trajectory = Trajectory(
        Task("t", "q"),
        (Segment(PROMPT, (1,), 0), Segment(POLICY, (2, 3), 0, (0.0, 0.0))),
        (),
        1,
        EndReason.ANSWERED,
    )
    (credit,) = on_all_tokens([trajectory], [1])
    credit += 0.25
    assert credit.tolist() == [1.25, 1.25, 1.25]


def test_reinforce_pp_standardises_over_the_tokens_of_all_episodes(episode: Episode) -> None:
    """One token of 1 and three of 0: mean 1/4, variance 3/16, so 3/4 and -1/4 over sqrt(3)/4."""
    group = [
        episode([(PROMPT, (0,)), (POLICY, (1,))], 1.0),
        episode([(PROMPT, (0,)), (POLICY, (1, 2, 3))], 0.0),
    ]
    first, second = get_estimator("reinforce_pp")(group)
    assert first[1] == pytest.approx(3**0.5)
    assert second[1:] == pytest.approx([-(3**-0.5)] * 3)
    assert not any(values.any() for values in get_estimator("reinforce_pp")([group[0], group[0]]))


def test_reinforce_pp_takes_the_penalty_that_is_still_to_come_from_the_return(episode: Episode) -> None:
    """Log-ratios .2, 0, -.4 sum to -.2, -.4, -.4 from each token on; half of that from 0 is .1, .2, .2.

    With the 1 of the other episode, whose ratio is 0: mean .375, variance (.625^2 + .275^2 + 2 .175^2) / 4 = .131875.
    """
    group = [
        episode([(PROMPT, (0,)), (POLICY, (1,))], 1.0),
        episode([(PROMPT, (0,)), (POLICY, (1, 2, 3))], 0.0),
    ]
    with pytest.raises(ConfigurationError, match="kl_coefficient=0"):
        get_estimator("reinforce_pp", {"kl_coefficient": 0.5})(group)
    ratios = (np.zeros(2), np.array([0.0, 0.2, 0.0, -0.4]))
    group = [replace(t, info={LOG_RATIOS: own}) for t, own in zip(group, ratios, strict=True)]
    first, second = get_estimator("reinforce_pp", {"kl_coefficient": 0.5})(group)
    scale = 0.131875**0.5
    assert first[1] == pytest.approx(0.625 / scale)
    assert second[1:] == pytest.approx([-0.275 / scale, -0.175 / scale, -0.175 / scale])
