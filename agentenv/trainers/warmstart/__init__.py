"""Small policies from nothing, by supervised learning."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.trainers.warmstart.expert_pool import record_expert

__all__ = [
    "record_expert",
]

__getattr__, __dir__ = lazy_exports(__name__)
