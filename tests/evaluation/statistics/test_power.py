"""Simulated power: the rule against that of the sequential test, known powers, and what nothing can find."""

from typing import Any

import numpy as np
import pytest

from agentenv.evaluation.statistics.power import (
    detectable_difference,
    detectable_margin,
    distinguished,
    equivalence_power,
    least_p,
    sequential_power,
)
from agentenv.evaluation.statistics.sequential import _most_extreme


def test_the_least_p_value_of_two_systems_that_do_not_overlap() -> None:
    assert [least_p(n) for n in (2, 3, 4, 5)] == [2 / 6, 2 / 20, 2 / 70, 2 / 252]


@pytest.mark.parametrize("unit", [1.0, 0.01, 1e6])
def test_many_comparisons_at_once_are_decided_like_each_by_itself(unit: float) -> None:
    """Sums of three pairs under ten permutations, where ties and pairs that leave one after the other occur."""
    rng = np.random.default_rng(5)
    sums_KRPS = rng.integers(-6, 7, (2, 300, 3, 10)) * unit
    sums_KRPS[:, :, :, 0] += rng.integers(0, 8, (2, 300, 3)) * unit
    found_RP = distinguished(sums_KRPS.astype(np.float64), 0.15)
    for place in range(300):
        undecided = {(str(pair), "x"): pair for pair in range(3)}
        for depth in (1, 2):
            while extreme := _most_extreme(
                {name: [*sums_KRPS[:depth, place, pair]] for name, pair in undecided.items()}, 0.15
            ):
                del undecided[extreme[0]]
        assert set(np.flatnonzero(~found_RP[place])) == set(undecided.values())
    assert 0.2 < found_RP.mean() < 0.8  # both outcomes were compared


def test_without_an_effect_a_direction_is_found_with_half_of_the_error_level() -> None:
    found = sequential_power(0.0, per_interim=5, interims=2, alpha=0.2, replications=1500, permutations=200)
    assert 0.07 < found < 0.13


def test_the_power_grows_with_the_effect_and_reaches_one() -> None:
    powers = [sequential_power(effect, per_interim=5, interims=2, alpha=0.05) for effect in (0.5, 1.5, 8.0)]
    assert powers == sorted(powers)
    assert powers[0] < 0.4 < powers[1] < powers[2] == 1.0


def test_three_seeds_at_one_look_can_find_nothing() -> None:
    """Of 20 splits two are as extreme as arms that do not overlap: .1 is above .05, however large the difference is."""
    assert sequential_power(8.0, per_interim=3, interims=1, alpha=0.05) == 0.0
    assert detectable_difference(systems=2, per_interim=3, interims=1, alpha=0.05) is None


def test_what_is_detectable_has_the_power_that_is_asked_for() -> None:
    smallest = detectable_difference(systems=3, per_interim=5, interims=2, alpha=0.05)
    assert smallest is not None
    assert smallest == pytest.approx(1.5, abs=0.25)
    powers = [
        sequential_power(effect, systems=3, per_interim=5, interims=2, alpha=0.05)
        for effect in (smallest, smallest - 0.25)
    ]
    assert powers[1] < 0.8 <= powers[0]


def test_a_margin_that_equal_systems_are_found_within() -> None:
    smallest = detectable_margin(per_interim=5, interims=2, alpha=0.05)
    assert smallest is not None
    assert equivalence_power(smallest, per_interim=5, interims=2, alpha=0.05) >= 0.8
    assert equivalence_power(smallest / 2, per_interim=5, interims=2, alpha=0.05) < 0.5


def test_the_defaults_of_a_simulation_are_those_that_it_names() -> None:
    plain: dict[str, Any] = {"per_interim": 4, "interims": 2, "alpha": 0.1}
    named: dict[str, Any] = {"systems": 2, "replications": 200, "permutations": 500, "seed": 0}
    assert sequential_power(1.2, **plain) == sequential_power(1.2, **plain, **named)
    assert sequential_power(1.2, **plain) != sequential_power(1.2, **plain, **(named | {"seed": 1}))
    assert equivalence_power(1.2, **plain) == equivalence_power(1.2, **plain, replications=300, seed=0)
    assert equivalence_power(1.2, **plain) != equivalence_power(1.2, **plain, seed=1)


def test_a_difference_to_either_side_counts_as_found_where_it_lies_on_the_right_one() -> None:
    """The first system is shifted: down, it is never found to be the better one."""
    assert sequential_power(-8.0, per_interim=5, interims=1, alpha=0.05, replications=20) == 0.0


def test_more_systems_make_the_same_difference_harder_to_find() -> None:
    few, many = (
        sequential_power(1.5, systems=systems, per_interim=5, interims=1, alpha=0.05, replications=100)
        for systems in (2, 5)
    )
    assert many < few


def test_equal_systems_are_found_equal_within_a_wide_margin_alone() -> None:
    powers = [equivalence_power(m, per_interim=6, interims=2, alpha=0.05) for m in (0.01, 1.5, 8.0)]
    assert powers[0] < 0.1 < powers[1] < powers[2] == 1.0
