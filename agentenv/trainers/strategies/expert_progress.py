"""How likely the policy is to go on as the expert does, after each turn of a tree (LayerTuning of Dynamic-TreeRPO).

Dynamic-TreeRPO, 2025, arXiv:2509.23352, turns the supervised loss of a layer into a progress reward. For turns this is the
mean log-prob of the expert's next turn where a turn has led to. Measured before the turn, it would be the same for all
branches of a state, and credit could not tell them apart.
"""

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from agentenv.core.conversation import Unrenderable
from agentenv.core.images import image_kwargs
from agentenv.core.rollout import EpisodeSpec, EpisodeState
from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.progress import progress_info
from agentenv.trainers.strategies.demonstrations import encoded_action
from agentenv.trainers.strategies.hinted_episodes import ask_expert
from agentenv.trainers.strategies.rollout_context import RolloutContext


async def expert_script(state: EpisodeState, context: RolloutContext) -> tuple[str, ...]:
    """What the expert does in the episode that has just begun; nothing where there is no expert for the task.

    Raises:
        ConfigurationError: the policy shows no tokenizer.
    """
    if getattr(context.policy, "tokenizer", None) is None:
        raise ConfigurationError(
            f"{type(context.policy).__name__} has no tokenizer, which progress needs to score the expert's actions: take "
            "hf:PATH"
        )
    return tuple(await ask_expert(state, context.config.deadline_s, partial(_actions, state.spec)) or ())


def _actions(spec: EpisodeSpec) -> Sequence[str]:
    return spec.env.expert() or ()


async def expert_progress(
    state: EpisodeState, script: Sequence[str], context: RolloutContext
) -> float | None:
    """Mean log-prob of the expert's next turn in the present state.

    None where it has none, the context has no room, or the model has no way to write it in its native form.

    Raises:
        PolicyFault: the engine failed.
    """
    turn = len(state.turns)
    if turn >= len(script):
        return None
    try:
        ids = encoded_action(script[turn], state, context.chat, context.policy.tokenizer)  # type: ignore[attr-defined]
    except Unrenderable:
        return None
    if not ids or len(state.ids) + len(ids) > context.config.context_tokens:
        return None
    images = image_kwargs(state.images)
    scores = await context.policy.score([*state.ids, *ids], temperature=context.config.temperature, **images)
    return fmean(scores[-len(ids) :])


def with_progress(
    leaf: Trajectory, progress: dict[int, float], group: Sequence[Trajectory], ceiling: float
) -> Trajectory:
    """``leaf`` with the progress of its turns and the share of the valid leaves of ``group`` that succeeded."""
    valid = [other.reward >= ceiling for other in group if other.valid]
    rate = sum(valid) / len(valid) if valid else 0.0
    return progress_info(leaf, progress, success_rate=rate)
