"""The reward of one step of semi-online training, as published and as released (UI-S1, Lu et al. 2025). Pure functions."""

from typing import Literal

from agentenv.envs.gui.actions import ParsedAction
from agentenv.envs.gui.matching import MatchResult
from agentenv.envs.gui.recordings import Annotation

Weights = Literal["published", "released"]


def step_reward(
    reply: ParsedAction,
    verdict: MatchResult,
    *,
    weights: Weights = "published",
    annotation: Annotation = "GOOD",
) -> float:
    """What one step earns, within [0, 1].

    Args:
        reply: What was read of the policy's text; without an action it earns 0.
        verdict: The comparison with the expert's action.
        weights: ``published`` (eq. 8) is 0.1 format + 0.4 [format] type + 0.5 [format and type] exact. ``released`` is 0.1
            format + 0.9 action, where action is 1 for exact, 0.5 for the type alone, 0.1 for neither, whatever the format.
        annotation: Of the expert's step; only ``released`` reads it: HARMFUL turns the action's score round, NEUTRAL makes
            it 0.5.
    """
    if reply.action is None:
        return 0.0
    if weights == "published":
        if not reply.format_ok:
            return 0.0
        return 0.1 + 0.4 * verdict.type_ok + 0.5 * (verdict.type_ok and verdict.exact)
    act = 1.0 if verdict.exact else 0.5 if verdict.type_ok else 0.1
    if annotation != "GOOD":
        act = 1 - act if annotation == "HARMFUL" else 0.5
    return 0.1 * bool(reply.thought) + 0.9 * act
