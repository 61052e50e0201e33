"""The reward of one step of semi-online training, in the published and the released form (UI-S1, Lu et al. 2025)."""

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
    """Returns the reward of one step, within [0, 1].

    Args:
        reply: The parsed reply of the policy; without an action its reward is 0.
        verdict: The comparison with the expert's action.
        weights: ``published`` (eq. 8) is 0.1 format + 0.4 [format] type + 0.5 [format and type] exact. ``released`` is 0.1
            format + 0.9 action, where action is 1 for an exact match, 0.5 for only the type and 0.1 otherwise, regardless of
            the format.
        annotation: The annotation of the expert's step, which only ``released`` uses: HARMFUL inverts the action's score,
            NEUTRAL makes it 0.5.
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
