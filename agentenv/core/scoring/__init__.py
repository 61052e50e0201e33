"""Scorers of answers: pure functions of texts."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.core.scoring.scorers import SCORERS, Scorer, get_scorer

__all__ = [
    "SCORERS",
    "Scorer",
    "get_scorer",
]

__getattr__, __dir__ = lazy_exports(__name__)
