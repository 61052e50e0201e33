"""Redundant steps by hand: loops through known states, ways there and back that show something new, whose credit goes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from agentenv.core.trajectory import Trajectory
from agentenv.trainers.credit.redundancy import redundant_in, redundant_turns, without_redundant


@pytest.mark.parametrize(
    ("states", "redundant"),
    [
        ("", ""),
        ("A", "-"),
        ("AAB", "x--"),  # the first action changed nothing
        ("AAAB", "xx--"),
        ("ABAC", "----"),  # B was seen for the first time on the way
        ("ABABC", "-xx--"),  # from B back to B by way of A, which is known
        ("ABCBAD", "------"),  # C was new between the visits of B, and so were B and C between those of A
        ("ABCBCBD", "--xx---"),  # from C back to C by way of B
        ("ABCD", "----"),
    ],
)
def test_ways_back_through_known_states(states: str, redundant: str) -> None:
    assert redundant_turns(states) == [mark == "x" for mark in redundant]


def test_a_state_without_a_key_is_never_known() -> None:
    assert redundant_turns([None, None, "A", None, "A"]) == [False] * 5


def test_redundant_turns_lose_their_positive_credit_alone(turns: Callable[..., Trajectory]) -> None:
    made = turns([0.0, 0.0, 1.0])
    looped = replace(
        made,
        turns=tuple(replace(turn, anchor_key=key) for turn, key in zip(made.turns, "AAB", strict=True)),
    )
    own = [int(np.flatnonzero((made.turn_index == turn) & made.loss_mask)[0]) for turn in range(3)]
    won = without_redundant(looped, np.full(len(made.ids), 0.5))
    assert [won[place] for place in own] == [0.0, 0.5, 0.5]
    lost = without_redundant(looped, np.full(len(made.ids), -0.5))
    assert [lost[place] for place in own] == [-0.5] * 3
    values = np.full(len(made.ids), 0.5)
    assert without_redundant(made, values) is values


def test_of_an_infeasible_task_the_last_turn_alone_is_kept(turns: Callable[..., Trajectory]) -> None:
    """Reasoning and termination; what the policy looked at before is no part of the answer."""
    trajectory = turns([0.0, 0.0, 1.0], keys=["a", "b", "c"])
    assert redundant_in(trajectory) == [False, False, False]
    assert redundant_in(replace(trajectory, info={"infeasible": True})) == [True, True, False]
