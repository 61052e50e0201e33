"""Shared parts of graphical environments: actions, screens, recordings and matchers."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.envs.gui.matching import MATCHERS

__all__ = [
    "MATCHERS",
]

__getattr__, __dir__ = lazy_exports(__name__)
