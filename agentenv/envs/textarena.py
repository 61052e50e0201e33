"""``agentenv/TextArena-v0``: the games of TextArena for one player (Guertler et al. 2025, arXiv:2504.11442).

An action is plain text that holds a move between square brackets, such as ``[up]``. The first observation is the game's own
prompt, each later one what the game says about the last move. A task names a game and its seed and nothing else, so that it
can be played again from them alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from agentenv.core.env import Env
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task
from agentenv.data.splits import in_split
from agentenv.envs.textarena_play import Play, checked_game
from agentenv.errors import ConfigurationError, DatasetError, EnvFault

GAMES = ("FrozenLake-v0", "GuessTheNumber-v0")
"""What is played unless games are named: two that an expert exists for."""
_SEEDS = 2**31


@dataclass
class TextArenaState:
    """All that changes within an episode."""

    task: Task
    play: Play
    shown: str
    """What the game said last."""
    turns: int = 0


class TextArena(Env[TextArenaState]):
    """Plays one game; reward 1 where it is solved, 0 where not."""

    scorers: ClassVar[tuple[str, ...]] = ("solved", "reward")
    reward_options: ClassVar[frozenset[str]] = frozenset({"partial_reward"})
    client_data: ClassVar[Mapping[str, Any]] = {"game": str, "seed": int}
    no_expert: ClassVar[str] = (
        "there are experts for FrozenLake, GuessTheNumber, Sudoku, ThreeCardMonte and TowerOfHanoi alone"
    )

    def __init__(
        self,
        *,
        games: Sequence[str] = GAMES,
        tasks: Sequence[Task] | None = None,
        max_turns: int = 128,
        partial_reward: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Builds an environment over games.

        Args:
            games: Names of games, such as ``Sudoku-v0-easy``; an episode without a task draws one of them, and a seed.
            tasks: Tasks with ``data["game"]`` and ``data["seed"]``, of which an episode without a task draws one.
            max_turns: Turns after which an episode is cut. Most games have a limit of their own besides, which their
                prompt states and in which invalid moves do not count; some, such as 2048, have none.
            partial_reward: Whether a game that is lost earns TextArena's own reward, which is a share of the work that was
                done: the way to the goal that was covered in FrozenLake, the right cells of Sudoku, Crosswords and
                LogicPuzzle, safe cells of Minesweeper, boxes of Sokoban, disks of TowerOfHanoi, letters of Hangman and
                WordLadder, words of WordSearch, lights that went out, pegs that are gone, clues of Slitherlink, letters of
                Cryptarithm that have a digit, hands of Blackjack that were won, how near the last guess of GuessTheNumber,
                Mastermind or Wordle was or the best number of Countdown, how far the red car of RushHour went, and score
                and largest tile of 2048. It is kept between 0 and 0.95, because some of these shares reach 1 without a
                solution. Secretary and ThreeCardMonte pay a solution alone. An episode that ``max_turns`` cuts
                earns 0.
            render_mode: ``ansi`` or None.

        Raises:
            MissingExtra: TextArena is not installed.
            UnknownName: TextArena has no such game.
            ConfigurationError: a game cannot be played here, none is named, or ``max_turns`` is below 1.
        """
        super().__init__(render_mode=render_mode)
        if max_turns < 1:
            raise ConfigurationError(f"max_turns={max_turns} must be at least 1")
        self._games = _checked_games(games)
        self._tasks = tuple(tasks or ())
        self._max_turns, self._partial = max_turns, partial_reward

    @classmethod
    def make_tasks(
        cls, n: int, *, seed: int = 0, split: str = "train", games: Sequence[str] = GAMES
    ) -> Sequence[Task]:
        """``n`` tasks, of the games in turn. No two splits share a seed of a game.

        A game of few positions (there are 20 numbers to guess in ``GuessTheNumber-v0``) repeats them under other seeds.

        Raises:
            MissingExtra: TextArena is not installed.
            UnknownName: no such split, or TextArena has no such game.
            ConfigurationError: a game cannot be played here, none is named, or it is one puzzle under every seed and the
                split is not ``train``.
        """
        for game in (games := _checked_games(games)):
            if checked_game(game).one_puzzle and split != "train":
                raise ConfigurationError(
                    f"the game {game!r} of TextArena is the same puzzle under every seed, so it belongs to the split "
                    f"'train' alone, and {split!r} was asked for"
                )
        rng, tasks = np.random.default_rng(seed), dict[str, Task]()
        while len(tasks) < n:
            task = make_task(games[len(tasks) % len(games)], int(rng.integers(_SEEDS)), split)
            if in_split(task.id, split):
                tasks[task.id] = task
        return list(tasks.values())

    def held_tasks(self) -> Sequence[Task]:
        """The tasks that it was given."""
        return self._tasks

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, one of its tasks, or a game and a seed that are drawn.

        Raises:
            DatasetError: the task names no game, or no whole number from 0 to 2147483647 as its seed.
            UnknownName: TextArena has no such game.
            ConfigurationError: the game cannot be played here.
            EnvFault: TextArena failed to deal the game.
        """
        super().reset(seed=seed, options=options)
        drawn = self._games[int(self.np_random.integers(len(self._games)))]
        own = make_task(drawn, int(self.np_random.integers(_SEEDS)), "")
        task = self.choose_task(options) or own
        game, number = task.data.get("game"), task.data.get("seed")
        if not isinstance(game, str) or type(number) is not int or not 0 <= number < _SEEDS:
            raise DatasetError(
                f"task {task.id!r} has the game {game!r:.80} and the seed {number!r:.80}: give it the name of a game in "
                f"data['game'] and a whole number from 0 to {_SEEDS - 1} in data['seed']"
            )
        checked_game(game)
        try:
            play = Play.start(game, number)
        except Exception as error:
            raise EnvFault(
                f"TextArena could not deal {game!r} under seed {number}: {type(error).__name__}: {error}"
            ) from error
        self.state = TextArenaState(task, play, play.news())
        return (Message("user", self.state.shown),), {"task_id": task.id}

    def step(self, action: str) -> Step:
        """Makes the move that ``action`` holds.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
        """
        self.check_running(action)
        state, play = self.state, self.state.play
        valid = play.act(action)
        state.turns += 1
        state.shown = play.news()
        said = (Message("user", state.shown),) if state.shown else ()
        if play.over:
            reward, solved = play.score(self._partial)
            end = EndReason.PARSE_ERROR if play.lost_by_invalid_moves else EndReason.SUBMITTED
            return self.result(said, reward=reward, end=end, valid=valid, solved=solved, outcome=play.reason)
        if state.turns >= self._max_turns:
            return self.result(said, end=EndReason.TURN_LIMIT, truncated=True, valid=valid, solved=False)
        return self.result(said, valid=valid)

    def expert(self) -> Sequence[str] | None:
        """Moves that solve the game, where its family has an expert."""
        expert = self.state.play.family.expert
        return None if expert is None else expert(self.state.play.game)

    def render(self) -> str:
        """The game, how many turns were taken, and what it said last."""
        return f"{self.state.task.question} [{self.state.turns} turns]\n{self.state.shown}"


def make_task(game: str, seed: int, split: str) -> Task:
    """The task of the game ``game`` under ``seed``."""
    question = f"Play {game} of TextArena under seed {seed}."
    return Task(f"{game}-{seed}", question, (), split, {"game": game, "seed": seed})


def _checked_games(games: Sequence[str]) -> tuple[str, ...]:
    if isinstance(games, str) or not games:
        raise ConfigurationError(f"games={games!r} must be a list of names of games, one at least")
    for game in games:
        checked_game(game)
    return tuple(games)
