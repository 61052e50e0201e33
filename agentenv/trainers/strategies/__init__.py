"""Rollout strategies: how the episodes of a question become its group."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.trainers.strategies.rollout_context import RolloutContext
    from agentenv.trainers.strategies.step_verifiers import VERIFIERS, Verifier
    from agentenv.trainers.strategies.strategies import STRATEGIES, get_strategy, play_groups

__all__ = [
    "STRATEGIES",
    "VERIFIERS",
    "RolloutContext",
    "Verifier",
    "get_strategy",
    "play_groups",
]

__getattr__, __dir__ = lazy_exports(__name__)
