"""One game of TextArena, kept apart from every other one and from the process.

TextArena draws from Python's global generator, and its games print. In its modules the names ``random`` and ``print`` are
therefore bound to stand-ins: while a thread plays a game, they draw from the generator of this game and print nothing. For
everybody else they are what they always were.
"""

import builtins
import contextlib
import copy
import functools
import importlib
import random
import sys
import threading
import warnings
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentenv.envs.textarena_games import FAMILIES, Family, family_name
from agentenv.errors import ConfigurationError, MissingExtra

MOST_CHARS = 10_000
"""Characters of an action that a game is given, counted from its end: every game keeps all that its player has written."""
UNSOLVED_AT_MOST = 0.95
"""What a game that was not solved earns at most, as in TextArena's FrozenLake; see ``Play.score``."""
_MOVE = "PLAYER_ACTION"
_UNREAD = "The move could not be read."
# Built with a game, equal in all of its episodes and never changed: copies share them.
_SHARED = ("word_list", "dictionary", "universal_word_list", "word_data", "game_board_data")
_playing = threading.local()
_loading = threading.RLock()


class _Draws:
    """Stands for the module ``random``: draws from the generator of the game that this thread plays."""

    Random = random.Random

    def __getattr__(self, name: str) -> Any:
        getattr(random, name)
        return functools.partial(_draw, name)


def _draw(name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(getattr(_playing, "generator", random), name)(*args, **kwargs)


class _InOrder(dict[Hashable, None]):
    """Stands for ``set`` in games that go through the moves of an action: keeps the order in which these were written."""

    def __init__(self, items: Iterable[Hashable] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    def add(self, item: Hashable) -> None:
        """Adds ``item`` at the end, unless it is there."""
        self[item] = None


_DRAWS = _Draws()


def _print(*args: Any, **kwargs: Any) -> None:
    if not hasattr(_playing, "generator"):
        builtins.print(*args, **kwargs)


@contextlib.contextmanager
def _drawing_from(generator: random.Random) -> Iterator[None]:
    _playing.generator = generator
    try:
        yield
    finally:
        del _playing.generator


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Imports leave no trace in the warning filters and the global generator, and none of their warnings is shown."""
    before = random.getstate()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(before)


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Games download word lists as they are made, also where these are there; here they do not."""
    import nltk

    download = nltk.download
    nltk.download = lambda *args, **kwargs: False
    try:
        yield
    finally:
        nltk.download = download


def load() -> Any:
    """The module ``textarena``.

    Raises:
        MissingExtra: it, or a library that it needs, is not installed.
    """
    with _loading:
        if "textarena" not in sys.modules:
            try:
                with _quietly():
                    importlib.import_module("textarena")
            except ImportError as error:
                raise MissingExtra.of("textarena", "textarena") from error
        return sys.modules["textarena"]


def checked_game(id: str) -> Family:
    """The family of the game ``id``, which can be played on this machine.

    Raises:
        MissingExtra: TextArena is not installed.
        UnknownName: TextArena has no such game.
        ConfigurationError: the game cannot be played here, or its words are not on this machine.
    """
    family = _family(id)
    if missing := [name for name, place in family.words if not _is_there(place)]:
        names = " ".join(missing)
        raise ConfigurationError(
            f"the game {id!r} of TextArena takes word lists that are not on this machine: python -m nltk.downloader {names}"
        )
    return family


@functools.cache
def _family(id: str) -> Family:
    load()
    from textarena.envs.registration import ENV_REGISTRY

    return FAMILIES[family_name(id, ENV_REGISTRY)]


def _is_there(place: str) -> bool:
    import nltk

    try:
        nltk.data.find(place)
    except LookupError:
        return False
    return True


@functools.cache
def _made(id: str) -> Any:
    """The game ``id`` before its first reset, of which every episode has a copy."""
    textarena, family = load(), checked_game(id)
    spec = textarena.envs.registration.ENV_REGISTRY[id]
    module, _, _ = str(spec.entry_point).partition(":")
    with _quietly(), _offline():
        importlib.import_module(module)
        package = module.removesuffix(".env")
        for name, loaded in list(sys.modules.items()):
            if name in ("textarena.core", "textarena.state") or name.startswith(f"{package}."):
                _isolate(vars(loaded), family)
        with _drawing_from(random.Random(0)):
            return textarena.make(f"{id}-raw")


def _isolate(names: dict[str, Any], family: Family) -> None:
    names["print"] = _print
    if names.get("random") is random:
        names["random"] = _DRAWS
    if family.unordered:
        names["set"] = _InOrder


@functools.cache
def _adds_brackets(id: str) -> bool:
    """Whether TextArena puts an action without brackets between brackets, which it does for most games."""
    from textarena.envs.registration import ENV_REGISTRY
    from textarena.wrappers import ActionFormattingWrapper

    return ActionFormattingWrapper in (ENV_REGISTRY[id].default_wrappers or ())


@dataclass
class Play:
    """One game that is being played; a deep copy of it goes on by itself."""

    id: str
    """The name of the game."""
    game: Any
    """TextArena's own environment, without wrappers."""
    generator: random.Random = field(default_factory=random.Random)

    @classmethod
    def start(cls, id: str, seed: int) -> "Play":
        """Deals the game ``id`` under ``seed``.

        Raises:
            MissingExtra: TextArena is not installed.
            UnknownName: TextArena has no such game.
            ConfigurationError: the game cannot be played here, or its words are not on this machine.
        """
        with _loading:
            made = _made(id)
        play = copy.deepcopy(cls(id, made, random.Random(seed)))
        with _drawing_from(play.generator):
            play.game.reset(num_players=1, seed=seed)
        return play

    def __deepcopy__(self, memo: dict[int, Any]) -> "Play":
        shared = (vars(self.game).get(name) for name in _SHARED)
        memo.update({id(value): value for value in shared if value is not None})
        return Play(self.id, copy.deepcopy(self.game, memo), copy.deepcopy(self.generator, memo))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes what pickle kept; in a new process, the modules of the game are set apart here."""
        self.__dict__.update(state)
        with _loading:
            _made(self.id)

    @property
    def family(self) -> Family:
        """What is to be known of the game."""
        return _family(self.id)

    @property
    def over(self) -> bool:
        """Whether the game has ended."""
        return bool(self.game.state.done)

    @property
    def lost_by_invalid_moves(self) -> bool:
        """Whether it has ended because of invalid moves."""
        return bool(self.game.state.game_info[0]["invalid_move"])

    @property
    def reason(self) -> str:
        """TextArena's sentence on why the game has ended; empty while it goes on."""
        return str(self.game.state.game_info[0].get("reason", ""))

    def news(self) -> str:
        """What the game has said since it was last asked, as TextArena's default wrapper writes it.

        The moves of the player are left out: the policy has written them itself. Some games note them with text and kind
        exchanged.
        """
        said = self.game.state.get_current_player_observation()
        told = [text for _, text, kind in said if getattr(kind, "name", _MOVE) != _MOVE]
        return "\n".join(f"[GAME] {text}" for text in told)

    def act(self, action: str) -> bool:
        """Makes the move that ``action`` holds; whether the game could act on it.

        What stands before ``</think>`` is not part of the move. A text that makes TextArena raise an exception, such as a
        number of 5,000 digits, leaves the game where it was and counts as one of its invalid moves.
        """
        text = action.rpartition("</think>")[2][-MOST_CHARS:]
        if _adds_brackets(self.id) and "[" not in text and "]" not in text:
            text = f"[{text}]"
        before, errors = copy.deepcopy(self), self.game.state.error_count
        try:
            with _drawing_from(self.generator):
                self.game.step(text)
        except Exception:
            self.game, self.generator = before.game, before.generator
            self.game.state.set_invalid_move(reason=_UNREAD, reward=0.0)
            self.game.state.step()
        return self.game.state.error_count <= errors and not self.lost_by_invalid_moves

    def score(self, partial: bool) -> tuple[float, bool]:
        """The reward of a game that has ended, and whether it was solved.

        Args:
            partial: Whether a game that was not solved earns TextArena's own reward where that is a share of the work,
                from 0 to `UNSOLVED_AT_MOST`; otherwise it earns 0.
        """
        if not self.lost_by_invalid_moves and self.family.solved(self.game):
            return 1.0, True
        own = self.game.state.rewards[0]
        # Some games hand their reason over in place of their reward where a move is invalid.
        if not partial or not isinstance(own, int | float):
            return 0.0, False
        return min(max(float(own), 0.0), UNSOLVED_AT_MOST), False
