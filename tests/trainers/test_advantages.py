"""Credit: hand-derived standardised rewards, flat groups, what counts as a member of a group, names."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.errors import UnknownName
from agentenv.trainers.advantages import get_estimator, group_relative, is_flat, standardize

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
    assert is_flat(rewards)
    assert standardize(rewards).tolist() == [0.0] * len(rewards)


def test_a_small_difference_is_a_signal() -> None:
    assert not is_flat([0.0, 1e-6])
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


def test_an_unknown_estimator_names_the_nearest() -> None:
    assert get_estimator("group_relative") is group_relative
    with pytest.raises(UnknownName, match="Did you mean 'group_relative'"):
        get_estimator("group_relativ")
