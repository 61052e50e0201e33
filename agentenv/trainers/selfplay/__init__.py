"""Self-play: games of roles, the pool of questions, and the checks on them."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.trainers.selfplay.games import GAMES, Game, get_game

__all__ = [
    "GAMES",
    "Game",
    "get_game",
]

__getattr__, __dir__ = lazy_exports(__name__)
