"""Credit from a shared past by hand: pivots and both amplifications, siblings of one state, trees by depth and leaves."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.credit.outcome import leave_one_out
from agentenv.trainers.credit.tree import shared_means

Turns = Callable[..., Trajectory]


def by_turn(name: str, group: Sequence[Trajectory], **options: Any) -> list[list[float]]:
    """The score of each turn of each trajectory."""
    found = get_estimator(name, options)(group)
    return [
        [float(values[t.turn_index == turn][-1]) for turn in range(len(t.turns))]
        for t, values in zip(group, found, strict=True)
    ]


@pytest.mark.parametrize(
    ("rewards", "options", "expected"),
    [
        # b = .375: s = .625 .125 -.375 -.375; paper: positive ones times 3
        ([1.0, 0.5, 0.0, 0.0], {}, [1.875, 0.375, -0.375, -0.375]),
        ([1.0, 0.5, 0.0, 0.0], {"amplify": "repo"}, [1.0, 0.375, -0.375, -0.375]),
        ([1.0, 0.5, 0.0, 0.0], {"alpha": 1.0}, [0.625, 0.125, -0.375, -0.375]),
        # an all-success group: nothing, or a constant push
        ([1.0, 1.0], {}, [0.0, 0.0]),
        ([1.0, 1.0], {"amplify": "repo"}, [1.0, 1.0]),
        ([2.0, 0.0], {"amplify": "repo"}, [1.0, -1.0]),
        # a group of one has b = 0
        ([0.5], {}, [1.5]),
        ([0.5], {"amplify": "repo"}, [1.5]),
        ([1.0], {"amplify": "repo"}, [1.0]),
        # log((e + 1)/2) = .620115
        ([1.0, 0.0], {"baseline": "soft", "alpha": 1.0}, [0.379885, -0.620115]),
        # 2 log((e^.5 + 1)/2) = .561860
        ([1.0, 0.0], {"baseline": "soft", "alpha": 1.0, "temperature": 2.0}, [0.438140, -0.561860]),
    ],
)
def test_amplified_scores(
    turns: Turns, rewards: list[float], options: dict[str, Any], expected: list[float]
) -> None:
    found = by_turn("pivotal", [turns([reward]) for reward in rewards], **options)
    assert [mine[0] for mine in found] == pytest.approx(expected, abs=1e-6)


def test_only_the_suffix_from_the_pivot_counts(turns: Turns) -> None:
    """A failure of three turns, retried from turn 1 with success, and a failure that was not retried."""
    base = turns([0.0, 0.0, 0.0], id="base")
    retry = turns([0.0, 1.0], id="retry", parent_id="base", fork_turn=1)
    alone = turns([0.0, 0.0], id="alone")
    found = by_turn("pivotal", [base, retry, alone])
    # b = 1/3
    third = 1 / 3
    assert found[0] == pytest.approx([0.0, -third, -third])
    assert found[1] == pytest.approx([0.0, 2.0])
    assert found[2] == pytest.approx([-third, -third])
    # the observation before the pivot belongs to the turn before it, the prompt to the first
    values = get_estimator("pivotal")([base, retry])[0]
    assert values[:5].tolist() == [0.0] * 5
    assert (values[5:] == -0.5).all()


def test_without_pivotal_credit_the_turns_before_the_pivot_count_as_well(turns: Turns) -> None:
    """The ablation of R3L: every turn has the score of its trajectory, before the pivot too."""
    base = turns([0.0, 0.0, 0.0], id="base")
    retry = turns([0.0, 1.0], id="retry", parent_id="base", fork_turn=1)
    # b = 1/2: the failure has -1/2 and the success 3 * 1/2
    assert by_turn("pivotal", [base, retry]) == [[0.0, -0.5, -0.5], [0.0, 1.5]]
    assert by_turn("pivotal", [base, retry], from_pivot=False) == [[-0.5, -0.5, -0.5], [1.5, 1.5]]
    # a guided retry in a group of its own: b = 0
    assert by_turn("pivotal", [retry]) == [[0.0, 3.0]]
    assert by_turn("pivotal", [retry], from_pivot=False) == [[3.0, 3.0]]


def test_a_retry_from_the_start_and_two_retries(turns: Turns) -> None:
    base = turns([0.0, 0.0, 0.0], id="base")
    whole = turns([1.0], id="whole", parent_id="base", fork_turn=0)
    late = turns([0.0, 0.0, 1.0], id="late", parent_id="base", fork_turn=2)
    assert by_turn("pivotal", [base, whole])[0] == pytest.approx([-0.5] * 3)
    # the earliest pivot decides for the base
    assert by_turn("pivotal", [base, whole, late])[0] == pytest.approx([-2 / 3] * 3)
    assert by_turn("pivotal", [base, late])[0] == pytest.approx([0.0, 0.0, -0.5])


@pytest.fixture
def forked(turns: Turns) -> list[Trajectory]:
    """Two independent episodes a and b; c was forked from a before its second turn, d from c before its third."""
    return [
        turns([0.0, 0.0, 4.0], id="a"),
        turns([0.0, 2.0], id="b"),
        turns([0.0, 0.0, 8.0], id="c", parent_id="a", fork_turn=1),
        turns([0.0, 0.0, 0.0], id="d", parent_id="c", fork_turn=2),
    ]


def test_siblings_of_one_state(forked: list[Trajectory]) -> None:
    # Third turns behind c: 8 and 0, mean 4; second turns behind a's first: 4 (a) and 4 (c), mean 4; first turns: 4 and 2.
    # First: a 4 - 2, b 2 - 4. Second: a 4 - 4, c 4 - 4. Third: c 8 - 0, d 0 - 8; a has no sibling there and takes those of
    # its second turn: 4 - 4. b has none in its second and takes those of its first: 2 - 4.
    expected = [[2.0, 0.0, 0.0], [-2.0, -2.0], [0.0, 0.0, 8.0], [0.0, 0.0, -8.0]]
    assert by_turn("sibling", forked, weighting="none") == expected
    # 4 trajectories; a first turn is one of 2, a second of 2 times 2, c's and d's third of 2 times 2 times 2
    weighted = [[4.0, 0.0, 0.0], [-4.0, -4.0], [0.0, 0.0, 4.0], [0.0, 0.0, -4.0]]
    assert by_turn("sibling", forked) == weighted


def test_siblings_without_forks_are_leave_one_out(turns: Turns) -> None:
    group = [turns([0.0, 3.0]), turns([1.0]), turns([0.0, 0.0, 2.5])]
    for mine, plain in zip(get_estimator("sibling")(group), leave_one_out(group), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=0, atol=1e-12)


def test_a_fork_whose_parent_was_lost_keeps_its_place(turns: Turns) -> None:
    """The parent was a fault: its two forks still share its first turn, which the first of them trains."""
    group = [
        turns([0.0, 1.0], id="x", parent_id="gone", fork_turn=1),
        turns([0.0, 0.0], id="y", parent_id="gone", fork_turn=1),
        turns([2.0], id="z"),
    ]
    assert by_turn("sibling", group, weighting="none") == [[-1.5, 1.0], [0.0, -1.0], [1.5]]


def test_equal_actions_that_were_sampled_twice_are_two_siblings(turns: Turns) -> None:
    group = [turns([3.0], id=name) for name in "ab"] + [turns([0.0], id="c")]
    assert by_turn("sibling", group) == [[1.5], [1.5], [-3.0]]


def test_a_tree_by_depth(forked: list[Trajectory]) -> None:
    # Depth 0: a's turn holds the leaves 4 8 0, mean 4; b's 2: deviation sqrt 2, +-.7071.
    # Depth 1: a 4, c (8 + 0)/2 = 4, b 2: mean 10/3, deviation 1.154701: .577350 .577350 -1.154701.
    # Depth 2: 4 8 0: mean 4, deviation 4: 0 1 -1. What c and d share with a, and d with c, is trained there.
    half, third = 0.5**0.5, 1 / 3**0.5
    expected = [[half, third, 0.0], [-half, -2 * third], [0.0, third, 1.0], [0.0, 0.0, -1.0]]
    for mine, wanted in zip(by_turn("tree", forked), expected, strict=True):
        assert mine == pytest.approx(wanted, abs=1e-6)


def test_a_tree_by_leaves(forked: list[Trajectory]) -> None:
    """The shared turn is trained once with the mean of its leaves."""
    # outcomes 4 2 8 0: mean 3.5, squared deviations .25 2.25 20.25 12.25 = 35, deviation 3.415650
    a, b, c, d = (np.array([4.0, 2.0, 8.0, 0.0]) - 3.5) / (35 / 3) ** 0.5
    expected = [[(a + c + d) / 3, a, a], [b, b], [0.0, (c + d) / 2, c], [0.0, 0.0, d]]
    for mine, wanted in zip(by_turn("tree", forked, normalise="leaves"), expected, strict=True):
        assert mine == pytest.approx(wanted, abs=1e-6)


def test_a_tree_weighted_by_the_policy(turns: Turns) -> None:
    # behind a's first turn: log-probs log 3 and 0, so weights 3/4 and 1/4 of 4 and 0: 3. The other root: 1.
    log3 = float(np.log(3.0))
    group = [
        turns([0.0, 4.0], id="a", logprobs=[0.0, log3]),
        turns([0.0, 0.0], id="c", logprobs=[0.0, 0.0], parent_id="a", fork_turn=1),
        turns([1.0], id="b"),
    ]
    leaves = {"normalise": "leaves", "fusion": "softmax"}
    # Of 4 0 1: mean 5/3, squared deviations 49 + 25 + 4 ninths = 78/9, halved 39/9.
    deviation = (13 / 3) ** 0.5
    found = by_turn("tree", group, **leaves)
    assert found[0][0] == pytest.approx((3 - 5 / 3) / deviation, abs=1e-6)
    assert found[1][0] == 0.0
    # twice the temperature: weights sqrt 3 and 1
    warm = by_turn("tree", group, **leaves, temperature=2.0)
    assert warm[0][0] == pytest.approx((4 * 3**0.5 / (1 + 3**0.5) - 5 / 3) / deviation, abs=1e-6)
    assert by_turn("tree", group, fusion="softmax")[0][0] == pytest.approx(0.5**0.5, abs=1e-6)


def test_a_turn_weighs_what_it_alone_was_written_with(turns: Turns) -> None:
    """The first turns differ in their log-probs and the second ones do not: behind a's first turn the mean of 4 and 0."""
    group = [
        turns([0.0, 4.0], id="a", logprobs=[-1.0, -2.0]),
        turns([0.0, 0.0], id="c", logprobs=[-7.0, -2.0], parent_id="a", fork_turn=1),
        turns([1.0], id="b"),
    ]
    found = by_turn("tree", group, normalise="leaves", fusion="softmax")
    assert found[0][0] == pytest.approx((2 - 5 / 3) / (13 / 3) ** 0.5, abs=1e-6)


def test_very_unlikely_turns_are_weighed_all_the_same(turns: Turns) -> None:
    """Log-probs of -1,000 and -1,000 - log 3: weights 3/4 and 1/4, though the exponential of either is 0 in float64."""
    group = [
        turns([0.0, 4.0], id="a", logprobs=[0.0, -1000.0]),
        turns([0.0, 0.0], id="c", logprobs=[0.0, -1000.0 - float(np.log(3.0))], parent_id="a", fork_turn=1),
        turns([1.0], id="b"),
    ]
    found = by_turn("tree", group, normalise="leaves", fusion="softmax")
    assert found[0][0] == pytest.approx((3 - 5 / 3) / (13 / 3) ** 0.5, abs=1e-4)


def test_a_depth_without_spread_gives_zero(turns: Turns) -> None:
    group = [turns([0.0, 1.0]), turns([0.0, 1.0 + 1e-7]), turns([5.0])]
    found = by_turn("tree", group)
    assert found[0][1] == found[1][1] == 0.0
    assert found[2][0] > 1


# With epsilon 1 the scores of rewards 1 and 0 are a half over 1 + .707107.
WIDE = 0.5 / (1 + 0.5**0.5)


def test_the_epsilon_of_a_tree_is_added_to_the_deviation_of_depths_or_of_leaves(turns: Turns) -> None:
    group = [turns([1.0]), turns([0.0])]
    for normalise in ("depth", "leaves"):
        found = by_turn("tree", group, normalise=normalise, epsilon=1.0)
        assert [mine[0] for mine in found] == pytest.approx([WIDE, -WIDE])
    for fusion in ("mean", "softmax"):
        found = by_turn("tree", group, epsilon=1.0, fusion=fusion)
        assert [mine[0] for mine in found] == pytest.approx([WIDE, -WIDE])
    assert [mine[0] for mine in by_turn("tree", group)] == pytest.approx([0.5**0.5, -(0.5**0.5)])


def test_a_depth_with_one_turn_has_no_standing(turns: Turns) -> None:
    group = [turns([0.0, 1.0]), turns([0.0])]
    assert by_turn("tree", group) == [pytest.approx([0.5**0.5, 0.0]), pytest.approx([-(0.5**0.5)])]


def test_pivots_of_a_group_of_two_use_its_mean_and_its_retries(turns: Turns) -> None:
    """The baseline is 1/2. The first fork of the base is at turn 1; without pivotal credit every turn counts."""
    base = turns([0.0, 0.0], id="base")
    retry = turns([0.0, 1.0], id="retry", parent_id="base", fork_turn=1)
    assert by_turn("pivotal", [base, retry]) == [[0.0, -0.5], [0.0, 1.5]]
    assert by_turn("pivotal", [base, retry], from_pivot=False) == [[-0.5, -0.5], [1.5, 1.5]]
    assert by_turn("pivotal", [base, retry], alpha=1.0, baseline="soft") == [
        pytest.approx([0.0, -np.log((np.e + 1) / 2)]),
        pytest.approx([0.0, 1 - np.log((np.e + 1) / 2)]),
    ]


def test_siblings_weigh_by_the_forks_of_every_turn_before_them(turns: Turns) -> None:
    """Two roots, and the first one forked in turn 1: its edge there has one sibling of its own, and the root another.

    Values: root edges (1 + 0)/2 and 0. Turn 0: 1/2 - 0; turn 1: 1 - 0 and 0 - 1. With paths: 3/2 of the first, 3/4 of those.
    """
    first = turns([0.0, 1.0], id="a")
    fork = turns([0.0, 0.0], id="b", parent_id="a", fork_turn=1)
    other = turns([0.0, 0.0], id="c")
    plain = by_turn("sibling", [first, fork, other], weighting="none")
    assert plain == [pytest.approx([0.5, 1.0]), pytest.approx([0.0, -1.0]), pytest.approx([-0.5, -0.5])]
    weighed = by_turn("sibling", [first, fork, other])
    assert weighed == [
        pytest.approx([0.75, 0.75]),
        pytest.approx([0.0, -0.75]),
        pytest.approx([-0.75, -0.75]),
    ]


def test_a_shared_turn_gets_the_mean_of_its_leaves(turns: Turns) -> None:
    """Outcomes 0, 1, 1 and 0 less their mean: -1/2, 1/2, 1/2, -1/2. The first three share turn 0, the first two turn 1."""
    first = turns([0.0, 0.0, 0.0], id="a")
    second = turns([0.0, 0.0, 1.0], id="b", parent_id="a", fork_turn=2)
    third = turns([0.0, 1.0], id="c", parent_id="a", fork_turn=1)
    group = [first, second, third, turns([0.0], id="d")]
    values = get_estimator("dr_grpo")(group)
    found = shared_means(group, values)
    scores = [
        [float(v[t.turn_index == n][-1]) for n in range(len(t.turns))]
        for t, v in zip(group, found, strict=True)
    ]
    assert scores[0] == pytest.approx([1 / 6, 0.0, -0.5])
    assert scores[1:] == [[0.5] * 3, [0.5] * 2, [-0.5]]  # of which the shared turns are not trained
    assert [float(own[-1]) for own in values] == [-0.5, 0.5, 0.5, -0.5]


def test_of_siblings_the_best_share_alone_is_trained(forked: list[Trajectory]) -> None:
    # First turns: a 4, b 2: a stays. Behind a: a 4 and c 4, equal: the first stays. Behind c: c 8, d 0: c stays.
    half, third = 0.5**0.5, 1 / 3**0.5
    expected = [[half, third, 0.0], [0.0, -2 * third], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    for mine, wanted in zip(by_turn("tree", forked, keep_siblings=0.5), expected, strict=True):
        assert mine == pytest.approx(wanted, abs=1e-6)


def test_listed_depths_are_not_trained(forked: list[Trajectory]) -> None:
    third = 1 / 3**0.5
    expected = [[0.0, third, 0.0], [0.0, -2 * third], [0.0, third, 0.0], [0.0, 0.0, 0.0]]
    for mine, wanted in zip(by_turn("tree", forked, skip_depths=(0, 2)), expected, strict=True):
        assert mine == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("share", [0.0, 1.1])
def test_a_share_of_siblings_is_a_share(forked: list[Trajectory], share: float) -> None:
    with pytest.raises(ConfigurationError, match="keep_siblings"):
        by_turn("tree", forked, keep_siblings=share)
