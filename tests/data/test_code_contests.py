"""LiveCodeBench and APPS: records in the official shape become tasks; whatever is malformed has its sentence."""

import base64
import json
import pickle
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentenv.data.code_contests import PRELUDE, load_contest_set, pickled_text
from agentenv.data.sources import SourceConfig, check_source, open_source
from agentenv.envs.code import Code
from agentenv.errors import ConfigurationError, DatasetError, UnknownName
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.sandbox.grading import CallTest, StdioTest, grade


@pytest.fixture(autouse=True)
def _recursion() -> Iterator[None]:
    """The fake runs programs in this very process, and the prelude raises its limit."""
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)


STARTER = "class Solution:\n    def total(self, numbers: List[int], extra: int) -> int:\n        "


def case(given: str, expected: str, kind: str = "stdin") -> dict[str, str]:
    return {"input": given, "output": expected, "testtype": kind}


def packed(cases: list[dict[str, str]], protocol: int = 4) -> str:
    """As the files of LiveCodeBench hold their private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases), protocol))).decode()


def lcb(**changes: Any) -> dict[str, Any]:
    return {
        "question_title": "A. Echo",
        "question_content": "Print the number twice.",
        "platform": "codeforces",
        "question_id": "1873_A",
        "contest_id": "1873",
        "contest_date": "2023-08-21T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps([case("3\n", "3 3\n")]),
        "private_test_cases": packed([case("4\n", "4 4\n"), case("0.5\n", "0.50 0.5\n")]),
        "metadata": "{}",
    } | changes


CALLED = lcb(
    question_id="2727",
    platform="leetcode",
    starter_code=STARTER,
    metadata=json.dumps({"func_name": "total"}),
    public_test_cases=json.dumps([case("[1, 2]\n3", "6", "functional")]),
    private_test_cases=json.dumps([case("[]\n-1", "-1", "functional")]),
)


def apps(**changes: Any) -> dict[str, Any]:
    return {
        "problem_id": 12,
        "question": "Print the sum.",
        "solutions": json.dumps(["print(sum(map(int, input().split())))"]),
        "input_output": json.dumps({"inputs": ["1 2\n", ["3", ""]], "outputs": ["3\n", ["3", ""]]}),
        "difficulty": "interview",
        "url": "",
        "starter_code": "",
    } | changes


FUNCTION = apps(
    problem_id=13,
    starter_code="def invert(d):\n\t",
    solutions=json.dumps(["def invert(d):\n    return {v: k for k, v in d.items()}"]),
    input_output=json.dumps(
        {
            "fn_name": "invert",
            "inputs": [[{"1": 2}], [{"3": 4, "5": 6}]],
            "outputs": [[{"2": 1}], {"4": 3, "6": 5}],
        }
    ),
)


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


def test_livecodebench_programs_that_read_and_write(tmp_path: Path) -> None:
    (task,) = load_contest_set("livecodebench", write(tmp_path / "test.jsonl", lcb()))
    assert task.id == "livecodebench/1873_A"
    assert task.question.startswith("Print the number twice.\n\n")
    assert "standard input" in task.question
    assert task.data["tests"] == (
        StdioTest("3\n", "3 3\n", "lines"),
        StdioTest("4\n", "4 4\n", "lines"),
        StdioTest("0.5\n", "0.50 0.5\n", "lines"),
    )
    assert (task.data["difficulty"], task.data["date"]) == ("easy", "2023-08-21T00:00:00")
    assert grade(FakeExecutor(), "x = input()\nprint(x, x)", task.data["tests"]).all_passed


def test_livecodebench_functions_are_played_in_code_v0(tmp_path: Path) -> None:
    (task,) = load_contest_set("livecodebench", write(tmp_path / "test.jsonl", CALLED))
    assert task.question.endswith(f"Complete this code:\n{STARTER}")
    assert task.data["tests"] == (
        CallTest("Solution.total", ([1, 2], 3), 6, via="untupled"),
        CallTest("Solution.total", ([], -1), -1, via="untupled"),
    )
    env = Code(executor=FakeExecutor(), tasks=[task])
    env.reset(seed=0)
    assert env.step(f"<submit>{STARTER}return sum(chain(numbers, [extra]))</submit>").reward == 1.0


def test_apps_programs_and_functions_pass_their_own_solutions(tmp_path: Path) -> None:
    tasks = load_contest_set("apps", write(tmp_path / "train.jsonl", apps(), FUNCTION))
    assert [task.id for task in tasks] == ["apps/12", "apps/13"]
    assert tasks[0].data["tests"] == (StdioTest("1 2\n", "3\n", "float"), StdioTest("3\n", "3\n", "float"))
    assert tasks[1].data["tests"] == (
        CallTest("invert", ({1: 2},), [{2: 1}], "wrapped", via="untupled"),
        CallTest("invert", ({3: 4, 5: 6},), {4: 3, 6: 5}, "wrapped", via="untupled"),
    )
    env = Code(executor=FakeExecutor(), tasks=tasks)
    for task in tasks:
        env.reset(seed=0, options={"task": task})
        expert = env.expert()
        assert expert is not None
        assert env.step(expert[-1]).reward == 1.0


def test_the_folders_of_the_apps_archive(tmp_path: Path) -> None:
    for name, record in (("0001", FUNCTION), ("0000", apps())):
        (tmp_path / name).mkdir()
        for field, file in (
            ("question", "question.txt"),
            ("input_output", "input_output.json"),
            ("solutions", "solutions.json"),
            ("starter_code", "starter_code.py"),
        ):
            (tmp_path / name / file).write_text(record[field], encoding="utf-8")
    from_folders = load_contest_set("apps", tmp_path)
    assert [task.id for task in from_folders] == ["apps/0000", "apps/0001"]
    from_lines = load_contest_set("apps", write(tmp_path / "train.jsonl", apps(), FUNCTION), limit=1)
    assert [task.data["tests"] for task in from_lines] == [from_folders[0].data["tests"]]


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("sprung"),))


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_a_pickled_text_is_read_whatever_its_protocol(protocol: int) -> None:
    text = 'a "ü" \N{SNOWMAN}' * 100
    assert pickled_text(pickle.dumps(text, protocol)) == text


@pytest.mark.parametrize(
    ("value", "opcode"),
    [
        (Trap(), "STACK_GLOBAL"),
        (["a"], "EMPTY_LIST"),
        (("a", "b"), "TUPLE2"),
        (7, "BININT1"),
    ],
)
def test_a_pickle_of_anything_else_is_refused_and_not_carried_out(
    value: Any, opcode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=opcode):
        pickled_text(pickle.dumps(value))
    assert not (tmp_path / "sprung").exists()


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"question_content": None}, "question_content must be text"),
        ({"private_test_cases": "no base 64!"}, "neither JSON nor compressed"),
        ({"private_test_cases": text_of(b"not compressed")}, "neither JSON nor compressed"),
        ({"private_test_cases": text_of(zlib.compress(b"x" * 99)[:-6])}, "cut short or larger"),
        ({"private_test_cases": text_of(zlib.compress(b"no pickle"))}, "private_test_cases: "),
        ({"private_test_cases": text_of(zlib.compress(pickle.dumps(Trap())))}, "more than text"),
        ({"private_test_cases": text_of(zlib.compress(pickle.dumps("[")))}, "no valid JSON"),
        ({"private_test_cases": "[3]"}, "must be a list of objects"),
        ({"private_test_cases": "[]", "public_test_cases": "[]"}, "has no tests"),
        (
            {"public_test_cases": json.dumps([case("1", "1", "manual")])},
            "must be stdin or functional, not 'manual'",
        ),
        ({"public_test_cases": json.dumps([case("1", "1", "functional")])}, "has no func_name"),
        (
            {"public_test_cases": json.dumps([{"input": 1, "output": "1", "testtype": "stdin"}])},
            "must be text",
        ),
        ({"metadata": "{"}, "metadata is no valid JSON"),
    ],
)
def test_a_malformed_livecodebench_record_has_its_sentence(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    path, problems = write(tmp_path / "test.jsonl", lcb(), lcb(**changes), CALLED), list[str]()
    tasks = load_contest_set("livecodebench", path, problems=problems)
    assert [task.id for task in tasks] == ["livecodebench/1873_A", "livecodebench/2727"]
    (problem,) = problems
    assert problem.startswith(f"{path}, line 2")
    assert sentence in problem
    assert "\n" not in problem
    with pytest.raises(DatasetError, match="line 2"):
        load_contest_set("livecodebench", path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"input_output": ""}, "input_output is empty"),
        ({"input_output": "[]"}, "must be an object"),
        ({"input_output": json.dumps({"inputs": ["1"], "outputs": []})}, "lists of one length"),
        ({"input_output": json.dumps({"inputs": [], "outputs": []})}, "has no tests"),
        ({"input_output": json.dumps({"inputs": [1], "outputs": ["1"]})}, "text or lists of lines, not 1"),
        (
            {"input_output": json.dumps({"fn_name": "f", "inputs": [1], "outputs": [1]})},
            "arguments of a call",
        ),
        ({"input_output": '{"inputs": [' + "1" * 5000 + '], "outputs": []}'}, "no valid JSON"),
        ({"solutions": "["}, "solutions is no valid JSON"),
        ({"problem_id": None}, "problem_id must be text"),
    ],
)
def test_a_malformed_apps_record_has_its_sentence(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    path, problems = write(tmp_path / "train.jsonl", apps(**changes), apps()), list[str]()
    assert [task.id for task in load_contest_set("apps", path, problems=problems)] == ["apps/12"]
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}, line 1")
    assert sentence in problems[0]


def test_a_line_that_is_no_json_is_left_out_too(tmp_path: Path) -> None:
    path, problems = write(tmp_path / "train.jsonl", apps()), list[str]()
    path.write_text("{\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert len(load_contest_set("apps", path, problems=problems)) == 1
    assert "line 1 is no valid JSON" in problems[0]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="livecodebench"):
        load_contest_set("livecodebenhc", tmp_path)
    with pytest.raises(DatasetError, match=r"question\.txt"):
        load_contest_set("apps", tmp_path)


def test_the_prelude_gives_what_programs_take_for_granted() -> None:
    scope: dict[str, Any] = {}
    exec(PRELUDE.replace("sys.setrecursionlimit(50000)", "sys.getrecursionlimit()"), scope)
    assert scope["bisect"].bisect_left is scope["bisect_left"]
    assert scope["pow"] is pow, "math and operator have functions of that name too"
    assert {"List", "deque", "heappush", "lru_cache", "gcd", "heapq", "datetime", "ascii_lowercase"} <= set(
        scope
    )


@pytest.mark.parametrize("place", ["test.jsonl", "", "livecodebench"])
def test_a_contest_set_is_a_source_by_its_name(tmp_path: Path, place: str) -> None:
    """From a file, its folder, or the folder of all sets; a malformed record is left out and said."""
    folder = tmp_path / "livecodebench"
    folder.mkdir()
    write(folder / "test.jsonl", {"question_id": "odd"}, lcb())
    data = tmp_path if place == "livecodebench" else folder / place
    source = open_source(SourceConfig(dataset="livecodebench", data=data))
    assert [task.id for task in source.tasks] == ["livecodebench/1873_A"]
    assert "left out: 1" in source.notes


def test_a_contest_set_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    empty = write(tmp_path / "none.jsonl", {"problem_id": 1})
    with pytest.raises(DatasetError, match=r"none\.jsonl"):
        open_source(SourceConfig(dataset="apps", data=empty))
    with pytest.raises(ConfigurationError, match="'test'"):
        check_source("apps", "test", empty)
