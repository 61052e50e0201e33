"""Small programming tasks: reproducible, solved by their own solution, not by a constant; HumanEval and MBPP."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentenv.data.code_sets import instrument, load_code_set
from agentenv.data.code_tasks import FAMILIES, generate_code_tasks
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.sandbox.grading import CallTest, grade


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_every_solution_passes_its_hidden_tests(steps: int) -> None:
    executor = FakeExecutor()
    for task in generate_code_tasks(40, steps=steps):
        assert grade(executor, task.data["solution"], task.data["tests"]).all_passed, task


def test_tasks_are_the_same_for_the_same_arguments_only() -> None:
    assert generate_code_tasks(5, seed=1) == generate_code_tasks(5, seed=1)
    assert generate_code_tasks(5, seed=1) != generate_code_tasks(5, seed=2)
    assert {task.data["family"] for task in generate_code_tasks(60)} == set(FAMILIES)
    assert len({task.id for task in generate_code_tasks(60)}) == 60


def test_a_constant_does_not_solve_most_tasks() -> None:
    executor = FakeExecutor()
    tasks = generate_code_tasks(60, steps=2)
    for constant in ("x", "0", "[]", "True"):
        program = f"def solve(x): return {constant}"
        solved = sum(grade(executor, program, task.data["tests"]).all_passed for task in tasks)
        assert solved <= 6


@pytest.mark.parametrize("options", [{"n": 0}, {"n": 1, "steps": 7}, {"n": 1, "tests": 0}])
def test_numbers_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        generate_code_tasks(**options)


def write(folder: Path, name: str, records: list[dict[str, Any]]) -> Path:
    with gzip.open(folder / name, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)
    return folder


HUMANEVAL = {
    "task_id": "HumanEval/7",
    "prompt": "def f(x, y=1):\n",
    "entry_point": "f",
    "canonical_solution": "    return x * 2 + y\n",
}


def read(folder: Path, test: str) -> Any:
    write(folder, "HumanEval.jsonl.gz", [{**HUMANEVAL, "test": test}])
    return load_code_set("humaneval", folder, FakeExecutor())


def test_every_form_of_assert_becomes_its_test(tmp_path: Path) -> None:
    body = (
        "def check(candidate):\n    assert True, 'fine'\n    assert candidate(1) == 3, 'message'\n"
        "    assert 5 == candidate(2)\n    assert candidate(1) is not None or True\n"
    )
    assert "another form" in next(iter(read(tmp_path, body).exceptions.values()))
    body = (
        "def check(candidate):\n    assert True, 'fine'\n    assert candidate(1) == 3, 'message'\n"
        "    assert 5 == candidate(2)\n    assert abs(candidate(1) - 3.1) < 0.2\n    assert not candidate(0, 0)\n"
        "    assert candidate(4) and candidate(5) == 11\n"
        "    for i in range(2):\n        assert str(candidate(i)) == str(2 * i + 1)\n"
    )
    loaded = read(tmp_path, body)
    assert loaded.exceptions == {}
    (task,) = loaded.tasks
    assert task.data["tests"] == (
        CallTest("f", (1,), 3),
        CallTest("f", (2,), 5),
        CallTest("f", (1,), 3.1, "close", 0.2),
        CallTest("f", (0, 0), None, "false"),
        CallTest("f", (4,), None, "true"),
        CallTest("f", (5,), 11),
        CallTest("f", (0,), "1", via="str"),
        CallTest("f", (1,), "3", via="str"),
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("    x = candidate(1)\n    assert x == 3", "another way"),
        ("    assert candidate(x=1) == 3", "by name"),
        ("    assert True", "no assert"),
        ("    assert candidate(object()) == 3", "object is no builtin"),
        ("    1 / 0\n    assert candidate(1) == 3", "ZeroDivisionError"),
    ],
)
def test_a_record_that_cannot_be_converted_is_an_exception_with_its_reason(
    tmp_path: Path, body: str, reason: str
) -> None:
    loaded = read(tmp_path, f"def check(candidate):\n{body}\n")
    assert loaded.tasks == ()
    assert reason in loaded.exceptions["humaneval/7"]


def test_mbpp_shows_one_test_and_keeps_its_setup(tmp_path: Path) -> None:
    record = {
        "task_id": 5,
        "text": "Add a constant.",
        "code": "def g(x):\r\n    return x + 1",
        "test_setup_code": "BASE = 4",
        "test_list": ["assert g(1) == 2", "assert g(BASE) == 5"],
        "challenge_test_list": ["assert g(9) == 10"],
    }
    loaded = load_code_set("mbpp", write(tmp_path, "mbpp.jsonl.gz", [record]), FakeExecutor())
    (task,) = loaded.tasks
    assert task.data["tests"] == (CallTest("g", (1,), 2), CallTest("g", (4,), 5), CallTest("g", (9,), 10))
    assert task.data["shown"] == ("assert g(1) == 2",)
    assert "\r" not in task.data["solution"]


def test_the_sanitised_records_of_mbpp(tmp_path: Path) -> None:
    """They have other fields, stand in one array, and compare through sets and math.isclose."""
    record = {
        "source_file": "Verification.ipynb",
        "task_id": 82,
        "prompt": "Third of a number.",
        "code": "def g(x):\n    return x / 3",
        "test_imports": ["import math"],
        "test_list": ["assert math.isclose(g(1), 0.333, rel_tol=0.001)", "assert math.isclose(g(6), 2.0)"],
    }
    other = record | {
        "task_id": 511,
        "code": "def g(x):\n    return x",
        "test_list": ["assert set(g([1])) == set((1,))"],
    }
    path = tmp_path / "sanitized-mbpp.json"
    path.write_text(json.dumps([record, other]))
    for place in (tmp_path, path):
        task, second = load_code_set("mbpp_sanitized", place, FakeExecutor()).tasks
        assert task.data["tests"] == (
            CallTest("g", (1,), 0.333, "isclose", 0.001),
            CallTest("g", (6,), 2.0, "isclose", 1e-9),
        )
        assert task.question.startswith("Third of a number.\n")
        assert second.data["tests"] == (CallTest("g", ([1],), {1}, via="set"),)
        assert [task.split, second.split] == ["test", "validation"]
        assert grade(FakeExecutor(), task.data["solution"], task.data["tests"]).all_passed


@pytest.mark.parametrize(
    "test",
    [
        "math.isclose(g(1), 2, abs_tol=1)",
        "math.isclose(g(1), b=2)",
        "isclose(g(1), 2)",
        "math.isclose(2, g(1))",
        "math.isclose(a=g(1), b=2)",
        "str(object=g(1)) == '3'",
        "sorted(g(1), reverse=True) == [3]",
    ],
)
def test_a_comparison_of_another_form_is_an_exception(tmp_path: Path, test: str) -> None:
    loaded = read(tmp_path, f"def check(g):\n    assert {test.replace('g(1)', 'candidate(1)')}\n")
    assert "another form" in loaded.exceptions["humaneval/7"]


@pytest.mark.parametrize(
    "test", ["candidate(iter([1])) == 3", "candidate(1) == iter([3])", "candidate(1) == {}.keys()"]
)
def test_a_test_over_an_iterator_is_an_exception(tmp_path: Path, test: str) -> None:
    """It would be empty for the second program that is graded, and equal what no program returns."""
    loaded = read(tmp_path, f"def check(candidate):\n    assert {test}\n")
    assert "builtin" in loaded.exceptions["humaneval/7"]


PLUS = {
    "task_id": "HumanEval/7",
    "prompt": "def f(x, y=1):\n",
    "entry_point": "f",
    "canonical_solution": "    return x / 2 if y else [x, x]\n",
    "base_input": [[1], [3, 0]],
    "plus_input": [[5], [[6, 7], 0]],
    "atol": 0,
}


def test_inputs_of_evalplus_expect_what_the_solution_returns(tmp_path: Path) -> None:
    """Floats within 1e-6 + 1e-7 of them, everything else exactly; a given tolerance holds for all."""
    loaded = load_code_set(
        "humaneval_plus", write(tmp_path, "HumanEvalPlus.jsonl.gz", [PLUS]), FakeExecutor()
    )
    (task,) = loaded.tasks
    assert task.data["tests"] == (
        CallTest("f", (1,), 0.5, "near", 1e-6),
        CallTest("f", (3, 0), [3, 3]),
        CallTest("f", (5,), 2.5, "near", 1e-6),
        CallTest("f", ([6, 7], 0), [[6, 7], [6, 7]]),
    )
    assert (task.id, task.split, task.question) == ("humaneval_plus/7", "test", PLUS["prompt"])
    assert grade(FakeExecutor(), task.data["solution"], task.data["tests"]).all_passed
    # What passes the inputs of the set itself alone is found out by the others.
    half = "def f(x, y=1):\n    return [3, 3] if y == 0 else 0.5"
    grades = grade(FakeExecutor(), half, task.data["tests"])
    assert [outcome.value for outcome in grades.outcomes] == ["passed", "passed", "wrong", "wrong"]


def test_an_order_that_says_nothing_is_not_compared(tmp_path: Path) -> None:
    record = PLUS | {
        "task_id": "Mbpp/2",
        "prompt": '"""Common items."""\n',
        "entry_point": "g",
        "canonical_solution": "def g(a, b):\n    return [x for x in a if x in b]\n",
        "base_input": [[[3, 4], [4, 3]]],
        "plus_input": [],
        "assertion": "assert set(g((3, 4), (4, 3))) == set((3, 4))",
    }
    (task,) = load_code_set("mbpp_plus", write(tmp_path, "MbppPlus.jsonl.gz", [record]), FakeExecutor()).tasks
    assert task.data["tests"] == (CallTest("g", ((3, 4), (4, 3)), {3, 4}, via="set"),)
    assert grade(FakeExecutor(), "def g(a, b): return [4, 3]", task.data["tests"]).all_passed


MBPP_PLUS = PLUS | {"prompt": '"""A function."""\n', "entry_point": "g", "plus_input": []}


@pytest.mark.parametrize(
    ("number", "given", "taken"),
    [
        (2, [[3, 4], [5]], "((3, 4), (5,))"),
        (63, [[[3, 5], [1, 7]]], "([(3, 5), (1, 7)],)"),
        (259, [[[1, 3]], [[6, 7]]], "(((1, 3),), ((6, 7),))"),
        (307, [["H", [], True], 2, 50], "(('H', [], True), 2, 50)"),
        (75, [[[6, 24], [7, 9]], 6], "([(6, 24), (7, 9)], 6)"),
        (106, [[5, 6], [9, 10]], "([5, 6], (9, 10))"),
        (278, [[1, [2, 3], 4]], "((1, (2, 3), 4),)"),
        (722, [{"a": [6.2, 70]}, 6.0, 70], "({'a': (6.2, 70)}, 6.0, 70)"),
        (115, [[[1], []]], "([{1}, {}],)"),
        (124, ["0", "1j"], "(0.0, 1j)"),
        (252, ["1+2j"], "((1+2j),)"),
        (580, [[4, [5, [7]], 6]], "((4, (5, (7,)), 6),)"),
        (3, [[1, [2]]], "([1, [2]],)"),
    ],
)
def test_inputs_of_mbpp_plus_are_what_its_functions_take(
    tmp_path: Path, number: int, given: list[Any], taken: str
) -> None:
    """By EvalPlus's rules, a record of each: a solution may tell tuples from lists, or put them into a set."""
    record = MBPP_PLUS | {
        "task_id": f"Mbpp/{number}",
        "canonical_solution": "def g(*given):\n    return repr(given)\n",
        "base_input": [given],
    }
    (task,) = load_code_set("mbpp_plus", write(tmp_path, "MbppPlus.jsonl.gz", [record]), FakeExecutor()).tasks
    (test,) = task.data["tests"]
    assert test.expected == repr(test.arguments) == taken


def test_an_input_of_mbpp_plus_of_another_form_is_an_exception(tmp_path: Path) -> None:
    record = MBPP_PLUS | {"task_id": "Mbpp/2", "canonical_solution": "def g(*given):\n    return 1\n"}
    loaded = load_code_set(
        "mbpp_plus", write(tmp_path, "MbppPlus.jsonl.gz", [record | {"base_input": [[3, 4]]}]), FakeExecutor()
    )
    assert "[3, 4]" in loaded.exceptions["mbpp_plus/2"]


def test_of_a_match_the_truth_is_expected(tmp_path: Path) -> None:
    """EvalPlus accepts whatever is a result where the solution finds one: its solution returns a match of a pattern."""
    record = MBPP_PLUS | {
        "task_id": "Mbpp/737",
        "canonical_solution": "import re\ndef g(text):\n    return re.search('^a', text)\n",
        "base_input": [["ab"], ["b"]],
        "assertion": "assert g('ab')\nassert not g('b')",
    }
    folder = write(tmp_path, "MbppPlus.jsonl.gz", [record])
    (task,) = load_code_set("mbpp_plus", folder, FakeExecutor()).tasks
    assert [(test.compare, test.expected) for test in task.data["tests"]] == [("true", None), ("false", None)]
    for program in (task.data["solution"], "def g(text): return text[0] == 'a'"):
        assert grade(FakeExecutor(), program, task.data["tests"]).all_passed


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"plus_input": [["a"]]}, "TypeError"),  # "a" / 2
        ({"task_id": "HumanEval/32"}, "root"),
        ({"canonical_solution": "    return object()\n"}, "object"),
        ({"canonical_solution": "    return iter([1])\n"}, "iterator"),
        ({"canonical_solution": "    return {1: x}.keys()\n"}, "no builtin"),
    ],
)
def test_a_record_of_evalplus_without_an_expected_value_is_left_out(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    folder = write(tmp_path, "HumanEvalPlus.jsonl.gz", [PLUS | change])
    (said,) = load_code_set("humaneval_plus", folder, FakeExecutor()).exceptions.values()
    assert reason in said


def test_a_record_without_a_field_is_named(tmp_path: Path) -> None:
    record = {name: value for name, value in PLUS.items() if name != "plus_input"}
    with pytest.raises(DatasetError, match=r"HumanEval/7.*'plus_input'"):
        load_code_set("humaneval_plus", write(tmp_path, "HumanEvalPlus.jsonl.gz", [record]), FakeExecutor())


def test_missing_sets_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="'apps'"):
        load_code_set("apps", tmp_path, FakeExecutor())
    with pytest.raises(DatasetError, match="missing"):
        load_code_set("mbpp", tmp_path, FakeExecutor())


def test_an_assert_about_something_else_is_left_alone() -> None:
    assert (
        instrument("assert 1 == 1\nassert f(2) == 3", "f")
        == "assert 1 == 1\n_record('equal', '', (2,), 3, 0.0)"
    )


# Reason by record; everything else in the two sets must convert and pass.
EXCEPTIONS = {
    "humaneval/32": "another way",  # find_zero: a polynomial is evaluated at the answer
    "mbpp/367": "Node is no builtin",
    "mbpp/533": "type is no builtin",
    "mbpp/601": "Pair is no builtin",
    "mbpp/927": "Node is no builtin",
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("humaneval", 164), ("mbpp", 974)])
def test_canonical_solutions_pass(name: str, count: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from agentenv.sandbox.backends import make_executor, unavailable
    from agentenv.sandbox.types import ExecutionLimits

    if "AGENTENV_DATA" not in os.environ:
        pytest.skip("AGENTENV_DATA names no folder")
    if reason := unavailable("bwrap"):
        pytest.skip(f"bwrap: {reason}")
    executor = make_executor("bwrap")
    limits = ExecutionLimits(wall_s=60.0, cpu_s=30.0, memory_mb=512)
    with executor, ThreadPoolExecutor(2) as threads:
        loaded = load_code_set(name, Path(os.environ["AGENTENV_DATA"]), executor)
        grades = threads.map(
            lambda t: grade(executor, t.data["solution"], t.data["tests"], limits=limits), loaded.tasks
        )
        failed = [task.id for task, found in zip(loaded.tasks, grades, strict=True) if not found.all_passed]
    expected = {label: reason for label, reason in EXCEPTIONS.items() if label.startswith(name)}
    assert set(loaded.exceptions) == set(expected)
    assert all(reason in loaded.exceptions[label] for label, reason in expected.items())
    assert len(loaded.tasks) == count - len(expected)
    assert failed == []


def test_tasks_of_different_splits_have_different_ids() -> None:
    ids = {
        split: {task.id for task in generate_code_tasks(20, split=split)}
        for split in ("train", "dev", "test", "")
    }
    assert len(set().union(*ids.values())) == 80
