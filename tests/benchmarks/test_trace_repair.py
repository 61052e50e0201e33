"""The study of TraceCoder's parts: what the repairer reads in messages of the environment, what is counted, that it runs."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv.core.types import Task
from agentenv.envs.trace_code import ASK, INSTRUMENT, TraceCode
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.sandbox.grading import CallTest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
VALUES = ([5, 1, 4], [9, 2], [4, 7, 3, 1], [6], [1, 5], [2, 8, 8], [3], [7, 1])
TASK = Task(
    "sorted",
    "Write a Python function solve(x) that takes a list of integers and does this: add 2 to every number, then sort from "
    "small to large, then return the sum.\nFor example, solve([1]) returns 3.",
    ("",),
    data={"tests": [CallTest("solve", (one,), sum(one) + 2 * len(one)) for one in VALUES]},
)
RIGHT = ["x = [v + 2 for v in x]", "x = sorted(x)", "return sum(x)"]


@pytest.fixture
def repairer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("scripted_repairer")


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("trace_repair")


def case(study: Any, first: list[str]) -> Any:
    sketch = study.sketch_of(TASK.question)
    skill = study.Skill([0.0] * 3, 0.0, 0.0)
    return study.Case(0, TASK, sketch, skill, [line.mutants[0] for line in sketch.lines], first)


def after(program: str, instrumented: str) -> tuple[str, str]:
    """What the environment shows of a program that fails, and of its prints."""
    env = TraceCode(tasks=[TASK], executor=FakeExecutor())
    env.reset(seed=0)
    return tuple(  # type: ignore[return-value]
        env.step(action).observation[0].text
        for action in (f"<submit>{program}</submit>", f"<instrument>{instrumented}</instrument>")
    )


def test_a_mutant_has_one_mistake(repairer: Any) -> None:
    assert repairer.mutants("x = [v + 3 for v in x]") == (
        "x = [v - 3 for v in x]",
        "x = [v + 4 for v in x]",
        "x = [v + 2 for v in x]",
        "x = [v + 3 for v in y]",
        "x = x",
    )
    assert repairer.mutants("return x") == ("return y",)


def test_the_right_program_is_known_from_the_words_of_the_task(repairer: Any) -> None:
    sketch = repairer.sketch_of(TASK.question)
    assert [line.source for line in sketch.lines] == RIGHT
    assert [line.meaning([3, 1]) for line in sketch.lines] == [[5, 3], [1, 3], 4]
    program = sketch.text(RIGHT)
    assert program.splitlines()[0] == "def solve(x):"
    assert sketch.sources(program) == RIGHT


def test_a_program_of_several_parts_runs_one_of_them(repairer: Any, study: Any) -> None:
    setting = study.Setting(parts=4, steps=1)
    (task,) = study.tasks_of(setting, 1)
    sketch = repairer.sketch_of(task.question)
    right = [line.source for line in sketch.lines]
    assert sketch.sizes == (2, 2, 2, 2)
    assert sketch.sources(sketch.text(right)) == right
    assert [test.arguments[0] for test in task.data["tests"]] == [0, 1, 2, 3] * 2
    spoilt = [*right[:4], "x = None", *right[5:]]  # a line of the third part
    assert study.graded(task, sketch.text(right), hidden=True).all_passed
    passed = [one.value == "passed" for one in study.graded(task, sketch.text(spoilt), hidden=False).outcomes]
    assert passed == [True, True, False, True]


def test_a_traceback_and_a_trace_point_to_their_lines(repairer: Any) -> None:
    sketch = repairer.sketch_of(TASK.question)
    raising = [RIGHT[0], "x = sorted(y)", RIGHT[2]]
    failed, traced = after(sketch.text(raising), sketch.with_prints(raising))
    assert sketch.named(failed, raising) == 1
    assert sketch.first_wrong(traced) == 1  # its value is missing
    for number, source in ((0, "x = [v + 3 for v in x]"), (2, "return len(x)")):
        wrong = [*RIGHT[:number], source, *RIGHT[number + 1 :]]
        failed, traced = after(sketch.text(wrong), sketch.with_prints(wrong))
        assert sketch.named(failed, wrong) is None
        assert sketch.first_wrong(traced) == number
    assert sketch.first_wrong("nothing") is None


def test_a_repairer_that_never_errs_mends_the_line_that_is_pointed_to(study: Any) -> None:
    """Two wrong lines: 4 tests of the first program, then for each round 4 of the check, 4 traces and 4 of the repair.

    The first repair passes no test more than the program before. With ``all`` the second starts from it; a strict rollback
    takes it back, and the plan is made once more, because nothing was remembered.
    """
    first = ["x = [v + 3 for v in x]", RIGHT[1], "return len(x)"]
    traces = study.Reads(trace=True)
    kept = study.Play(case(study, first), study.Arm(traces), 1)
    kept.run()
    assert kept.tries[-1].solved
    assert (kept.tries[-1].tests, kept.tries[-1].traced_once, kept.tries[-1].turns) == (28, 20, 7)
    assert [one.kept for one in kept.repairs] == [True, True]
    rolled = study.Play(case(study, first), study.Arm(traces, "more"), 1)
    rolled.run()
    assert [(one.was_right, one.is_right, one.kept) for one in rolled.repairs] == [(False, True, False)] * 2
    assert rolled.first_episode == 28
    assert rolled.tries[-1].tests == 32  # the second program from nothing is right
    assert study.of_repairs(rolled.repairs) == {
        "repairs": 2, "wrong_line_chosen": 1.0, "mended": 1.0, "spoilt": 0.0, "mended_and_rolled_back": 1.0
    }  # fmt: skip


def test_what_an_arm_does_not_use_costs_no_tests_and_tells_it_nothing(repairer: Any, study: Any) -> None:
    sketch = repairer.sketch_of(TASK.question)
    raising = [RIGHT[0], "x = sorted(y)", RIGHT[2]]
    shown, _ = after(sketch.text(raising), "")
    assert shown.endswith(f"{ASK[INSTRUMENT]}\n")
    for errors in (False, True):
        player = repairer.Repairer(
            sketch, study.Reads(errors=errors), study.Skill([0] * 3, 0, 0), RIGHT, np.random.default_rng(0)
        )
        player.hand_in(raising)
        assert player.act(shown) == ""
        assert player.pointed == (1 if errors else None)
    play = study.Play(case(study, raising), study.Arm(study.Reads(errors=True)), 1)
    play.run()
    assert (play.tries[-1].tests, play.tries[-1].turns, play.tries[-1].solved) == (8, 4, True)


def test_a_plan_that_failed_is_not_made_again(repairer: Any, study: Any) -> None:
    """It writes a line wrong nine times of ten, and always in the same way: after that one it knows the right line alone."""
    shown = (
        "Plans that failed:\nWrite line 2 as: x = x\n(rolled back: 0 of 4 public tests passed (4 wrong).)\n"
    )
    barred = repairer.failed_plans(shown)
    assert barred == {(1, "x = x")}
    assert repairer.failed_plans("Write line 2 as: x = x") == frozenset()
    sketch, rng = repairer.sketch_of(TASK.question), np.random.default_rng(0)
    player = repairer.Repairer(sketch, study.Reads(), study.Skill([0.9] * 3, 0.0, 1.0), ["x = x"] * 3, rng)
    assert player.chances(1) == pytest.approx({RIGHT[1]: 0.1, "x = x": 0.9})
    assert {player.write(1) for _ in range(50)} == {RIGHT[1], "x = x"}
    assert {player.write(1, barred) for _ in range(50)} == {RIGHT[1]}
    assert {player.write(0, barred) for _ in range(50)} == {RIGHT[0], "x = x"}  # the plan was of another line


def test_the_environment_shows_the_plans_that_the_repairer_reads(repairer: Any, study: Any) -> None:
    first = ["x = [v + 3 for v in x]", *RIGHT[1:]]
    sketch = repairer.sketch_of(TASK.question)
    env = TraceCode(tasks=[TASK], executor=FakeExecutor())
    env.reset(seed=0)
    player = repairer.Repairer(
        sketch,
        study.Reads(trace=True),
        study.Skill([0.999999] * 3, 0.0, 1.0),
        first,
        np.random.default_rng(0),
    )
    shown, action = "", player.hand_in(first)
    for _ in range(5):  # up to the prints of the second round
        shown = env.step(action).observation[0].text
        action = player.act(shown)
    assert repairer.failed_plans(shown) == {(0, first[0])}
    assert action.startswith("<plan>")


def test_the_answer_within_a_budget_is_the_last_program_that_it_paid_for(study: Any) -> None:
    tries = [
        study.Try(4, 4, 100, 1, passed=1, solved=False),
        study.Try(20, 16, 400, 4, passed=3, solved=True),
        study.Try(40, 30, 900, 7, passed=4, solved=False),
    ]
    found = [study.solved_within(tries, "tests", budget) for budget in (3, 19, 20, 39, 40)]
    assert found == [0.0, 0.0, 1.0, 1.0, 0.0]
    assert study.solved_within(tries, "traced_once", 16) == 1.0
    assert study.solved_within(tries, "turns", 6) == 1.0


def test_every_program_fails_at_first_and_without_errors_nothing_raises(study: Any) -> None:
    cases = list(study.cases(study.Setting(raising=False), 10))
    assert len(cases) == 10
    for one in cases:
        outcomes = study.graded(one.task, one.sketch.text(one.first), hidden=False).outcomes
        assert "error" not in outcomes
        assert set(outcomes) != {"passed"}
        assert study.telling(one.task)


def test_one_line_of_each_program_can_be_hard(study: Any) -> None:
    for one in study.cases(study.Setting(error=0.2, hard=0.9), 5):
        assert sorted(one.skill.errors) == [0.2] * 4 + [0.9]
    assert next(study.cases(study.Setting(), 1)).skill.errors == [0.35] * 5


def test_the_study_runs_and_repeats_itself(tmp_path: Path, here: Callable[..., str]) -> None:
    """Shares are of the six programs, differences are those of shares, and a second run finds the same."""
    found = []
    for name in ("one.json", "two.json"):
        words = (
            "--programs",
            "6",
            "--only",
            "errors .35",
            "three lines",
            "--json",
            "--out",
            str(tmp_path / name),
        )
        found.append(json.loads(here("trace_repair", *words))["found"])
    assert found[0] == found[1]
    arms = found[0]["errors .35"]["arms"]
    for row in arms.values():
        shares = [row[f"tests {budget}"]["solved"] for budget in (20, 40, 60, 120)]
        assert all(share * 6 == pytest.approx(round(share * 6)) for share in shares)
    whole, best = arms["+ rollback"]["tests 60"], arms["best of n"]["tests 60"]
    assert whole["over_best_of_n"]["difference"] == pytest.approx(whole["solved"] - best["solved"])
    assert arms["retry"]["of_repairs"]["mended_and_rolled_back"] == 0.0  # nothing is rolled back there
    assert set(found[0]["three lines"]["arms"]) < set(arms)
