"""The single-player games of TextArena: which of them can be played here, when one is solved, and what an expert does.

Everything here was read in the source of textarena 0.7.4 and is tested against the installed release. A game's *family* is
its folder in ``textarena.envs``, such as ``FrozenLake`` for ``FrozenLake-v0-hardcore``.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.errors import ConfigurationError, check_known

_WORDS = ("words", "corpora/words")
_TAGGER = ("averaged_perceptron_tagger_eng", "taggers/averaged_perceptron_tagger_eng")


def _paid_in_full(game: Any) -> bool:
    return bool(game.state.rewards[0] == 1.0)


@dataclass(frozen=True)
class Family:
    """What is to be known of the games of one folder of ``textarena.envs``."""

    solved: Callable[[Any], bool] = _paid_in_full
    """Whether a game that has ended was solved."""
    one_puzzle: bool = False
    """Whether every seed gives the same game."""
    unordered: bool = False
    """Whether it goes through the moves of an action in the order of a Python set, which differs between processes."""
    words: tuple[tuple[str, str], ...] = ()
    """What it reads of NLTK: names to download by, and where NLTK looks for them."""
    expert: Callable[[Any], Sequence[str]] | None = None
    """From a game at its start to the actions that solve it."""


def walk(game: Any) -> list[str]:
    """A shortest way over the frozen lake that avoids the holes."""
    grid, start = game.state.game_state["grid"], game.state.game_state["player_pos"]
    ways: dict[tuple[int, int], list[str]] = {start: []}
    queue = deque([start])
    while queue:
        row, column = queue.popleft()
        if grid[row][column] == "G":
            return ways[row, column]
        for name, (down, right) in game.actions.items():
            cell = (row + down, column + right)
            inside = min(cell) >= 0 and max(cell) < game.size
            if inside and cell not in ways and grid[cell[0]][cell[1]] != "H":
                ways[cell] = [*ways[row, column], f"[{name}]"]
                queue.append(cell)
    return []


def bisect(game: Any) -> list[str]:
    """The guesses of a player who halves what is left."""
    low, high, guesses = game.min_number, game.max_number, list[str]()
    while not guesses or guesses[-1] != f"[{game.game_number}]":
        middle = (low + high) // 2
        guesses.append(f"[{middle}]")
        low, high = (middle + 1, high) if middle < game.game_number else (low, middle - 1)
    return guesses


def _move_tower(disks: int, source: str, target: str, spare: str) -> list[str]:
    if disks == 0:
        return []
    return [
        *_move_tower(disks - 1, source, spare, target),
        f"[{source} {target}]",
        *_move_tower(disks - 1, spare, target, source),
    ]


def fill_in(game: Any) -> list[str]:
    """Every empty cell of a Sudoku, row by row."""
    board, solution = game.state.game_state["board"], game.full_grid
    cells = ((row, column) for row in range(9) for column in range(9) if board[row][column] == 0)
    return [f"[{row + 1} {column + 1} {solution[row][column]}]" for row, column in cells]


FAMILIES: dict[str, Family] = {
    # Where many small tiles add up, the share of the work reaches 1 without the tile that wins.
    "Game2048": Family(solved=lambda game: bool(game._max_tile() >= game.target_tile)),
    "Blackjack": Family(),
    "Countdown": Family(one_puzzle=True),
    "Crosswords": Family(unordered=True),
    "Cryptarithm": Family(one_puzzle=True),
    "FrozenLake": Family(expert=walk),
    "GuessTheNumber": Family(expert=bisect),
    "Hangman": Family(words=(_WORDS,)),
    "LightsOut": Family(),
    "LogicPuzzle": Family(unordered=True),
    "Mastermind": Family(),
    "Minesweeper": Family(),
    "PegJump": Family(one_puzzle=True),
    "RushHour": Family(),
    "Secretary": Family(),
    # Every clue can be satisfied without one closed loop; the share of the clues is 1 then.
    "Slitherlink": Family(solved=lambda game: bool(game._is_solved())),
    "Sokoban": Family(),
    "Sudoku": Family(expert=fill_in),
    "ThreeCardMonte": Family(expert=lambda game: [f"[{game.ball_pos}]"]),
    "TowerOfHanoi": Family(one_puzzle=True, expert=lambda game: _move_tower(game.num_disks, "A", "C", "B")),
    "WordLadder": Family(words=(_WORDS,)),
    "WordSearch": Family(words=(_WORDS,), unordered=True),
    "Wordle": Family(words=(_WORDS, _TAGGER)),
}
"""The families that are played."""

_ASKS_A_MODEL = "a model behind openrouter.ai answers its questions, which takes the network and a key"
REFUSED: dict[str, str] = {
    "Bandit": "no button wins it, and of the others the worse pay more",
    "FifteenPuzzle": "it calls a method that does not exist when it is solved, and half of its puzzles have no solution",
    "GuessWho": _ASKS_A_MODEL,
    "Klondike": "its source in textarena 0.7.4 is no valid Python",
    "Set": "it pays for one card that is named three times",
    "TwentyQuestions": _ASKS_A_MODEL,
    "UltimateTexasHoldem": "an episode is a thousand rounds, and Python 3.11 cannot read its source",
}
"""Why the other families of one player are not."""

_VARIANTS = ("-train", "-raw")


def family_name(id: str, registry: Mapping[str, Any]) -> str:
    """The family of the game ``id``.

    Args:
        id: A name under which TextArena registers a game, such as ``Wordle-v0-hardcore``.
        registry: TextArena's ``ENV_REGISTRY``.

    Raises:
        UnknownName: TextArena has no such game; the error says which playable one is nearest.
        ConfigurationError: the game cannot be played here; the error says why.
    """
    for variant in _VARIANTS:
        if id in registry and id.endswith(variant):
            raise ConfigurationError(
                f"{id!r} is the game {id.removesuffix(variant)!r} with its history shown in another way, and in an episode "
                f"the history is what the policy has read: name {id.removesuffix(variant)!r}"
            )
    families = {name: str(spec.entry_point).split(".")[2] for name, spec in registry.items()}
    if id not in families:
        playable = [name for name in families if families[name] in FAMILIES and not name.endswith(_VARIANTS)]
        check_known("game of TextArena", id, playable)
    if (family := families[id]) in FAMILIES:
        return family
    reason = REFUSED.get(family, "it takes more than one player, or is newer than textarena 0.7.4")
    raise ConfigurationError(f"the game {id!r} of TextArena cannot be played here: {reason}")
