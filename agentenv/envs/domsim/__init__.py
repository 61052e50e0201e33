"""A miniature desktop that needs no browser."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.envs.domsim.env import DomSim

__all__ = [
    "DomSim",
]

__getattr__, __dir__ = lazy_exports(__name__)
