"""Bias of every estimator on a small problem whose gradient is known exactly.

The problem: up to three turns; in each the policy stops or goes on in one of two ways, and the world answers the first
move by a coin. Rewards come at every turn. There are 21 trajectories, so the gradient of the expected reward is a sum.

An estimator's estimate is the mean over the trajectories of a group of the sum over their turns of score times gradient of
the log-prob. Unbiased ones pass ``assert_unbiased``: no component of the mean of many estimates differs from the exact
gradient by more than 4 standard errors, each below 2 % of the gradient's norm. For the others the expectation is computed
without sampling, as a sum over all groups of three, and its size and direction are pinned.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations_with_replacement
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agentenv.core.options import load_entry
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task
from agentenv.trainers.credit.estimators import ESTIMATORS, Values, get_estimator

Vector = NDArray[np.float64]
Make = Callable[[Sequence[Trajectory]], list[Values]]

STOP, TURNS, GROUP = 0, 3, 3
# States: the start; after the first move (which of two) and the coin; after the second move.
STATES = ["", "1h", "1t", "2h", "2t", *(f"{a}{c}{b}" for a in "12" for c in "ht" for b in "12")]
COIN = 0.3  # chance of h
_rng = np.random.default_rng(5)
PROBS: Vector = np.exp(_rng.normal(0, 0.5, (len(STATES), 3)))
PROBS[-8:, 2] = 0.0  # the last move is one of two
PROBS /= PROBS.sum(1, keepdims=True)
REWARDS: Vector = _rng.normal(0, 1, (len(STATES), 3)).round(2)


@dataclass(frozen=True)
class Played:
    """A trajectory of the problem."""

    steps: tuple[tuple[int, int], ...]
    """State and action of each turn."""
    chance: float

    @property
    def rewards(self) -> list[float]:
        return [float(REWARDS[step]) for step in self.steps]

    @property
    def slopes(self) -> Vector:
        """[turns, states x actions]: gradient of the log-prob of each turn in the logits."""
        rows = np.zeros((len(self.steps), *PROBS.shape))
        for row, (state, action) in zip(rows, self.steps, strict=True):
            row[state] = np.eye(3)[action] - PROBS[state]
        return rows.reshape(len(self.steps), -1)


def follow(steps: tuple[tuple[int, int], ...], chance: float, state: str) -> list[Played]:
    """All ways to go on from ``state``."""
    found, place = [], STATES.index(state)
    for action in range(3):
        p, taken = chance * float(PROBS[place, action]), (*steps, (place, action))
        if p == 0:
            continue
        if action == STOP or len(taken) == TURNS:
            found.append(Played(taken, p))
        elif state == "":
            for coin, q in (("h", COIN), ("t", 1 - COIN)):
                found += follow(taken, p * q, f"{action}{coin}")
        else:
            found += follow(taken, p, f"{state}{action}")
    return found


ALL = follow((), 1.0, "")
CHANCES: Vector = np.array([played.chance for played in ALL])
EXACT: Vector = sum((p.chance * sum(p.rewards) * p.slopes.sum(0) for p in ALL), np.zeros(PROBS.size))


@cache
def record(place: int) -> Trajectory:
    played = ALL[place]
    segments: list[Segment] = [Segment(SegmentKind.PROMPT, (0,), 0)]
    turns = []
    for t, ((state, action), reward) in enumerate(zip(played.steps, played.rewards, strict=True)):
        segments += [
            Segment(SegmentKind.POLICY, (action,), t, logprobs=(float(np.log(PROBS[state, action])),)),
            Segment(SegmentKind.ENV, (9,), t),
        ]
        turns.append(Turn(str(action), reward=reward, anchor_key=STATES[state]))
    total = sum(played.rewards)
    return Trajectory(Task("t", "q"), tuple(segments), tuple(turns), total, EndReason.ANSWERED)


def estimate(group: Sequence[Trajectory], places: Sequence[int], make: Make) -> Vector:
    """The mean over trajectories of the sum over turns of score times slope."""
    total = np.zeros(PROBS.size)
    for values, trajectory, place in zip(make(group), group, places, strict=True):
        total += values[trajectory.loss_mask] @ ALL[place].slopes
    return total / len(group)


def independent(places: Sequence[int], make: Make) -> Vector:
    group = [replace(record(place), id=f"{i}") for i, place in enumerate(places)]
    return estimate(group, places, make)


def sampled(make: Make, draws: int, size: int = GROUP) -> tuple[Vector, Vector]:
    """Mean and standard error of the estimates of ``draws`` groups; equal groups are computed once."""
    rng = np.random.default_rng(1)
    drawn = np.sort(rng.choice(len(ALL), p=CHANCES, size=(draws, size)), axis=1)
    groups, counts = np.unique(drawn, axis=0, return_counts=True)
    return moments(np.stack([independent(group.tolist(), make) for group in groups]), counts)


def moments(estimates: Vector, counts: NDArray[np.int64]) -> tuple[Vector, Vector]:
    share = counts[:, None] / counts.sum()
    mean = (share * estimates).sum(0)
    variance = (share * (estimates - mean) ** 2).sum(0)
    return mean, np.sqrt(variance / counts.sum())


def assert_unbiased(mean: Vector, error: Vector) -> None:
    norm = float(np.linalg.norm(EXACT))
    assert error.max() < 0.02 * norm, "too few groups to tell"
    gap = np.abs(mean - EXACT)
    assert (gap <= 4 * error + 1e-12).all(), f"off by {(gap / np.maximum(error, 1e-12)).max():.1f} errors"


def expected(make: Make) -> Vector:
    """The estimate's expectation over all groups of three."""
    total = np.zeros(PROBS.size)
    for group in combinations_with_replacement(range(len(ALL)), GROUP):
        orders = factorial(GROUP)
        for place in set(group):
            orders //= factorial(group.count(place))
        total += orders * float(np.prod(CHANCES[list(group)])) * independent(group, make)
    return total


def test_the_problem_is_what_it_says() -> None:
    assert len(ALL) == 21
    assert CHANCES.sum() == pytest.approx(1, abs=1e-12)
    assert {len(played.steps) for played in ALL} == {1, 2, 3}
    # central differences of the expected reward in the start's logits
    value = []
    for sign in (1, -1):
        logits = np.log(PROBS[0]) + np.array([sign * 1e-6, 0, 0])
        first = np.exp(logits) / np.exp(logits).sum()
        value.append(
            sum(p.chance / PROBS[0, p.steps[0][1]] * first[p.steps[0][1]] * sum(p.rewards) for p in ALL)
        )
    assert EXACT[0] == pytest.approx((value[0] - value[1]) / 2e-6, abs=1e-8)
    assert np.linalg.norm(EXACT) > 0.3


UNBIASED: list[tuple[str, dict[str, Any]]] = [
    ("leave_one_out", {}),
    ("return_to_go", {}),
    ("return_to_go", {"baseline": 0.3}),
    ("sibling", {}),
    ("turn_roles", {}),  # no tool is called here
]


@pytest.mark.parametrize(("name", "options"), UNBIASED)
def test_unbiased_estimators(name: str, options: dict[str, Any]) -> None:
    assert_unbiased(*sampled(get_estimator(name, options), draws=20_000))
    # and without sampling at all
    np.testing.assert_allclose(expected(get_estimator(name, options)), EXACT, rtol=0, atol=1e-12)


def late(group: Sequence[Trajectory]) -> list[Values]:
    """Return-to-go that forgets the turn's own reward."""
    shifted = [
        replace(
            t,
            turns=tuple(
                replace(a, reward=b.reward) for a, b in zip(t.turns, (*t.turns[1:], Turn("")), strict=True)
            ),
        )
        for t in group
    ]
    return get_estimator("return_to_go")(shifted)


@pytest.mark.parametrize(
    "make",
    [
        get_estimator("dr_grpo"),  # the mean holds the member itself: a third too small in groups of three
        get_estimator("return_to_go", {"gamma": 0.9}),
        late,
    ],
)
def test_biased_variants_fail_the_same_test(make: Make) -> None:
    mean, error = sampled(make, draws=20_000)
    with pytest.raises(AssertionError, match="off by"):
        assert_unbiased(mean, error)


def test_dr_grpo_is_the_exact_gradient_made_smaller() -> None:
    np.testing.assert_allclose(
        expected(get_estimator("dr_grpo")), EXACT * (GROUP - 1) / GROUP, rtol=0, atol=1e-12
    )


def forks(place: int, turn: int) -> tuple[list[int], Vector]:
    """Trajectories that pass through the state of ``place`` before ``turn``, and their chances from there on."""
    steps = ALL[place].steps
    same = [
        i
        for i, other in enumerate(ALL)
        if other.steps[:turn] == steps[:turn]
        and len(other.steps) > turn
        and other.steps[turn][0] == steps[turn][0]
    ]
    return same, np.cumsum(CHANCES[same] / CHANCES[same].sum())


def sampled_forks(make: Make, draws: int) -> tuple[Vector, Vector]:
    """Two episodes a group, the first forked once before each of its later turns: trees of uneven size."""
    rng = np.random.default_rng(2)
    table = {(i, t): forks(i, t) for i, played in enumerate(ALL) for t in range(1, len(played.steps))}
    counts: dict[tuple[int, ...], int] = {}
    roots = rng.choice(len(ALL), p=CHANCES, size=(draws, 2))
    coins = rng.random((draws, TURNS - 1))
    for root, coin in zip(roots.tolist(), coins, strict=True):
        later = range(1, len(ALL[root[0]].steps))
        branches = [
            table[root[0], t][0][int(np.searchsorted(table[root[0], t][1], coin[t - 1]))] for t in later
        ]
        key = (*root, *branches)
        counts[key] = counts.get(key, 0) + 1
    estimates = []
    for key in counts:
        group = [replace(record(place), id=str(i)) for i, place in enumerate(key)]
        group[2:] = [replace(t, parent_id="0", fork_turn=i + 1) for i, t in enumerate(group[2:])]
        estimates.append(estimate(group, key, make))
    return moments(np.stack(estimates), np.array(list(counts.values())))


def test_siblings_of_one_state_are_an_unbiased_baseline() -> None:
    """Also where the number of forks depends on how long the policy goes on, and some turns have no sibling."""
    assert_unbiased(*sampled_forks(get_estimator("sibling"), draws=20_000))


def test_siblings_that_ignore_how_often_a_state_was_forked_fail_the_same_test() -> None:
    mean, error = sampled_forks(get_estimator("sibling", {"weighting": "none"}), draws=20_000)
    with pytest.raises(AssertionError, match="off by"):
        assert_unbiased(mean, error)


# Along: the expectation's component along the exact gradient, in units of it. Aside: the length of the rest, likewise.
MEASURED = [
    ("group_relative", {}, 0.536, 0.031),
    ("role_wise", {}, 0.536, 0.031),
    ("decoupled", {}, 0.536, 0.031),
    ("high_entropy", {}, 0.509, 0.105),
    ("high_entropy", {"share": 0.5}, 0.418, 0.139),
    ("median_centered", {}, 0.915, 0.069),
    ("optimal_baseline", {}, 0.695, 0.084),
    ("optimal_baseline", {"norm": "length"}, 0.699, 0.078),
    ("reinforce_pp", {}, 0.728, 0.119),
    ("return_to_go", {"gamma": 0.9}, 1.017, 0.045),
    ("turn_level", {}, 0.582, 0.283),
    ("turn_level", {"form": "first_tool"}, 0.783, 0.306),
    ("turn_level", {"outcome": "last_turn"}, 0.552, 0.391),
    ("anchor_state", {}, 0.976, 0.192),
    ("anchor_state", {"population": "step"}, 1.104, 0.278),
    ("anchor_state", {"scale": "none", "gamma": 1.0}, 1.210, 0.196),
    ("dual_level", {}, 1.171, 0.160),
    ("dual_level", {"population": "step"}, 1.616, 0.413),
    ("pivotal", {}, 1.394, 0.102),
    ("pivotal", {"amplify": "repo"}, 0.823, 0.231),
    ("tree", {}, 0.499, 0.076),
    ("tree", {"normalise": "leaves"}, 0.536, 0.031),
]
"""As ``docs/credit.md`` states them, for groups of three of this problem."""


@pytest.mark.parametrize(("name", "options", "along", "aside"), MEASURED)
def test_the_size_of_a_bias(name: str, options: dict[str, Any], along: float, aside: float) -> None:
    mean, norm = expected(get_estimator(name, options)), float(np.linalg.norm(EXACT))
    share = float(mean @ EXACT) / norm**2
    assert share == pytest.approx(along, abs=1e-3)
    assert np.linalg.norm(mean - share * EXACT) / norm == pytest.approx(aside, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "along", "aside"), [(n, *sizes) for n, options, *sizes in MEASURED if not options]
)
def test_a_biased_estimator_says_so_where_it_is_defined(name: str, along: float, aside: float) -> None:
    words = " ".join((load_entry(ESTIMATORS[name]).__doc__ or "").split())
    assert "Biased" in words
    assert f"{along:.3f} along, {aside:.3f} aside".replace("0.", ".") in words


@pytest.mark.parametrize(("name", "along", "aside"), [(n, *sizes) for n, _, *sizes in MEASURED])
def test_the_page_states_the_size_of_a_bias(name: str, along: float, aside: float) -> None:
    page = (Path(__file__).parents[3] / "docs" / "credit.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    stated = re.sub(r"\b0\.", ".", f"{along:.3f}, {aside:.3f}")
    assert re.search(rf"(?<![\d.]){re.escape(stated)}(?!\d)", row.rpartition(" | ")[2])


def test_no_estimator_is_left_out() -> None:
    assert {row[0] for row in (*UNBIASED, *MEASURED)} | {"dr_grpo"} == set(ESTIMATORS)
