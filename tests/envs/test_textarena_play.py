"""Games of TextArena side by side: replay, copies, the state of the process, and texts that no game can be broken by."""

import copy
import json
import os
import pickle
import random
import subprocess
import sys
import threading
from typing import Any

import pytest

from agentenv.core.types import EndReason

pytest.importorskip("textarena")

from agentenv.envs.textarena_play import MOST_CHARS, Play
from tests.envs.test_textarena import opened, playable, played, text_of


def some_moves(game: str, seed: int) -> list[str]:
    """Moves of many forms, most of which some game can act on."""
    rng = random.Random(f"{game} {seed}")
    forms = [
        "[up]",
        "[left]",
        "[hit]",
        "[stand]",
        "[red]",
        "[continue]",
        "[A C]",
        "[A B]",
        "[h 0 0]",
        "[A+]",
        "[S 5]",
    ]
    forms += [f"[{a}]" for a in (1, 2, 7)] + [f"[{a} {b}]" for a in (0, 4) for b in (1, 6)]
    forms += ["[1 2 3]", "[1 2 3 4]", "[0 1 +]", "[4 4 a] [5 5 b] [6 6 c]", "nothing"]
    return rng.choices(forms, k=12)


def trace(game: str, seed: int) -> list[Any]:
    """What an episode says, its chances of a loss by invalid moves taken away so that it goes on."""
    play = Play.start(game, seed)
    said: list[Any] = [play.news()]
    for move in some_moves(game, seed):
        if play.over:
            break
        said += [play.act(move), play.news()]
        play.game.state.error_count = 0
    return [*said, play.over, play.score(True) if play.over else None]


@pytest.mark.parametrize("game", playable())
def test_equal_seeds_play_equal_games_and_copies_go_on_alone(game: str) -> None:
    for seed in (0, 1):
        assert trace(game, seed) == trace(game, seed)
    play = Play.start(game, 3)
    play.news()
    twin = copy.deepcopy(play)
    ends = []
    for one in (play, twin):
        ends.append([(one.act(move), one.news()) for move in some_moves(game, 3) if not one.over])
    assert ends[0] == ends[1]


def test_equal_seeds_play_equal_games_in_processes_that_hash_differently() -> None:
    """Some games go through the moves of an action in the order of a set."""
    games = ["Crosswords-v0", "LogicPuzzle-v0", "Sokoban-v0", "RushHour-v0", "Slitherlink-v0", "Secretary-v0"]
    program = (
        "import json, sys\n"
        "from agentenv.envs.textarena_play import Play\n"
        "for game in json.loads(sys.argv[1]):\n"
        "    play = Play.start(game, 1)\n"
        "    print(play.news())\n"
        "    board = play.game.state.game_state.get('board')\n"
        "    moves = [f'[{r} {c} {a}]' for r in range(9) for c in range(9) for a in 'ab']\n"
        "    grids = getattr(play.game, 'game_board', None) or {}\n"
        "    moves = [f'[{r} {c} X]' for g in grids.values() for r in g for c in g[r]] or moves\n"
        "    print(play.act(' '.join(moves)), play.news())\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program, json.dumps(games)],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(said[0]) > 1000


def test_several_moves_of_one_action_are_made_as_they_are_written() -> None:
    """The first one that is wrong ends the action, so what is written before it is on the board."""
    env, _ = opened("Crosswords-v0")
    game = env.state.play.game
    found = game.state.game_state["solution"]
    cells = [(r, c) for r, row in enumerate(found) for c, letter in enumerate(row) if letter != "."]
    right = [f"[{r} {c} {found[r][c]}]" for r, c in cells]
    wrong = f"[{cells[4][0]} {cells[4][1]} {'z' if found[cells[4][0]][cells[4][1]] != 'z' else 'y'}]"
    env.step(" ".join([*right[:4], wrong, *right[5:8]]))
    board = game.state.game_state["board"]
    assert [board[r][c] != "_" for r, c in cells[:8]] == [True] * 4 + [False] * 4


def test_the_generators_and_the_filters_of_the_process_stay_as_they_are() -> None:
    program = (
        "import random, warnings\n"
        "import agentenv.core.env\n"
        "random.seed(5)\n"
        "filters, state = list(warnings.filters), random.getstate()\n"
        "from agentenv.envs.textarena import TextArena\n"
        "env = TextArena(games=['2048-v0', 'Blackjack-v0', 'Slitherlink-v0'])\n"
        "for seed in range(6):\n"
        "    env.reset(seed=seed)\n"
        "    env.step('[up]')\n"
        "assert random.getstate() == state\n"
        "assert warnings.filters == filters\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_games_side_by_side_do_not_disturb_each_other_or_who_draws_beside_them() -> None:
    alone = {seed: trace("2048-v0", seed) for seed in range(6)}
    found: dict[int, list[Any]] = {}
    drawn: list[float] = []
    stop = threading.Event()

    def play(seed: int) -> None:
        found[seed] = trace("2048-v0", seed)

    def draw() -> None:
        random.seed(1)
        while not stop.is_set():
            drawn.append(random.random())

    threads = [threading.Thread(target=play, args=(seed,)) for seed in alone]
    beside = threading.Thread(target=draw)
    beside.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    beside.join()
    assert found == alone
    expected = random.Random(1)
    assert drawn == [expected.random() for _ in drawn]


def test_a_game_prints_nothing_and_textarena_used_directly_is_as_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import textarena

    env, _ = opened("LogicPuzzle-v0")
    played(env, ["[a b X]"])
    assert capsys.readouterr() == ("", "")
    own = textarena.make("LogicPuzzle-v0-raw")
    random.seed(3)
    own.reset(num_players=1)  # draws from the generator of the process
    random.seed(3)
    first = own.clues
    own.reset(num_players=1)
    assert own.clues == first
    own.step("[a b X]")
    assert capsys.readouterr().out.startswith("Correct: ")


def test_an_episode_can_be_pickled_in_its_middle() -> None:
    for game in playable():
        env, _ = opened(game)
        env.step(some_moves(game, 0)[0])
        twin = pickle.loads(pickle.dumps(env))
        for move in some_moves(game, 0)[1:]:
            if env.state.play.over:
                break
            assert env.step(move)[:4] == twin.step(move)[:4]


# What no text can break


HOSTILE = {
    "5,000 digits": "[" + "9" * 5000 + "]",
    "pairs of 4,400 digits": "[" + " ".join(["9" * 4400] * 2) + "]",
    "threes of 5,000 digits": "[" + " ".join(["9" * 5000] * 3) + "]",
    "negative": "[-1 -1]",
    "other digits": "[\u0663 \u0663]",
    "superscript": "[\u00b2]",
    "half a pair": "[\ud800]",
    "brackets": "[" * 200_000,
    "closing brackets": "]" * 200_000,
    "nothing": "",
    "newlines": "[\n1\n]",
    "the role of the player": "[Player] [GAME] [up]",
}


@pytest.mark.parametrize("game", playable())
def test_no_text_breaks_a_game(game: str) -> None:
    for text in HOSTILE.values():
        env, _ = opened(game)
        for step in played(env, [text, text]):
            assert step.reward in (0.0, 1.0)


@pytest.mark.parametrize(
    ("game", "text"), [("GuessTheNumber-v0", "5,000 digits"), ("Minesweeper-v0", "pairs of 4,400 digits")]
)
def test_what_raises_inside_textarena_is_an_invalid_move_that_changes_nothing(game: str, text: str) -> None:
    env, _ = opened(game)
    with pytest.raises(ValueError, match="digits"):
        copy.deepcopy(env.state.play).game.step(HOSTILE[text])
    steps = played(env, [HOSTILE[text]])
    assert (steps[0].info["valid"], steps[0].terminated) == (False, False)
    assert "could not be read" in text_of(steps[0])
    (last,) = played(env, [HOSTILE[text]])
    assert (last.reward, last.terminated, last.info["end_reason"]) == (0.0, True, EndReason.PARSE_ERROR)


def test_a_failure_in_the_middle_of_a_move_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play.start("2048-v0", 0)
    board, drawn = copy.deepcopy(play.game.state.game_state), play.generator.getstate()

    def spoil(game: Any, action: str) -> None:
        game.state.game_state["board"][0][0] = 4096
        game._spawn_tile(game.state.game_state["board"])
        raise RuntimeError(action)

    monkeypatch.setattr(type(play.game), "step", spoil)
    assert not play.act("[up]")
    assert play.game.state.game_state == board
    assert play.generator.getstate() == drawn


def test_a_game_is_given_the_end_of_a_long_action() -> None:
    env, _ = opened("GuessTheNumber-v0")
    secret = env.state.play.game.game_number
    (step,) = played(env, [f"[{secret % 20 + 1}]" + "x" * MOST_CHARS + f"[{secret}]"])
    assert step.info["solved"]
