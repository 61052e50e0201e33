"""Progress towards the expert by hand: who is compared with whom, how much a failing group weighs, what stays as it is."""

from collections.abc import Callable

import numpy as np
import pytest

from agentenv.core.trajectory import Trajectory
from agentenv.trainers.credit.group_statistics import Values
from agentenv.trainers.credit.progress import progress_credit, progress_info, progress_weight

Turns = Callable[..., Trajectory]


def zeros(group: list[Trajectory]) -> list[Values]:
    return [np.zeros(len(t.ids)) for t in group]


def by_turn(group: list[Trajectory], credit: list[Values]) -> list[list[float]]:
    return [
        [float(values[t.turn_index == turn][-1]) for turn in range(len(t.turns))]
        for t, values in zip(group, credit, strict=True)
    ]


def test_progress_is_standardised_among_the_turns_of_a_depth(turns: Turns) -> None:
    """Two leaves of one first turn and one of another: a shared turn counts once.

    Depth 1: -1 and -3, so 1 and -1 over sqrt(2): .7071. Depth 2: -1, -2 and -3, so 1, 0 and -1. lambda = 2 (1 - 1/4) = 1.5.
    """
    group = [
        progress_info(turns([0.0, 1.0], id="a"), {0: -1.0, 1: -1.0}, success_rate=0.25),
        progress_info(
            turns([0.0, 0.0], id="b", parent_id="a", fork_turn=1), {0: -1.0, 1: -2.0}, success_rate=0.25
        ),
        progress_info(turns([0.0, 0.0], id="c"), {0: -3.0, 1: -3.0}, success_rate=0.25),
    ]
    found = by_turn(group, progress_credit(group, zeros(group), weight=2.0))
    root = 1.5 / np.sqrt(2)
    assert found[0] == pytest.approx([root, 1.5], abs=1e-5)
    assert found[1] == pytest.approx([root, 0.0], abs=1e-5)
    assert found[2] == pytest.approx([-root, -1.5], abs=1e-5)


def test_it_is_added_and_a_turn_without_progress_keeps_its_credit(turns: Turns) -> None:
    group = [
        progress_info(turns([0.0, 1.0], id="a"), {0: -1.0}, success_rate=0.5),
        progress_info(turns([0.0, 0.0], id="b"), {0: -3.0}, success_rate=0.5),
        turns([0.0], id="c"),
    ]
    credit = [np.full(len(t.ids), 0.25) for t in group]
    found = by_turn(group, progress_credit(group, credit, weight=1.0))
    root = 0.5 / np.sqrt(2)
    assert found[0] == pytest.approx([0.25 + root, 0.25], abs=1e-5)
    assert found[1] == pytest.approx([0.25 - root, 0.25], abs=1e-5)
    assert found[2] == [0.25]
    same = progress_credit(group, credit, weight=0.0)
    assert all(mine is before for mine, before in zip(same, credit, strict=True))


def test_a_group_that_succeeds_weighs_nothing(turns: Turns) -> None:
    won = progress_info(turns([1.0], id="a"), {0: -1.0}, success_rate=1.0)
    lost = progress_info(turns([1.0], id="b"), {0: -2.0}, success_rate=1.0)
    assert by_turn([won, lost], progress_credit([won, lost], zeros([won, lost]), weight=3.0)) == [
        [0.0],
        [0.0],
    ]
    assert progress_weight(won, 3.0) == 0.0
    assert progress_weight(progress_info(turns([1.0]), {}, success_rate=0.25), 2.0) == 1.5
    assert progress_weight(turns([1.0]), 2.0) is None
