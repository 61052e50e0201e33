"""Problems of reasoning-gym: made again from their task, verified, and never executed."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")

from agentenv.core.types import EndReason, Task
from agentenv.envs import reasoning_gym as module
from agentenv.envs.reasoning_gym import ReasoningGym, verify
from agentenv.envs.reasoning_gym_verifiers import GUARDS
from agentenv.errors import ConfigurationError, DatasetError, EnvFault, UnknownName

EXECUTED = ("binary_matrix", "countdown", "n_queens", "puzzle24", "spiral_matrix", "string_insertion")


def tasks(name: str, n: int = 1, **dials: Any) -> Sequence[Task]:
    return ReasoningGym.make_tasks(n, datasets=name, **dials)


def played(task: Task, *actions: str, **options: Any) -> list[Any]:
    env = ReasoningGym(tasks=[task], **options)
    env.reset(seed=0, options={"task": task})
    return [env.step(action) for action in actions]


def test_a_right_answer_earns_one() -> None:
    (task,) = tasks("chain_sum")
    (step,) = played(task, f"Let me think. <answer>{task.answers[0]}</answer>")
    assert (step.reward, step.terminated, step.info["solved"]) == (1.0, True, True)
    assert step.info["end_reason"] is EndReason.ANSWERED


def test_the_last_answer_counts() -> None:
    (task,) = tasks("chain_sum")
    (step,) = played(task, f"<answer>0</answer> No. <answer> {task.answers[0]} </answer>")
    assert step.reward == 1.0


def test_a_wrong_answer_earns_nothing_unless_partial_credit_is_asked_for() -> None:
    (task,) = tasks("chain_sum")
    long = f"<answer>It is {task.answers[0]} I think</answer>"
    (step,) = played(task, long)
    assert (step.reward, step.info["solved"]) == (0.0, False)
    (step,) = played(task, long, partial_credit=True)
    right = task.answers[0]
    assert step.reward == pytest.approx(len(right) / len(f"It is {right} I think"))
    assert step.info["solved"] is False


def test_without_tags_there_is_no_answer() -> None:
    (task,) = tasks("chain_sum")
    (step,) = played(task, task.answers[0])
    assert (step.reward, step.info["valid"]) == (0.0, False)
    assert step.info["end_reason"] is EndReason.PARSE_ERROR


def test_further_attempts() -> None:
    (task,) = tasks("chain_sum")
    wrong, untagged, right = played(
        task, "<answer>no</answer>", "hm", f"<answer>{task.answers[0]}</answer>", attempts=3
    )
    assert (wrong.reward, wrong.terminated, wrong.info["valid"]) == (0.0, False, True)
    assert wrong.observation[0].text == "That answer is not right. 2 attempts are left.\n"
    assert (
        untagged.observation[0].text
        == "No answer stands between <answer> and </answer>. One attempt is left.\n"
    )
    assert (right.reward, right.terminated) == (1.0, True)


def test_tasks_come_in_turn_and_no_text_is_in_two_splits() -> None:
    made = {split: tasks("chain_sum, gcd", 20, split=split) for split in ("train", "dev", "test")}
    assert [task.data["dataset"] for task in made["train"][:4]] == ["chain_sum", "gcd", "chain_sum", "gcd"]
    texts = [{task.question for task in part} for part in made.values()]
    assert sum(map(len, texts)) == len(set[str]().union(*texts)) == 60
    assert tasks("chain_sum, gcd", 20, split="dev") == made["dev"]
    assert tasks("chain_sum", seed=1) != tasks("chain_sum", seed=2)


def test_settings_make_problems_harder() -> None:
    settings = {"chain_sum": {"min_terms": 9, "max_terms": 9}}
    (easy,), (hard,) = tasks("chain_sum"), tasks("chain_sum", settings=settings)
    assert hard.question.count("+") + hard.question.count("-") >= 8
    assert easy.id != hard.id
    assert played(hard, f"<answer>{hard.answers[0]}</answer>")[0].reward == 1.0


def test_a_data_set_with_too_few_problems_says_so() -> None:
    with pytest.raises(DatasetError, match=r"gcd has .* different problems of the split test"):
        tasks(
            "gcd",
            10_000,
            split="test",
            settings={"gcd": {"min_value": 1, "max_value": 9}},
        )


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"datasets": "chain_sums"}, "chain_sum"),
        (
            {"datasets": "composite"},
            "^the data set composite of reasoning-gym cannot be used here: it consists",
        ),
        ({"datasets": "simple_integration"}, "^the data set .* executes the answer as Python"),
        ({"datasets": "codeio"}, "^the data set .* another one in another process"),
        ({"datasets": "list_functions"}, "^the data set .* another one in another process"),
        ({"datasets": "coin_flip"}, "^the data set .* pays in full for the answer 0"),
        ({"datasets": "propositional_logic"}, "^the data set .* pays in full for a premise"),
        ({"datasets": ""}, "data set"),
        ({"settings": {"gcd": {}}}, "data set with settings"),
        ({"settings": {"chain_sum": {"terms": 3}}}, "^the data set .* does not take the settings"),
        ({"settings": {"chain_sum": {"min_terms": 0}}}, "^the data set .* does not take the settings"),
        ({"split": "valid"}, "split"),
    ],
)
def test_what_cannot_be_made_is_refused(dials: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigurationError, UnknownName), match=said):
        ReasoningGym.make_tasks(2, **dials)


@pytest.mark.parametrize("name", EXECUTED)
def test_no_answer_is_executed(name: str, tmp_path: Path) -> None:
    (task,) = tasks(name)
    mark = tmp_path / "executed"
    attack = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    for answer in (attack, f"[{attack}]", f"({attack}, 1)[1]", f"[[x for x in [{attack}]]]", "9**9**9**9"):
        assert verify(task, answer) == 0.0
    assert not mark.exists()
    # Without the guard the answer does reach the interpreter, so that the test could fail.
    dataset, entry = module._problem_of(task)
    dataset.score_answer(attack, entry)
    assert mark.exists()


@pytest.mark.parametrize("name", sorted(set(GUARDS) - {"boxnet", "rush_hour"}))
def test_what_may_be_verified_is_not_kept_from_the_verifier(name: str) -> None:
    for task in tasks(name, 5):
        entry = module._problem_of(task)[1]
        right = entry["answer"] or entry["metadata"]["example_correct_answer"]
        assert verify(task, right) == 1.0


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("boxnet", '[{"Agent[0.5, 0.5]": "move(box_blue, square[0.5, 1.5])"}]'),
        ("rush_hour", "F+1 K+1 M-1 C+3 H+2"),
    ],
)
def test_an_answer_in_the_form_of_the_question_reaches_the_verifier(name: str, answer: str) -> None:
    (task,) = tasks(name)
    assert 0 < verify(task, answer) < 1


def test_a_module_that_evaluates_texts_is_refused_until_somebody_has_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module._dataset.cache_clear()
    monkeypatch.setattr(module, "OWN_TEXTS", frozenset())
    with pytest.raises(ConfigurationError, match=r"basic_arithmetic .* may execute an answer"):
        tasks("basic_arithmetic")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("puzzle24", "6*4*1*1"),
        ("number_sorting", "[{}]"),
        ("complex_arithmetic", "nan"),
        ("complex_arithmetic", "1 + nani"),
    ],
)
def test_an_answer_that_the_verifier_pays_without_a_solution_is_wrong(name: str, answer: str) -> None:
    for task in tasks(name, 5):
        if name == "number_sorting":
            answer = json.dumps([float("nan")] * len(json.loads(task.answers[0].replace("'", '"'))))
        dataset, entry = module._problem_of(task)
        if name == "puzzle24" and sorted(entry["metadata"]["numbers"]) == [1, 1, 4, 6]:
            continue
        assert dataset.score_answer(answer, entry) == 1.0
        assert verify(task, answer) == 0.0


def test_24_is_made_of_the_given_numbers_without_rounding() -> None:
    (task,) = tasks("puzzle24")
    dataset, entry = module._problem_of(task)
    assert verify(task, task.answers[0]) == 1.0
    assert verify(task, f"({task.answers[0]})") == 1.0
    assert verify(task, f"{task.answers[0]} +") == 0.0
    rounded = {**entry, "metadata": {**entry["metadata"], "numbers": [7, 7, 2, 1]}}
    assert dataset.score_answer("7*7/2*1", rounded) == 1.0
    assert not GUARDS["puzzle24"]("7*7/2*1", rounded)


def test_where_there_is_no_solution_nonsense_is_none() -> None:
    guard = GUARDS["polynomial_equations"]
    assert guard("", {"answer": ""})
    assert guard('""', {"answer": ""})
    assert not guard("nonsense", {"answer": ""})


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("rush_hour", "A+999999999"),
        ("rubiks_cube", "F99999999"),
        ("rubiks_cube", "F999 " * 4_000),
        ("boxnet", json.dumps([{"Agent[0.5, 0.5]": "move(" + ", " * 9_500 + "x"}])),
    ],
)
def test_no_answer_keeps_the_verifier_busy(name: str, answer: str) -> None:
    (task,) = tasks(name)
    start = monotonic()
    assert verify(task, answer) == 0.0
    assert monotonic() - start < 2


def test_an_answer_that_is_as_long_as_the_right_one_is_verified() -> None:
    settings = {"tower_of_hanoi": {"min_disks": 11, "max_disks": 11, "min_pegs": 3, "max_pegs": 3}}
    (task,) = tasks("tower_of_hanoi", settings=settings)
    (right,) = task.answers
    assert len(right) > 20_000
    assert verify(task, right) == 1.0


def test_a_wrong_answer_that_is_overpaid_is_no_fault() -> None:
    task = next(task for task in tasks("spell_backward", 2_000) if len(task.answers[0]) == 9)
    dataset, entry = module._problem_of(task)
    assert dataset.score_answer(f"{task.answers[0]}x", entry) > 1
    assert verify(task, f"{task.answers[0]}x") == 0.0


def test_line_ends_of_windows_are_line_ends() -> None:
    (task,) = tasks("binary_matrix")
    answer = task.answers[0].replace("\n", "\r\n")
    assert played(task, f"<answer>\r\n{answer}\r\n</answer>")[0].reward == 1.0


def test_other_processes_make_the_same_tasks() -> None:
    names = "isomorphic_strings,ransom_note"
    program = (
        "from agentenv.envs.reasoning_gym import ReasoningGym\n"
        f"print(ReasoningGym.make_tasks(4, datasets={names!r}))"
    )
    made = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(made) == 1


def test_a_task_holds_no_answer_that_differs_between_processes() -> None:
    (task,) = tasks("word_ladder")
    assert task.answers == ()
    env = ReasoningGym(tasks=[task])
    env.reset(seed=0)
    expert = env.expert()
    assert expert is not None
    assert env.step(expert[0]).reward == 1.0


def test_odd_text_that_makes_a_verifier_raise_is_wrong_and_no_fault() -> None:
    (task,) = tasks("prime_factorization")
    dataset, entry = module._problem_of(task)
    with pytest.raises(ValueError, match="invalid literal"):
        dataset.score_answer("x", entry)
    assert verify(task, "x") == 0.0


def test_a_verifier_that_fails_on_its_own_answer_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = tasks("chain_sum", seed=77)
    dataset, _ = module._problem_of(task)

    def broken(answer: str, entry: Any) -> float:
        raise RuntimeError("no such file")

    monkeypatch.setattr(dataset, "score_answer", broken)
    with pytest.raises(EnvFault, match=r"chain_sum fails on its own answer \(RuntimeError: no such file"):
        verify(task, "5")


def test_a_task_of_something_else_is_refused() -> None:
    (task,) = tasks("chain_sum")
    env = ReasoningGym(tasks=[task])
    with pytest.raises(DatasetError, match="has no entry 'dataset'"):
        env.reset(options={"task": Task("t", "1 + 1", ("2",))})
    other = Task("t", "another text", task.answers, task.split, task.data)
    with pytest.raises(DatasetError, match="another problem in the installed release"):
        env.reset(options={"task": other})
    with pytest.raises(ConfigurationError, match="attempts=0"):
        ReasoningGym(attempts=0)
