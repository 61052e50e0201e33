"""The discussion of sums: its program and questions, what the arms pay, what is measured, and that all of it runs."""

import importlib
import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra train is not installed")

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.envs.search.self_play import fields_of
from agentenv.trainers.selfplay.game_state import GameState

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def script(name: str) -> Any:
    return importlib.import_module(name)


def wrote(tag: str, text: str) -> Trajectory:
    info = {"writes": (tag,), "fields": {tag: text}}
    return Trajectory(Task("t", "q"), (), (), 0.0, EndReason.SUBMITTED, info=info)


class Certain(Random):
    """Draws the same number every time."""

    def __init__(self, drawn: float) -> None:
        super().__init__()
        self.drawn = drawn

    def random(self) -> float:
        return self.drawn


FORGETS, HEEDS, CARRIES = Certain(0.1), Certain(0.4), Certain(0.9)
"""By a draw of .1 every role forgets a carry; by .4 a solver does, and heeds a critic; by .9 nobody does either."""


def test_a_sum_with_and_without_its_carry() -> None:
    working = script("sums").Working
    asked = "What is 47 + 38?"
    assert working.of(asked, forgets=False) == working("7+8=15, 4+3+1=8", 1, "85")
    assert working.of(asked, forgets=True) == working("7+8=15, 4+3+0=7", 0, "75")
    assert working.of("What is 45 + 23?", forgets=True) == working("5+3=08, 4+2+0=6", 0, "68")
    for forgets in (False, True):
        assert [working.of(asked, forgets=forgets).carry_in(answer) for answer in ("75", "85")] == [0, 1]


def test_what_the_program_says_in_every_role() -> None:
    careless = script("sums").careless
    asked = {"question": "What is 47 + 38?"}
    assert careless("solver", asked, FORGETS) == "<think>7+8=15, 4+3+0=7</think><answer>75</answer>"
    wrong = asked | {"answer": "75"}
    assert careless("critic", wrong, CARRIES) == "<critique>7+8=15, 4+3+1=8, 75 has 0: it is 85</critique>"
    assert careless("critic", wrong, FORGETS) == "<critique>7+8=15, 4+3+0=7, 75 has 0: no flaw</critique>"
    for rng, critique, score in (
        (CARRIES, "it is 85", 1),
        (FORGETS, "it is 85", 2),
        (CARRIES, "no flaw", 2),
        (FORGETS, "no flaw", 3),
    ):
        said = careless("scorer", wrong | {"critique": critique}, rng)
        assert fields_of(said, ("score",)) == {"score": str(score)}


def test_a_later_solver_keeps_what_has_no_flaw_and_heeds_some_critics() -> None:
    careless = script("sums").careless
    earlier = {"question": "What is 47 + 38?", "answer_1": "12", "critique_1": "no flaw", "answer_2": "75"}
    for critique, rng, answer in (
        ("4+3=7: no flaw", CARRIES, "75"),
        ("4+3+1=8: it is 85", HEEDS, "85"),
        ("4+3=9: it is 95", CARRIES, "85"),
    ):
        said = careless("solver", earlier | {"critique_2": critique}, rng)
        assert fields_of(said, ("answer",)) == {"answer": answer}


def test_a_demonstration_is_a_game_of_the_preset() -> None:
    sums = script("sums")
    game = sums.get_game("comas_history", agents=2)
    demos = sums.play_demonstration(game, "What is 47 + 38?", sums.careless, CARRIES)
    assert [demo[-1].text.rpartition("</")[2] for demo in demos] == ["answer>", "critique>", "score>"] * 4
    assert "An earlier answer was: 85\nA critic says: 7+8=15, 4+3+1=8, 85 has 1: no flaw" in demos[3][0].text


def test_questions_of_the_test_are_not_demonstrated_and_not_trained(tmp_path: Path) -> None:
    sums = script("sums")
    sections = sums.write_questions(tmp_path / "sums")
    assert sums.write_questions(tmp_path / "sums") == sections
    read = {
        split: {json.loads(line)["question"] for line in Path(section["dataset"]).read_text().splitlines()}
        for split, section in sections.items()
    }
    assert {split: len(questions) for split, questions in read.items()} == {
        "test": 120,
        "dev": 8,
        "train": 272,
    }
    shown = {sums.question_of(*pair) for pair in sums.sums()["train"]}
    assert read["train"] == shown
    assert not shown & (read["test"] | read["dev"])
    assert len(shown | read["test"] | read["dev"]) == 20 * 20


def test_what_the_arms_pay_a_solution() -> None:
    discussion = script("discussion")
    state = GameState(Task("t", "What is 47 + 38?", ("85",)))
    state.plays = {
        "solve_1": [wrote("answer", "75"), wrote("answer", "85")],
        "criticise_1": [wrote("critique", "85"), wrote("critique", "85")],
        "solve_2": [wrote("answer", "75"), wrote("answer", "")],
    }
    pays = [(discussion.by_majority(state, *at), discussion.by_truth(state, *at)) for at in PLACES]
    assert pays == [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (0.0, 0.0)]
    state.plays["solve_2"][1] = wrote("answer", "85")
    assert [discussion.by_majority(state, *at) for at in PLACES] == [0.5] * 4
    state.plays = {"solve_1": [wrote("answer", "")]}
    assert discussion.by_majority(state, "solve_1", 0) == 0.0


PLACES = (("solve_1", 0), ("solve_1", 1), ("solve_2", 0), ("solve_2", 1))


def test_the_arms_differ_in_what_solutions_are_paid_alone() -> None:
    discussion = script("discussion")
    discussion.register()
    ours, *others = (discussion.get_game(name, agents=2) for name in discussion.ARMS.values())
    for name, game in zip(("majority", "truth"), others, strict=True):
        assert [turn.reward for turn in game.turns] == [name, "scored_rest", "scored_readably"] * 4
        assert [discussion.replace(turn, reward="") for turn in game.turns] == [
            discussion.replace(turn, reward="") for turn in ours.turns
        ]


TAGS = ("answer", "critique", "score")


def test_the_measures_of_three_games_by_hand() -> None:
    """Values 1, .5 and 1 of right answers, 0 and .5 of wrong ones, and one score that cannot be read."""
    discussion = script("discussion")
    games = [
        [wrote(*one) for one in zip(TAGS * 2, said, strict=True)]
        for said in (
            ("85", "no flaw", "3", "85", "it is 75", "2"),
            ("7", "it is 9", "1", "8", "it is 9", "five"),
            ("9", "no flaw", "3", "8", "it is 9", "2"),
        )
    ]
    found = discussion.measured(games, [("85",), ("9",), ("9",)])
    assert found["value_of_right"] == pytest.approx(2.5 / 3)
    assert found["agreement"] == pytest.approx(4 / 5)
    assert found["entropy"] == pytest.approx(0.2 * math.log2(5) + 0.8 * math.log2(2.5))
    assert found["objections"] == pytest.approx(1 / 3)
    for key in ("value_of_right", "agreement", "entropy", "objections"):
        del found[key]
    assert found == {
        "answers": 6,
        "first_round": 0.5,
        "all_rounds": 0.5,
        "value_of_wrong": 0.25,
        "within_games": 0.5,
        "games_with_both": 1,
        "scores": {"1": 1, "2": 2, "3": 2},
        "unread": 1,
    }
    assert discussion.entropy([0, 0, 0]) == 0.0


@pytest.mark.slow
def test_it_runs_from_the_start_to_the_result_file(
    here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step of each arm, from a start that has hardly learned anything."""
    miniatures, discussion = script("miniatures"), script("discussion")
    short = {**miniatures.TABLE["starts"]["discussion"], "tasks": 4, "steps": 2, "episodes": 4}
    monkeypatch.setitem(miniatures.TABLE["starts"], "discussion", short)
    monkeypatch.setitem(miniatures.TABLE["presets"]["comas"]["rollout"], "questions", 1)
    monkeypatch.setitem(miniatures.TABLE["presets"]["comas"]["rollout"], "turn_tokens", 4)
    monkeypatch.setitem(miniatures.TABLE["presets"]["comas"], "test", {"limit": 2})
    monkeypatch.setattr(discussion, "TASKS", 1)
    out = tmp_path / "result.json"
    here(
        "discussion",
        "--runs",
        str(tmp_path),
        "--seeds",
        "1",
        "--steps",
        "1",
        "--out",
        str(out),
        "--threads",
        "1",
    )
    found = json.loads(out.read_text())
    assert list(found["runs"]) == ["comas", "majority", "truth"]
    assert found["start"]["answers"] == 2 * 4
    assert found["summary"]["comas"]["objections"] is None  # no answer was right
    for (run,) in found["runs"].values():
        assert run["discussed"]["answers"] == 2 * 4
