"""Episodes that are played with a hint in their context and recorded without it, and what an expert is asked for."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from agentenv.core.env_calls import call_plain
from agentenv.core.rollout import EpisodeSpec, EpisodeState, never_fitted
from agentenv.core.trajectory import Origin, Trajectory
from agentenv.core.types import EndReason
from agentenv.errors import ConfigurationError
from agentenv.trainers.strategies.guidance import play_guided, unguided
from agentenv.trainers.strategies.rollout_context import RolloutContext

T = TypeVar("T")

_SECOND = 1 << 31  # seeds a second sample of a start apart from its first; starts have seeds below it


async def play_hinted(
    spec: EpisodeSpec, context: RolloutContext, parent: str, name: str, hint: Callable[[EpisodeSpec], str]
) -> list[Trajectory]:
    """One episode with a hint before its first turn, recorded without it; none without a hint that the context holds.

    Args:
        spec: The start of the episode.
        context: What the episode is played with; the caller holds one of its slots.
        parent: Id of the episode that was played there without a hint.
        name: Appended to ``parent`` to make the id of this episode.
        hint: Returns the hint; called after the reset.
    """
    episode = f"{parent}-{name}"
    state = await context.open(spec, episode)
    text = await ask_expert(state, context.config.deadline_s, partial(hint, spec)) or ""
    if state.ended is None and not text:
        return []
    state.spec = replace(spec, seed=spec.seed + _SECOND)
    try:
        guided = await play_guided(state, context, text or None)
    finally:
        context.policy.release(episode)
    if never_fitted(guided):
        return []
    solved = guided.valid and guided.reward >= spec.env.reward_ceiling
    did: dict[str, Any] = {"hinted": 1, "hinted_solved": int(solved)}
    lineage: dict[str, Any] = {"origin": Origin.RETRY, "parent_id": parent, "fork_turn": 0}
    return [replace(unguided(guided), info=guided.info | {"strategy": did}, **lineage)]


async def ask_expert(state: EpisodeState, seconds: float, ask: Callable[[], T]) -> T | None:
    """What the environment's expert says; None where the episode has ended, or ended because that failed.

    Raises:
        ConfigurationError: there is no expert for the task.
    """
    if state.ended is not None:
        return None
    try:
        return await call_plain("the environment's expert", seconds, ask)
    except ConfigurationError:
        raise
    except Exception as error:
        state.fail(EndReason.ENV_FAULT, error)
        return None
