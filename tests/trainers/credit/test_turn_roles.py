"""Credit by the role of a turn, against numbers worked out by hand."""

import numpy as np

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task, ToolResult, ToolStatus
from agentenv.trainers.credit.turn_roles import FIRST, role_rewards, turn_roles

TASK = Task("t", "q")
SHARED = ("instrument", "plan")


def turn(name: str, reward: float = 0.0, status: ToolStatus = ToolStatus.OK) -> Turn:
    return Turn("a", tool_results=(ToolResult(name, status),), reward=reward)


def played(*turns: Turn) -> Trajectory:
    segments = tuple(Segment(SegmentKind.POLICY, (1,), t, logprobs=(-0.5,)) for t in range(len(turns)))
    return Trajectory(TASK, segments, turns, sum(t.reward for t in turns), EndReason.SUBMITTED)


ROLLED_BACK = turn("submit", 0.0, ToolStatus.ERROR)
CHANGED = turn("instrument", status=ToolStatus.ERROR)
LONG = (
    turn("submit", 0.25),
    turn("instrument"),
    turn("plan"),
    turn("submit", 0.5),
    CHANGED,
    turn("plan"),
    ROLLED_BACK,
)


def test_a_plan_earns_what_its_repair_earns_and_prints_only_where_they_change_nothing() -> None:
    assert role_rewards(LONG, SHARED) == [
        (FIRST, 0.25),
        ("instrument", 0.5),
        ("plan", 0.5),
        ("submit", 0.5),
        ("instrument", 0.0),
        ("plan", 0.0),
        ("submit", 0.0),
    ]
    changed = role_rewards((CHANGED, turn("plan"), turn("submit", 0.5)), SHARED)
    assert changed == [("instrument", 0.0), ("plan", 0.5), ("submit", 0.5)]


def test_a_plan_that_nothing_followed_earns_nothing_and_a_malformed_turn_has_no_role() -> None:
    malformed = turn("none", status=ToolStatus.FORMAT_ERROR)
    assert role_rewards((turn("submit", 0.5), malformed, turn("plan")), SHARED) == [
        (FIRST, 0.5),
        ("", 0.0),
        ("plan", 0.0),
    ]


def test_a_role_is_compared_with_itself_in_the_other_episodes() -> None:
    """First programs .25, .75 and 0: minus the mean of the two others -.125, .625 and -.5.

    Of repairs, ``LONG`` has two with a mean of .25, the third episode one of 1; each is compared with the mean of the
    other. The malformed turn of the third has the credit of the episode: 1 - (.75 + .75) / 2 = .25.
    """
    group = [
        played(*LONG),
        played(turn("submit", 0.75)),
        played(
            turn("submit", 0.0),
            turn("none", status=ToolStatus.FORMAT_ERROR),
            turn("plan"),
            turn("submit", 1.0),
        ),
    ]
    first, second, third = (list(values) for values in turn_roles(group))
    np.testing.assert_allclose(first, [-0.125, 0.5, -0.5, -0.5, 0.0, -1.0, -1.0])
    np.testing.assert_allclose(second, [0.625])
    np.testing.assert_allclose(third, [-0.5, 0.25, 0.75, 0.75])


def test_a_bad_first_program_earns_its_author_nothing() -> None:
    """An episode that reaches the same end by way of a worse first program has no more credit there."""
    straight, detour = (
        played(turn("submit", 1.0)),
        played(turn("submit", 0.0), turn("plan"), turn("submit", 1.0)),
    )
    right, wrong = turn_roles([straight, detour])
    assert right[0] == 1.0
    assert wrong[0] == -1.0
