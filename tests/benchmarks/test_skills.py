"""The game of five skills: its tasks, its program, what is labelled and counted, and that the study runs from end to end."""

import importlib
import json
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra train is not installed")

import agentenv
from agentenv.core.env_contract import check_env
from agentenv.evaluation.contrast import contrasts, label_by_skills

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def script(name: str) -> Any:
    return importlib.import_module(name)


def test_what_each_skill_makes_of_a_string() -> None:
    made = {name: make("47195") for name, make in script("skills_game").SKILLS.items()}
    assert made == {
        "reverse": "59174",
        "rotate": "71954",
        "swap": "74195",
        "raise": "58206",
        "mirror": "52804",
    }


def test_the_game_keeps_the_contract_of_environments() -> None:
    results = check_env(lambda: agentenv.make("skills_game:SkillsGame"))
    assert [result for result in results if result.status == "failed"] == []


def test_more_tasks_of_a_skill_leave_its_first_ones() -> None:
    make = script("skills_game").SkillsGame.make_tasks
    few = make(10)
    many = make(25, counts={"reverse": 20, "raise": 5}, lengths={"raise": 3})
    assert [task.question for task in few[:2]] == [task.question for task in many[:2]]
    assert Counter(task.data["family"] for task in few) == dict.fromkeys(script("skills_game").SKILLS, 2)
    assert {len(task.answers[0]) for task in many[20:]} == {3}
    assert not {task.question for task in make(50, split="test")} & {task.question for task in make(500)}


def test_the_program_errs_by_copying_in_what_it_lacks_alone() -> None:
    game = script("skills_game")
    tokenizer = game.InlineFormat  # no lesson in routing is drawn, so that none is asked
    shown = islice(game.lessons(("reverse",), Random(0), tokenizer, routing=0.0), 3000)
    right: dict[tuple[str, int], list[bool]] = {}
    for question, reply in shown:
        name, digits = game.skill_of(question), question.split()[1].rstrip(".")
        right.setdefault((name, len(digits)), []).append(reply == game.SKILLS[name](digits))
        assert reply in (digits, game.SKILLS[name](digits))
    for (name, length), said in right.items():
        if name != "reverse":
            assert all(said)
        else:
            assert sum(said) / len(said) == pytest.approx(game.RIGHT[length], abs=0.15)


def record(name: str, digits: str, prediction: str) -> Any:
    game = script("skills_game")
    return {
        "id": digits, "question": game.question_of(name, digits), "answers": (game.SKILLS[name](digits),),
        "prediction": prediction, "valid": True, "turns": [], "end_reason": "answered", "searches": None,
    }  # fmt: skip


def test_a_rare_failure_stands_out_among_the_tasks_that_ask_for_the_skill_alone() -> None:
    """Nine of ten fail in the one skill and one of ten in the other: of all ten failures one is of the other."""
    game = script("skills_game")
    records = [record("reverse", f"12{i}", "x" if i else f"{i}21") for i in range(10)]
    records += [record("swap", f"12{i}", f"21{i}" if i else "x") for i in range(10)]
    values = [float(one["prediction"] != "x") for one in records]
    found = {}
    for among, known in (("asked", game.CAPABILITIES), ("all", game.CAPABILITIES_OF_ALL)):
        labels = label_by_skills(records, values, {name: one.skill for name, one in known.items()})
        found[among] = {one.capability: one.contrast for one in contrasts(labels) if one.kept}
    assert found["asked"] == {"reverse": 1.0, "swap": 1.0}
    assert found["all"] == {"reverse": 0.9}


def test_new_questions_go_where_a_run_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One skill was never solved, one got worse and three were solved: F sees the second alone, and F with <= both."""
    skills, commands = script("skills"), script("agentenv.cli.synthesize_sws")
    accuracies = {f"{name} 1234{i}.": [1.0, 1.0] for name in ("Rotate", "Swap", "Mirror") for i in range(4)}
    accuracies |= {f"Reverse 1234{i}.": [0.0, 0.0] for i in range(4)}
    accuracies |= {f"Raise 1234{i}.": [0.375, 0.25] for i in range(4)}
    kinds = {question: f"{question.split()[0]} _." for question in accuracies}
    history = commands.History(accuracies, kinds, 8)
    monkeypatch.setattr(skills, "read_history", lambda run: history)
    given = {rule: skills.budget(rule, Path()) for rule in (None, "mean", "slope", "flat")}
    assert given[None] == dict.fromkeys(skills.SKILLS, 24)
    assert given["slope"] == {"raise": 120}
    assert given["flat"] == {"raise": 60, "reverse": 60}
    assert given["mean"] == {"reverse": 69, "raise": 51}  # 1 and 3/4 of the failures


def test_differences_over_tasks_and_over_starts_by_hand() -> None:
    skills = script("skills")

    def run(arm: str, seed: int, lacks: list[str], *right: int) -> Any:
        tasks = ("Reverse 1.", "Raise 1.", "Swap 1.")
        found = dict(zip(tasks, right, strict=True))
        return {"arm": arm, "seed": seed, "lacks": lacks, "solved": found, "episodes": 8, "tokens": 9}

    pair = ["reverse", "raise"]
    runs = [
        run("target", 0, pair, 0, 0, 1),
        run("target", 1, pair, 0, 1, 1),
        run("merged", 0, pair, 1, 0, 1),
        run("merged", 1, pair, 1, 1, 0),
    ]
    table = skills.over_seeds(runs[0]["solved"], runs)
    assert table["start"] == {"all": pytest.approx(1 / 3), "lacking": 0.0, "others": 1.0}
    assert table["target"]["lacking"] == 0.25
    assert table["merged"]["lacking over target"]["difference"] == 0.5
    assert table["merged"]["lacking over target"]["seeds"] == [0.5, 0.5]
    assert table["merged"]["others over target"]["difference"] == -0.5
    assert "lacking over target" not in table["target"]
    other = ["reverse", "swap"]
    runs = [runs[0], runs[2], run("target", 0, other, 0, 1, 0), run("merged", 0, other, 1, 1, 1)]
    wide = skills.over_pairs(runs)
    assert wide["merged"]["lacking over target"]["mean"] == pytest.approx((0.5 + 1.0) / 2)
    assert wide["merged"]["starts"] == 2


@pytest.mark.slow
def test_it_runs_from_the_start_to_the_result_file(
    here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps of each arm, from a start that has hardly learned anything."""
    skills, game = script("skills"), script("skills_game")
    small = {
        "STEPS": 4,
        "FIRST": 1,
        "EVALUATED": 10,
        "MEASURED": 2,
        "TESTED": 10,
        "EPISODES": 30,
        "BAND": (0.0, 1.0),
    }
    for name, value in small.items():
        monkeypatch.setattr(skills, name, value)
    two = {name: game.CAPABILITIES[name] for name in ("reverse", "swap")}
    monkeypatch.setattr(skills, "CAPABILITIES", two)
    out = tmp_path / "result.json"
    words = ["--folder", str(tmp_path), "--seeds", "0", "--pairs", "1", "--trunk-steps", "2"]
    here("skills", *words, "--start-steps", "2", "--lessons", "4", "--out", str(out))
    found = json.loads(out.read_text())
    assert [run["arm"] for run in found["runs"]] == list(skills.ARMS)
    assert {run["episodes"] for run in found["runs"] if run["arm"] in ("target", *skills.RULES)} == {4 * 64}
    assert found["named"]["draws"] == 1
    assert found["named"]["temperature 0"]["lacked"] == {"exactly": 0, "skills": 2.0}
    assert found["one_start"]["merged"]["lacking over uniform"]["difference"] == 0.0  # nothing is solved
