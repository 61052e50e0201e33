"""Verifiers of steps: which step of a search is the first that the evidence speaks against."""

import asyncio
from collections.abc import Sequence

import pytest

from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import EndReason, Task, ToolResult, ToolStatus
from agentenv.errors import ConfigurationError
from agentenv.trainers.strategies.step_verifiers import VERIFIERS, Flaw

TASK = Task("t", "Where was the builder of Iria born?", ("Orun",), data={"supporting_ids": ("1", "2")})


def search(*found: str) -> Turn:
    result = ToolResult("search", ToolStatus.OK, "q", data={"ids": [list(found)]})
    return Turn("<search>q</search>", tool_results=(result,))


ANSWER = Turn("<answer>Iria</answer>")
BROKEN = Turn("<search>", tool_results=(ToolResult("none", ToolStatus.FORMAT_ERROR),))


def flaw_of(turns: Sequence[Turn], reward: float = 0.0, task: Task = TASK) -> Flaw | None:
    episode = Trajectory(task, (), tuple(turns), reward, EndReason.ANSWERED)
    return asyncio.run(VERIFIERS["evidence"]().first_flaw(episode, 1.0))


@pytest.mark.parametrize(
    ("turns", "step", "cause"),
    [
        ((search("1", "9"), search("8", "9"), search("2"), ANSWER), 1, "no further evidence"),
        ((search("1"), search("1"), ANSWER), 1, "no further evidence"),  # it is known already
        ((search("1"), ANSWER), 1, "1 of 2 needed"),
        ((ANSWER,), 0, "2 of 2 needed"),
        ((search("1"), search("2", "1"), ANSWER), 2, "last action"),
        ((search("1"), BROKEN, ANSWER), 1, "could not be acted on"),
        ((search("1"), search("2")), 1, "last action"),  # it never answered
    ],
)
def test_the_first_step_that_the_evidence_speaks_against(
    turns: Sequence[Turn], step: int, cause: str
) -> None:
    found = flaw_of(turns)
    assert found is not None
    assert found.turn == step
    assert cause in found.cause


def test_a_success_is_flawed_only_by_a_search_for_nothing() -> None:
    assert flaw_of((search("1"), search("2"), ANSWER), reward=1.0) is None
    assert flaw_of((search("1"), ANSWER), reward=1.0) is None  # known without looking it up
    wasteful = flaw_of((search("9"), search("1"), search("2"), ANSWER), reward=1.0)
    assert wasteful is not None
    assert wasteful.turn == 0


def test_a_question_that_does_not_say_what_it_needs_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'t2'"):
        flaw_of((ANSWER,), task=Task("t2", "?"))
