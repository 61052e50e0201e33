"""Who finds the first wrong step of an episode (SCOPE); a new verifier is a class and a row of ``VERIFIERS``."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import ToolStatus


class Flaw(NamedTuple):
    """The first step that was wrong."""

    turn: int
    cause: str
    """What was wrong with it."""
    advice: str
    """What a retry from there is told."""


class Verifier(Protocol):
    """Judges the steps of a finished episode."""

    async def first_flaw(self, trajectory: Trajectory, ceiling: float) -> Flaw | None:
        """The first wrong step; None where nothing was wrong.

        Args:
            trajectory: The episode.
            ceiling: The most that an episode can be rewarded with.

        Raises:
            Fault: the verifier failed.
        """


class RuleVerifier:
    """Reads typed results alone: the first turn that failed or after which nothing new was known, else a wrong last one."""

    async def first_flaw(self, trajectory: Trajectory, ceiling: float) -> Flaw | None:
        """See the class."""
        turns = trajectory.turns
        for step, turn in enumerate(turns):
            if flaw := _broken(step, turn):
                return flaw
            if step + 1 < len(turns) and _nothing_new(turn, turns[step + 1]):
                advice = f"Do not repeat this, it brings nothing new: {turn.action}"
                return Flaw(step, "the action brought nothing new", advice)
        if turns and trajectory.reward < ceiling:
            return Flaw(len(turns) - 1, "the last action was wrong", f"This was wrong: {turns[-1].action}")
        return None


def _broken(step: int, turn: Turn) -> Flaw | None:
    result = next((r for r in turn.tool_results if r.status is not ToolStatus.OK), None)
    if result is not None and result.status is not ToolStatus.FORMAT_ERROR:
        cause = result.error_class or str(result.status)
        return Flaw(
            step, f"{result.name} failed: {cause}", f"A call of {result.name} failed ({cause}): avoid it."
        )
    if result is not None or not turn.valid:
        return Flaw(step, "the action could not be acted on", "Write one complete action in the given form.")
    return None


def _nothing_new(turn: Turn, after: Turn) -> bool:
    """Whether the state after ``turn`` is the one before it."""
    return turn.anchor_key is not None and turn.anchor_key == after.anchor_key


VERIFIERS: dict[str, Callable[[], Verifier]] = {"rule": RuleVerifier}
"""By the name under which a strategy takes them as its reflector."""
