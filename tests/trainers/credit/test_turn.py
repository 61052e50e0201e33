"""Credit of turns by hand: return-to-go, MT-GRPO, GiGPO in both populations, UI-S1 in all three segment ends."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import ToolResult, ToolStatus
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.credit.outcome import group_relative
from agentenv.trainers.credit.turn import discounted, segment_returns

Turns = Callable[..., Trajectory]


def by_turn(name: str, group: Sequence[Trajectory], **options: Any) -> list[list[float]]:
    """The score of each turn of each trajectory; equal on all tokens of a turn."""
    scores = []
    for trajectory, values in zip(group, get_estimator(name, options)(group), strict=True):
        assert len(values) == len(trajectory.ids)
        mine = []
        for turn in range(len(trajectory.turns)):
            tokens = values[trajectory.turn_index == turn]
            assert np.ptp(tokens) == 0
            mine.append(float(tokens[0]))
        scores.append(mine)
    return scores


def assert_scores(found: list[list[float]], expected: list[list[float]], tolerance: float = 1e-4) -> None:
    assert [len(mine) for mine in found] == [len(mine) for mine in expected]
    for mine, wanted in zip(found, expected, strict=True):
        assert mine == pytest.approx(wanted, abs=tolerance)


def test_discounted_returns() -> None:
    # 4, 2 + .5 * 4, 1 + .5 * 4
    assert discounted([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]
    assert discounted([], 0.5) == []


def test_return_to_go_against_the_others(turns: Turns) -> None:
    # returns-to-go 3 2, 1 1, 4 (ended: 0). Others at turn 0: (1 + 4)/2, (3 + 4)/2, (3 + 1)/2; at turn 1: 1/2, 2/2
    group = [turns([1.0, 2.0]), turns([0.0, 1.0]), turns([4.0])]
    assert_scores(by_turn("return_to_go", group), [[0.5, 1.5], [-2.5, 0.0], [2.0]])
    # gamma 1/2: 2 2, .5 1, 4; others at turn 0: 2.25, 3, 1.25; at turn 1: .5, 1
    assert_scores(by_turn("return_to_go", group, gamma=0.5), [[-0.25, 1.5], [-2.5, 0.0], [2.75]])


def test_an_external_baseline_serves_a_group_of_one(turns: Turns) -> None:
    assert_scores(by_turn("return_to_go", [turns([1.0, 2.0])], baseline=0.5), [[2.5, 1.5]])
    assert_scores(by_turn("return_to_go", [turns([1.0, 2.0])], baseline=0.0), [[3.0, 2.0]])


@pytest.fixture
def published(turns: Turns) -> list[Trajectory]:
    """The worked example of MT-GRPO: turn rewards .5 .5 0 0, outcomes 1 0 1 0."""
    return [turns([t, o], reward=o) for t, o in ((0.5, 1.0), (0.5, 0.0), (0.0, 1.0), (0.0, 0.0))]


@pytest.mark.parametrize("form", ["every_turn", "first_tool"])
def test_turn_level_credit(published: list[Trajectory], form: str) -> None:
    # both standardise to +-sqrt(3)/2 = .8660 at epsilon 0
    expected = [[1.7320, 0.8660], [0.0, -0.8660], [0.0, 0.8660], [-1.7320, -0.8660]]
    assert_scores(by_turn("turn_level", published, epsilon=0.0, form=form), expected)
    # epsilon 1e-4: .25 / (.288675 + .0001) = .865726 of the turn, .5 / (.577350 + .0001) = .865875 of the outcome
    found = by_turn("turn_level", published, form=form)
    assert_scores(
        found,
        [[1.731601, 0.865875], [-0.000149, -0.865875], [0.000149, 0.865875], [-1.731601, -0.865875]],
        1e-6,
    )


def test_a_trajectory_without_a_tool_call_is_judged_on_the_sum(turns: Turns) -> None:
    # outcomes 1 0 1, turn rewards .5 0 and none. Sums 1.5 0 1: mean 5/6, deviations 4 -5 1 sixths, variance 42/72,
    # deviation .763763; the third: (1/6)/.763763 = .218218. Outcomes: mean 2/3, deviation .577350: .577350 -1.154701.
    group = [turns([0.5, 1.0], reward=1.0), turns([0.0, 0.0], reward=0.0), turns([1.0])]
    over_two = [[0.577350 + 0.5**0.5, 0.577350], [-1.154701 - 0.5**0.5, -1.154701], [0.218218]]
    assert_scores(by_turn("turn_level", group, epsilon=0.0), over_two)
    # published: turn rewards .5 0 0 over all three: mean 1/6, deviation .288675: 1.154701 -.577350
    over_three = [[0.577350 + 1.154701, 0.577350], [-1.154701 - 0.577350, -1.154701], [0.218218]]
    assert_scores(by_turn("turn_level", group, epsilon=0.0, form="first_tool"), over_three)
    # lambda weighs standardised turn rewards, and the sum is of the rewards as they are: the third score stays
    doubled = [[0.577350 + 2 * 1.154701, 0.577350], [-1.154701 - 2 * 0.577350, -1.154701], [0.218218]]
    weighed = by_turn("turn_level", group, epsilon=0.0, form="first_tool", turn_weight=2.0)
    assert_scores(weighed, doubled)


def malformed(trajectory: Trajectory, *places: int) -> Trajectory:
    """``trajectory`` whose turns at ``places`` could not be acted on."""
    wrong = (ToolResult("none", ToolStatus.FORMAT_ERROR),)
    marked = [replace(t, tool_results=wrong) if i in places else t for i, t in enumerate(trajectory.turns)]
    return replace(trajectory, turns=tuple(marked))


def test_a_turn_that_could_not_be_acted_on_is_no_tool_call_of_mt_grpo(turns: Turns) -> None:
    """The worked example again, where the first member writes no action before its call, and the third nothing else.

    Turn rewards .5 .5 and none (0) 0 standardise to .8660 .8660 -.8660 -.8660, outcomes 1 0 1 0 as before; sums 1.5 .5 1 0
    have a mean of .75 and a deviation of .645497, so that the third gets .25 / .645497 = .387298 on all tokens.
    """
    group = [
        malformed(turns([0.0, 0.5, 1.0], reward=1.0), 0),
        turns([0.5, 0.0], reward=0.0),
        malformed(turns([0.0, 0.0, 1.0], reward=1.0), 0, 1),
        turns([0.0, 0.0], reward=0.0),
    ]
    expected = [[1.7320, 1.7320, 0.8660], [0.0, -0.8660], [0.387298] * 3, [-1.7320, -0.8660]]
    assert_scores(by_turn("turn_level", group, epsilon=0.0, form="first_tool"), expected)


def test_turn_rewards_add_up_to_the_turns_before_them(turns: Turns) -> None:
    # turn 0: rewards 1 0 0, mean 1/3, deviation .577350: 1.154701 -.577350 -.577350; turn 1: 0 2 of the two that have
    # one: -.7071 .7071; outcomes equal: 0
    group = [
        turns([1.0, 0.0, 0.0], reward=0.0),
        turns([0.0, 2.0, 0.0], reward=0.0),
        turns([0.0, 0.0], reward=0.0),
    ]
    half = 0.5**0.5
    expected = [[1.154701 - half, -half, 0.0], [-0.577350 + half, half, 0.0], [-0.577350, 0.0]]
    assert_scores(by_turn("turn_level", group, epsilon=0.0), expected)
    doubled = [[2 * score for score in mine] for mine in expected]
    assert_scores(by_turn("turn_level", group, epsilon=0.0, turn_weight=2.0), doubled)
    first = [[1.154701, 0.0, 0.0], [-0.577350, 0.0, 0.0], [-0.577350, 0.0]]
    assert_scores(by_turn("turn_level", group, epsilon=0.0, form="first_tool"), first)


def test_the_outcome_of_an_episode_that_adds_turn_rewards_up(turns: Turns) -> None:
    """As the episode loop records it: reward 1.5 = .5 + 1, and the last turn's is the outcome."""
    group = [turns([t, o]) for t, o in ((0.5, 1.0), (0.5, 0.0), (0.0, 1.0), (0.0, 0.0))]
    found = by_turn("turn_level", group, epsilon=0.0, outcome="last_turn")
    assert_scores(found, [[1.7320, 0.8660], [0.0, -0.8660], [0.0, 0.8660], [-1.7320, -0.8660]])


@pytest.mark.parametrize("name", ["turn_level", "anchor_state", "dual_level"])
def test_without_turn_weight_it_is_plain_grpo_to_the_bit(name: str, turns: Turns) -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 5):
        lengths = rng.integers(1, 4, size=size)
        group = [turns(rng.normal(size=n).tolist(), keys=["a"] * n, valid=[False] * n) for n in lengths]
        found = get_estimator(name, {"turn_weight": 0, "epsilon": 1e-6})(group)
        for mine, plain in zip(found, group_relative(group), strict=True):
            assert mine.tobytes() == plain.tobytes()
        assert size == 1 or any(mine.any() for mine in found)


def test_anchor_state_over_trajectories(turns: Turns) -> None:
    # Outcomes 1 and 0: +-.7071. gamma .5, returns .5 1 and 0 0. State a: .5 0 -> +-.7071; b alone, c alone: 0.
    group = [turns([0.0, 1.0], keys=["a", "b"]), turns([0.0, 0.0], keys=["a", "c"])]
    half = 0.5**0.5
    found = by_turn("anchor_state", group, gamma=0.5, epsilon=0.0)
    assert_scores(found, [[2 * half, half], [-2 * half, -half]])
    found = by_turn("anchor_state", group, gamma=0.5, epsilon=0.0, turn_weight=0.5)
    assert_scores(found, [[1.5 * half, half], [-1.5 * half, -half]])
    # without division: +-.5, and .5 - .25 in state a
    found = by_turn("anchor_state", group, gamma=0.5, scale="none")
    assert_scores(found, [[0.75, 0.5], [-0.75, -0.5]])


def test_the_two_populations_of_anchor_state(turns: Turns) -> None:
    """Three turns with outcome 1, one with outcome 0; no state is shared."""
    group = [turns([0.0, 0.0, 1.0], keys=["a", "b", "c"]), turns([0.0], keys=["d"])]
    half = 0.5**0.5
    assert_scores(by_turn("anchor_state", group, epsilon=0.0), [[half] * 3, [-half]])
    # entries 1 1 1 0: mean 3/4, deviation 1/2
    found = by_turn("anchor_state", group, epsilon=0.0, population="step")
    assert_scores(found, [[0.5] * 3, [-1.5]])


def test_a_state_met_twice_is_two_entries_and_a_missing_key_none(turns: Turns) -> None:
    # gamma 1: returns 1 1 and 0. State a: 1 1 0, mean 2/3. The third trajectory has no key.
    group = [turns([0.0, 1.0], keys=["a", "a"]), turns([0.0], keys=["a"]), turns([1.0], keys=[None])]
    found = by_turn("anchor_state", group, gamma=1.0, scale="none")
    # outcomes 1 0 1: mean 2/3
    assert_scores(found, [[2 / 3, 2 / 3], [-4 / 3], [1 / 3]])


def test_similar_states_share_a_group(turns: Turns) -> None:
    # ratio of abcdefghij and abcdefghiX: 2 * 9 / 20 = .9
    keys = (["abcdefghij"], ["abcdefghiX"])
    group = [turns([1.0], keys=keys[0]), turns([0.0], keys=keys[1])]
    assert_scores(by_turn("anchor_state", group, scale="none"), [[0.5], [-0.5]])
    assert_scores(by_turn("anchor_state", group, scale="none", similarity=0.9), [[1.0], [-1.0]])
    assert_scores(by_turn("anchor_state", group, scale="none", similarity=0.95), [[0.5], [-0.5]])


def test_long_states_that_differ_in_one_place_are_alike(turns: Turns) -> None:
    """199 a's and a b, either way round, have a ratio of .995, and of .005 by difflib's rule for frequent characters."""
    keys = ["a" * 199 + "b", "b" + "a" * 199]
    group = [turns([reward], keys=[key]) for reward, key in zip((1.0, 0.0), keys, strict=True)]
    assert_scores(by_turn("anchor_state", group, scale="none", similarity=0.95), [[1.0], [-1.0]])


def test_an_invalid_action_costs_its_own_turn(turns: Turns) -> None:
    # gamma 1, outcomes 1 1. State a: returns 1 - .1 and 1, mean .95. Turn b of both: 1 and 1.
    # The episode's entry is that of the first turn: .9 and 1, mean .95; the second turn of the first: 1 - .95.
    group = [
        turns([0.0, 1.0], keys=["a", "b"], valid=[False, True]),
        turns([0.0, 1.0], keys=["a", "b"]),
    ]
    found = by_turn("anchor_state", group, gamma=1.0, scale="none", invalid_penalty=0.1)
    assert_scores(found, [[-0.05 - 0.05, 0.05], [0.05 + 0.05, 0.05]])


def test_a_single_episode_scores_its_reward_where_asked(turns: Turns) -> None:
    assert_scores(by_turn("anchor_state", [turns([0.0, 2.0])], singleton="reward"), [[2.0, 2.0]])
    assert_scores(by_turn("dual_level", [turns([0.0, 2.0])], singleton="reward"), [[2.0, 2.0]])


@pytest.mark.parametrize(
    ("pattern", "end", "expected"),
    [
        # gamma .5, rewards 1 2 4 8 from the first turn; a mismatch at 0.
        # 1111: 8; 4 + 4; 2 + 4; 1 + 3
        *[("1111", end, [4.0, 6.0, 8.0, 8.0]) for end in ("exclude", "include", "full")],
        # 1101: the third is a mismatch, its own 4 ends the segment
        ("1101", "exclude", [2.0, 2.0, 4.0, 8.0]),
        ("1101", "include", [3.0, 4.0, 4.0, 8.0]),
        ("1101", "full", [4.0, 6.0, 8.0, 8.0]),
        ("0111", "exclude", [1.0, 6.0, 8.0, 8.0]),
        ("0111", "include", [1.0, 6.0, 8.0, 8.0]),
        ("0111", "full", [4.0, 6.0, 8.0, 8.0]),
        ("0000", "exclude", [1.0, 2.0, 4.0, 8.0]),
        ("0000", "include", [1.0, 2.0, 4.0, 8.0]),
        ("0000", "full", [4.0, 6.0, 8.0, 8.0]),
    ],
)
def test_segment_returns(pattern: str, end: Any, expected: list[float]) -> None:
    matched = [mark == "1" for mark in pattern]
    assert segment_returns([1.0, 2.0, 4.0, 8.0], matched, 0.5, end) == expected


def test_dual_level_credit(turns: Turns) -> None:
    # gamma .5, include. First: 1 0 both matched: returns 1 0. Second: 0 (mismatch) 1: returns 0 1.
    # Turn 0: 1 0 -> +-.7071; turn 1: 0 1 -> -+.7071. Outcomes 1 and 1: flat.
    group = [turns([1.0, 0.0]), turns([0.0, 1.0], valid=[False, True])]
    half = 0.5**0.5
    assert_scores(by_turn("dual_level", group, epsilon=0.0), [[half, -half], [-half, half]])
    # each turn's own reward over all turns: 1 0 0 1, +-.8660
    root = 0.75**0.5
    found = by_turn("dual_level", group, epsilon=0.0, population="step")
    assert_scores(found, [[half + root, -half - root], [-half - root, half + root]])
    found = by_turn("dual_level", group, epsilon=0.0, population="step", turn_weight=2.0, episode_weight=0.5)
    assert_scores(
        found, [[2 * half + root / 2, -2 * half - root / 2], [-2 * half - root / 2, 2 * half + root / 2]]
    )
    found = by_turn("dual_level", group, population="step", turn_weight=0.0, scale="none")
    assert_scores(found, [[0.5, -0.5], [-0.5, 0.5]])


def test_segment_ends_reach_dual_level_credit(turns: Turns) -> None:
    # First: rewards 0 1, second a mismatch at turn 1. exclude: 0 1; include: .5 1. Second: 0 0. Difference halved.
    group = [turns([0.0, 1.0], valid=[True, False]), turns([0.0, 0.0])]
    options = {"scale": "none", "episode_weight": 0.0}
    assert_scores(by_turn("dual_level", group, segment_end="exclude", **options), [[0.0, 0.5], [0.0, -0.5]])
    assert_scores(
        by_turn("dual_level", group, segment_end="include", **options), [[0.25, 0.5], [-0.25, -0.5]]
    )


def test_a_turn_that_no_other_has_scores_the_episode_alone(turns: Turns) -> None:
    group = [turns([0.0, 1.0]), turns([0.0])]
    assert_scores(by_turn("dual_level", group, scale="none", gamma=0.5), [[0.25 + 0.5, 0.5], [-0.25 - 0.5]])


# With epsilon 1 the scores of rewards 1 and 0 are half of 1 over 1 + .707107, those of 1/2 and 0 a quarter over 1 + .353553.
WIDE, HALF = 0.5 / (1 + 0.5**0.5), 0.25 / (1 + 0.5**0.5 / 2)


@pytest.mark.parametrize("form", ["every_turn", "first_tool"])
def test_the_epsilon_of_turn_level_is_added_to_every_deviation(turns: Turns, form: str) -> None:
    group = [turns([0.5, 1.0], reward=1.0), turns([0.0, 0.0], reward=0.0)]
    found = by_turn("turn_level", group, epsilon=1.0, form=form)
    assert_scores(found, [[HALF + WIDE, WIDE], [-HALF - WIDE, -WIDE]], 1e-9)
    assert_scores(by_turn("turn_level", group, epsilon=1.0, turn_weight=0.0), [[WIDE] * 2, [-WIDE] * 2], 1e-9)
    bare = [turns([1.0]), turns([0.0])]
    assert_scores(by_turn("turn_level", bare, epsilon=1.0), [[WIDE], [-WIDE]], 1e-9)


def test_the_epsilon_and_discount_of_anchor_state(turns: Turns) -> None:
    group = [turns([0.0, 1.0], keys=["a", "b"]), turns([0.0, 0.0], keys=["a", "c"])]
    found = by_turn("anchor_state", group, gamma=0.5, epsilon=1.0)
    assert_scores(found, [[WIDE + HALF, WIDE], [-WIDE - HALF, -WIDE]], 1e-9)
    # Entries 1 1 0 0: deviation sqrt(1/3).
    step = 0.5 / (1 + (1 / 3) ** 0.5)
    found = by_turn("anchor_state", group, gamma=0.5, epsilon=1.0, population="step")
    assert_scores(found, [[step + HALF, step], [-step - HALF, -step]], 1e-9)
    # Without a discount of its own the return of state a is .95 and 0.
    assert_scores(
        by_turn("anchor_state", group, scale="none"), [[0.5 + 0.475, 0.5], [-0.5 - 0.475, -0.5]], 1e-9
    )


def test_a_fine_is_divided_by_the_spread_of_the_outcomes(turns: Turns) -> None:
    """The first turn of the first costs 1/2: entries 1/2 and 0, and its second turn has 1/2 more."""
    group = [turns([0.0, 1.0], valid=[False, True]), turns([0.0])]
    found = by_turn("anchor_state", group, epsilon=1.0, invalid_penalty=0.5)
    assert_scores(found, [[HALF, 3 * HALF], [-HALF]], 1e-9)
    found = by_turn("anchor_state", group, epsilon=1.0, invalid_penalty=0.5, turn_weight=0.0)
    assert_scores(found, [[HALF, 3 * HALF], [-HALF]], 1e-9)
    flat = [turns([0.0, 0.5], valid=[False, True]), turns([0.0])]  # entries 0 and 0
    assert_scores(by_turn("anchor_state", flat, epsilon=1.0, invalid_penalty=0.5), [[0.0, 0.5], [0.0]], 1e-9)


def test_the_epsilon_and_discount_of_dual_level(turns: Turns) -> None:
    group = [turns([1.0, 0.0], reward=1.0), turns([0.0, 0.0], reward=0.0)]
    assert_scores(by_turn("dual_level", group, epsilon=1.0), [[2 * WIDE, WIDE], [-2 * WIDE, -WIDE]], 1e-9)
    # Each turn's own reward: 1 0 0 0, mean 1/4, deviation 1/2.
    found = by_turn("dual_level", group, epsilon=1.0, population="step")
    assert_scores(found, [[0.5 + WIDE, -1 / 6], [-1 / 6 - WIDE, -1 / 6]], 1e-9)
    late = [turns([0.0, 1.0]), turns([0.0, 0.0])]  # returns 1/2 and 1
    assert_scores(by_turn("dual_level", late, scale="none"), [[0.5 + 0.25, 1.0], [-0.5 - 0.25, -1.0]], 1e-9)


def test_keys_are_compared_with_the_first_of_each_kind(turns: Turns) -> None:
    """Ratios: aaab to aaaa .75, aabb to aaaa .5 and to aaab .75; the second joins the first, and the third is alone."""
    group = [turns([reward], keys=[key]) for reward, key in ((1.0, "aaaa"), (0.0, "aaab"), (0.0, "aabb"))]
    found = by_turn("anchor_state", group, scale="none", similarity=0.75)
    assert_scores(found, [[2 / 3 + 0.5], [-1 / 3 - 0.5], [-1 / 3]], 1e-9)
    unknown = [turns([1.0], keys=[None]), turns([0.0], keys=[None])]
    assert_scores(by_turn("anchor_state", unknown, scale="none", similarity=0.5), [[0.5], [-0.5]], 1e-9)


def test_a_baseline_stands_in_the_place_of_the_others_for_every_turn(turns: Turns) -> None:
    group = [turns([1.0, 2.0]), turns([0.0])]
    assert_scores(by_turn("return_to_go", group, baseline=1.0), [[2.0, 1.0], [-1.0]], 1e-9)
    assert_scores(by_turn("return_to_go", group, baseline=1.0, gamma=0.5), [[1.0, 1.0], [-1.0]], 1e-9)
    assert get_estimator("return_to_go", {})([]) == []
