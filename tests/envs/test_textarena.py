"""TextArena-v0 with the real package: what it says, rewards by hand, solutions, tasks, what is refused."""

import copy
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.types import EndReason, Step, Task
from agentenv.errors import ConfigurationError, DatasetError, EnvFault, UnknownName

pytest.importorskip("textarena")

from agentenv.envs.textarena import TextArena, make_task
from agentenv.envs.textarena_games import FAMILIES, REFUSED, family_name
from agentenv.envs.textarena_play import UNSOLVED_AT_MOST, Play, load

SLOW = ("Sokoban-v0-medium", "Sudoku-v0-hard")
"""Games that take seconds or half a minute to be dealt."""


def registry() -> dict[str, Any]:
    load()
    from textarena.envs.registration import ENV_REGISTRY

    return dict(ENV_REGISTRY)


def playable() -> list[str]:
    """The games that need no words and are dealt fast."""
    found = []
    for id in registry():
        try:
            family = FAMILIES[family_name(id, registry())]
        except ConfigurationError:
            continue
        found += [] if family.words or id in SLOW else [id]
    return found


def opened(game: str, seed: int = 0, **options: Any) -> tuple[TextArena, str]:
    env = TextArena(**options)
    (opening,), _ = env.reset(options={"task": make_task(game, seed, "train")})
    return env, opening.text


def played(env: TextArena, actions: Sequence[str]) -> list[Step]:
    steps: list[Step] = []
    for action in actions:
        steps.append(env.step(action))
        if steps[-1].terminated or steps[-1].truncated:
            break
    return steps


def text_of(step: Step) -> str:
    return "".join(message.text for message in step.observation)


# What a game is and says


def test_the_opening_is_the_games_own_prompt_and_later_turns_say_only_what_is_new() -> None:
    env, opening = opened("GuessTheNumber-v0")
    assert opening.startswith("[GAME] You are Player 0. You are playing Guess The Number.\n")
    secret = env.state.play.game.game_number
    wrong = 1 if secret > 1 else 2
    (step,) = played(env, [f"I begin low: [{wrong}]"])
    assert text_of(step) == f"[GAME] The target number is {'higher' if wrong < secret else 'lower'}."


@pytest.mark.parametrize("game", playable())
def test_no_turn_repeats_the_prompt_or_the_move(game: str) -> None:
    env, opening = opened(game)
    (step,) = played(env, ["zzqq"])
    assert opening[:40] not in text_of(step)
    assert "zzqq" not in text_of(step)
    assert not step.info["valid"]


def test_a_move_without_brackets_is_taken_where_textarena_takes_it() -> None:
    env, _ = opened("Secretary-v0")
    assert played(env, ["continue"])[0].info["valid"]


def test_what_was_thought_is_not_played() -> None:
    env, _ = opened("GuessTheNumber-v0")
    secret = env.state.play.game.game_number
    (step,) = played(env, [f"<think>[{secret % 20 + 1}] or so</think>[{secret}]"])
    assert (step.reward, step.terminated, step.info["solved"]) == (1.0, True, True)
    assert step.info["end_reason"] is EndReason.SUBMITTED


# Rewards by hand


def test_frozen_lake_pays_the_goal_alone_unless_the_way_counts() -> None:
    """Of six steps to the goal, the one into the hole is counted as walked: 1/6 for a hole beside the start."""
    seed = next(
        n
        for n in range(100)
        if opened("FrozenLake-v0", n)[0].state.play.game.state.game_state["grid"][0][1] == "H"
    )
    for partial, reward in ((False, 0.0), (True, 1 / 6)):
        env, _ = opened("FrozenLake-v0", seed, partial_reward=partial)
        (step,) = played(env, ["[right]"])
        assert step.reward == pytest.approx(reward)
        assert (step.info["solved"], step.info["end_reason"]) == (False, EndReason.SUBMITTED)
        assert "fell into a hole" in step.info["outcome"]


def test_two_invalid_moves_after_one_another_lose() -> None:
    env, _ = opened("FrozenLake-v0")
    steps = played(env, ["[north]", "[east]", "[up]"])
    assert [step.info["valid"] for step in steps] == [False, False]
    assert "invalid move" in text_of(steps[0])
    assert (steps[1].reward, steps[1].terminated) == (0.0, True)
    assert (steps[1].info["end_reason"], steps[1].info["solved"]) == (EndReason.PARSE_ERROR, False)


def test_a_valid_move_forgives_an_invalid_one() -> None:
    env, _ = opened("GuessTheNumber-v0")
    secret = env.state.play.game.game_number
    wrong = [number for number in range(1, 21) if number != secret][:3]
    actions = [f"[{wrong[0]}]", "[0]", f"[{wrong[1]}]", "[99]", f"[{wrong[2]}]"]
    assert [step.info["valid"] for step in played(env, actions)] == [True, False, True, False, True]


def test_the_budget_of_turns_cuts_an_episode() -> None:
    env, _ = opened("2048-v0", max_turns=3, partial_reward=True)
    steps = played(env, ["[up]", "[left]", "[down]", "[right]"])
    assert (len(steps), steps[-1].truncated, steps[-1].terminated, steps[-1].reward) == (3, True, False, 0.0)
    assert steps[-1].info["end_reason"] is EndReason.TURN_LIMIT


def test_guess_the_number_pays_for_nearness_where_parts_count() -> None:
    """Twenty numbers span 19: a guess that is off by d is worth 1 - d / 19, and a solved game 1."""
    env, _ = opened("GuessTheNumber-v0", partial_reward=True)
    secret = env.state.play.game.game_number
    off = 3 if secret <= 17 else -3
    steps = played(env, [f"[{secret + off}]", "[0]", "[0]"])
    assert steps[-1].reward == pytest.approx(1 - 3 / 19)


def test_clues_without_a_loop_do_not_solve_slitherlink() -> None:
    """The one clue that is left here, a 0 in a corner, holds beside an edge in the opposite corner."""
    env, _ = opened("Slitherlink-v0", partial_reward=True)
    game = env.state.play.game
    game.clues = [[0, None, None, None], *([None] * 4 for _ in range(3))]
    assert game._progress() == 1.0
    game.max_turns = game.state.max_turns = 1
    steps = played(env, ["[h 4 3]", "[v 3 4]"])
    assert [step.terminated for step in steps] == [False, True]
    assert (steps[1].reward, steps[1].info["solved"]) == (UNSOLVED_AT_MOST, False)


def test_many_small_tiles_do_not_solve_2048() -> None:
    """No move is left without the tile of 32, and the score of 480 is more than enough for TextArena's reward of 1."""
    env, _ = opened("2048-v0-ultra-easy", partial_reward=True)
    board = [[16, 8, 16, 8], [8, 16, 8, 16], [16, 8, 16, 8], [16, 8, 16, 0]]
    env.state.play.game.state.game_state |= {"board": board, "score": 480}
    (step,) = played(env, ["[right]"])
    assert env.state.play.game.state.rewards == {0: 1.0}
    assert (step.reward, step.info["solved"], step.terminated) == (UNSOLVED_AT_MOST, False, True)


def test_a_reason_in_the_place_of_a_reward_is_no_reward() -> None:
    """Countdown hands the two over the wrong way round where a move is invalid."""
    env, _ = opened("Countdown-v0", partial_reward=True)
    steps = played(env, ["[0 0 +]", "[0 0 +]"])
    assert isinstance(env.state.play.game.state.rewards[0], str)
    assert (steps[-1].reward, steps[-1].info["end_reason"]) == (0.0, EndReason.PARSE_ERROR)


def rectangles(game: Any) -> Iterator[list[str]]:
    """Every rectangle of Slitherlink's generator: at least two cells wide and high."""
    for top, left, height, width in product(range(3), range(3), range(2, 5), range(2, 5)):
        if top + height <= game.R and left + width <= game.C:
            across = [
                f"[h {row} {column}]" for row in (top, top + height) for column in range(left, left + width)
            ]
            down = [
                f"[v {row} {column}]" for column in (left, left + width) for row in range(top, top + height)
            ]
            yield across + down


def solution(game: Any, id: str) -> list[str]:
    """A solution by hand, or by what the game keeps."""
    state = game.state.game_state
    match id:
        case "Countdown-v0":  # 75 * 6 + 100 - (4 + 2) * 3; the numbers are [100, 75, 6, 4, 3, 2]
            return ["[1 2 *]", "[1 3 +]", "[1 3 *]", "[0 1 +]", "[1 0 -]"]
        case "Crosswords-v0":
            cells = [
                (r, c, letter) for r, row in enumerate(state["solution"]) for c, letter in enumerate(row)
            ]
            return [" ".join(f"[{r} {c} {letter}]" for r, c, letter in cells if letter != ".")]
        case "Cryptarithm-v0":  # 9567 + 1085 = 10652
            return [f"[{letter} {digit}]" for letter, digit in zip("SENDMORY", "95671082", strict=True)]
        case "LogicPuzzle-v0":
            grids = game.game_board_solution.values()
            return [
                " ".join(
                    f"[{r} {c} {m}]" for grid in grids for r, row in grid.items() for c, m in row.items()
                )
            ]
        case "Mastermind-v0":
            return [f"[{' '.join(map(str, state['secret_code']))}]"]
        case "Secretary-v0":
            best = state["draws"].index(max(state["draws"]))
            return ["[continue]"] * best + ["[accept]"]
        case "Slitherlink-v0":
            for edges in rectangles(game):
                twin = copy.deepcopy(game)
                if [twin.step(edge)[0] for edge in edges][-1]:
                    return edges
    raise AssertionError(id)


@pytest.mark.parametrize(
    "game",
    [
        "Countdown-v0",
        "Crosswords-v0",
        "Cryptarithm-v0",
        "LogicPuzzle-v0",
        "Mastermind-v0",
        "Secretary-v0",
        "Slitherlink-v0",
    ],
)
def test_a_solution_earns_one(game: str) -> None:
    for seed in range(3):
        env, _ = opened(game, seed)
        steps = played(env, solution(env.state.play.game, game))
        assert (steps[-1].reward, steps[-1].info["solved"], steps[-1].terminated) == (1.0, True, True)
        assert sum(step.reward for step in steps) == 1.0


@pytest.mark.parametrize(
    "game",
    [id for id in playable() if FAMILIES[family_name(id, registry())].expert is not None],
)
def test_an_expert_solves_every_seed(game: str) -> None:
    for seed in range(8 if "hard" not in game else 2):
        env, _ = opened(game, seed)
        steps = played(env, env.expert() or ())
        assert (steps[-1].reward, steps[-1].info["solved"]) == (1.0, True)
        assert all(step.info["valid"] for step in steps)


def test_the_expert_guesses_by_halves() -> None:
    env, _ = opened("GuessTheNumber-v0")
    env.state.play.game.game_number = 7  # of 1 to 20: 10, 5, 7
    assert env.expert() == ["[10]", "[5]", "[7]"]


def test_a_game_without_an_expert_says_so() -> None:
    env, _ = opened("Mastermind-v0")
    assert env.expert() is None
    assert "FrozenLake" in env.no_expert


# Tasks


def test_tasks_name_game_and_seed_and_are_replayed_from_them_alone() -> None:
    tasks = TextArena.make_tasks(4, seed=1, games=("Sudoku-v0-easy", "2048-v0"))
    assert [task.data["game"] for task in tasks] == ["Sudoku-v0-easy", "2048-v0"] * 2
    assert all(set(task.data) == {"game", "seed"} for task in tasks)
    openings = []
    for _ in range(2):
        env = TextArena()
        openings.append([env.reset(seed=n, options={"task": task})[0] for n, task in enumerate(tasks)])
    assert openings[0] == openings[1]


def test_no_two_splits_share_a_seed() -> None:
    seen = {
        split: {task.id for seed in range(3) for task in TextArena.make_tasks(200, seed=seed, split=split)}
        for split in ("train", "dev", "test")
    }
    assert not seen["train"] & seen["dev"] | seen["train"] & seen["test"] | seen["dev"] & seen["test"]


def test_a_game_of_one_puzzle_is_of_the_training_split_alone() -> None:
    """Every seed poses the tower of three disks, so a held-out one would be the one that was trained on."""
    openings = {
        opened("TowerOfHanoi-v0", task.data["seed"])[1]
        for task in TextArena.make_tasks(3, games=("TowerOfHanoi-v0",))
    }
    assert len(openings) == 1
    with pytest.raises(ConfigurationError, match="TowerOfHanoi-v0"):
        TextArena.make_tasks(1, split="test", games=("TowerOfHanoi-v0",))


@pytest.mark.parametrize("game", playable())
def test_seeds_make_a_difference_unless_a_game_is_declared_as_one_puzzle(game: str) -> None:
    positions = set[object]()
    for seed in range(3 if game.startswith(("Sokoban", "RushHour")) else 12):
        play = Play.start(game, seed)
        hidden = {
            name: repr(value) for name, value in vars(play.game).items() if name not in ("state", "deck")
        }
        said = play.news()
        positions.add((said, repr(play.game.state.game_state), str(sorted(hidden.items()))))
        if game.startswith("Minesweeper"):  # the mines are laid by the first move
            play.act("[0 0]")
            positions.add(play.news())
    assert (len(positions) == 1) == FAMILIES[family_name(game, registry())].one_puzzle


def test_an_episode_without_a_task_draws_a_game_by_its_seed() -> None:
    env = TextArena(games=("Secretary-v0", "Blackjack-v0"))
    infos = [env.reset(seed=seed)[1]["task_id"] for seed in range(12)]
    assert {id.partition("-v0")[0] for id in infos} == {"Secretary", "Blackjack"}
    assert infos == [env.reset(seed=seed)[1]["task_id"] for seed in range(12)]


def test_given_tasks_are_drawn_from() -> None:
    tasks = TextArena.make_tasks(3, games=("Mastermind-v0",))
    env = TextArena(tasks=tasks)
    assert env.held_tasks() == tuple(tasks)
    assert {env.reset(seed=seed)[1]["task_id"] for seed in range(20)} == {task.id for task in tasks}


@pytest.mark.parametrize(
    "data", [{}, {"game": "2048-v0"}, {"game": "2048-v0", "seed": -1}, {"game": "2048-v0", "seed": True}]
)
def test_a_task_without_game_or_seed_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(DatasetError, match="'t'"):
        TextArena().reset(options={"task": Task("t", "Play.", (), "train", data)})


def test_a_game_that_cannot_be_dealt_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    env, _ = opened("LightsOut-v0")

    def fail(self: Any, **arguments: Any) -> None:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr(type(env.state.play.game), "reset", fail)
    with pytest.raises(EnvFault, match=r"LightsOut-v0.*seed 4.*division"):
        opened("LightsOut-v0", 4)


# What is refused


@pytest.mark.parametrize(
    ("game", "says"),
    [
        ("Bandit-v0", "no button wins"),
        ("TwentyQuestions-v0", "openrouter"),
        ("GuessWho-v0", "openrouter"),
        ("Set-v0", "three times"),
        ("FifteenPuzzle-v0", "method"),
        ("Klondike-v0", "Python"),
        ("UltimateTexasHoldem-v0", "thousand"),
        ("TicTacToe-v0", "more than one player"),
        ("FrozenLake-v0-train", "'FrozenLake-v0'"),
        ("FrozenLake-v0-raw", "'FrozenLake-v0'"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused_with_its_reason(game: str, says: str) -> None:
    for refused in (
        lambda: TextArena(games=(game,)),
        lambda: TextArena.make_tasks(1, games=(game,)),
        lambda: opened(game),
    ):
        with pytest.raises(ConfigurationError, match=says) as error:
            refused()
        assert game in str(error.value)


def test_an_unknown_game_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="FrozenLake-v0"):
        TextArena(games=("FrozenLakes-v0",))


@pytest.mark.parametrize("options", [{"games": ()}, {"games": "2048-v0"}, {"max_turns": 0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        TextArena(**options)


def test_every_family_of_one_player_is_decided_on() -> None:
    """A game of one player says so where it makes its state; those of several players have other states."""
    source = Path(load().__file__).parent / "envs"
    single = {
        path.parent.name
        for path in source.glob("*/env.py")
        if "SinglePlayerState(" in path.read_text("utf-8")
    }
    assert single == set(FAMILIES) | set(REFUSED)


def test_the_reasons_of_refusals_hold() -> None:
    """Each is looked up in the installed release, so that a release that repairs a game is noticed."""
    source = Path(load().__file__).parent / "envs"
    for family in ("GuessWho", "TwentyQuestions"):
        assert "OpenRouterAgent(" in (source / family / "env.py").read_text("utf-8")
    with pytest.raises(SyntaxError):
        compile((source / "Klondike/env.py").read_text("utf-8"), "Klondike", "exec")
    textarena = load()
    for choice in range(5):
        buttons = textarena.make("Bandit-v0-raw")
        buttons.reset(num_players=1, seed=1)
        for _ in range(21):
            buttons.step(f"[{buttons.buttons[choice]}]")
        assert buttons.state.done
        assert buttons.state.rewards[0] < 1
    cards = textarena.make("Set-v0-raw")
    cards.reset(num_players=1, seed=1)
    cards.step("[1, 1, 1]")
    assert cards.state.game_state["score"] == 1
    puzzle = textarena.make("FifteenPuzzle-v0-raw")
    puzzle.reset(num_players=1, seed=1)
    puzzle.board = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, None, 15]]
    with pytest.raises(AttributeError, match="set_winners"):
        puzzle.step("[left]")
