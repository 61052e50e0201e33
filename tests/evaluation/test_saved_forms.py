"""Files of an evaluation that were edited, cut or made by another program: every command says so in a sentence."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.errors import DatasetError
from agentenv.evaluation.llm_judge import GradeCache
from agentenv.evaluation.records import EpisodeRecord, read_evaluation
from agentenv.evaluation.saved_forms import check_form
from agentenv.evaluation.suite import summarize_suite

Maker = Callable[..., EpisodeRecord]
DEEP = "[" * 100_000


@pytest.fixture
def runs(tmp_path: Path, record: Maker, write_run: Callable[..., None]) -> tuple[Path, Path]:
    """Two evaluations of the same questions, as earlier versions wrote them: without checksums."""
    turn = {
        "action": "<search>x</search>",
        "observation": "Doc 1",
        "valid": True,
        "reward": 0.0,
        "tool_results": [{"name": "search", "status": "ok", "text": "x", "error_class": "", "ids": [["d"]]}],
    }
    whole = {
        "turns": [turn],
        "family": "bridge",
        "hops": 2,
        "tokens": {"policy": 3, "total": 9},
        "prompt": "Say.",
    }
    rows = [record(name, retrieved_ids=[["d"]], supporting_ids=["d"], **whole) for name in "abc"]
    folders = (tmp_path / "first", tmp_path / "second")
    for folder in folders:
        write_run(folder, rows)
        (folder / "episodes.sha256").unlink()
    return folders


def commands(folder: Path, other: Path) -> list[list[str]]:
    """Everything that reads a saved evaluation."""
    return [
        ["compare", str(other), str(folder), "--json"],
        ["report", str(folder)],
        ["report", str(folder), "--against", str(other)],
        ["export", str(folder), "--format", "markdown"],
        ["seeds", str(folder), str(other)],
        ["rescore", str(folder), "--scorer", "f1_hotpot", "--json"],
    ]


def places(value: Any, depth: int = 5) -> list[tuple[Any, ...]]:
    """The paths of the parts of a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(key, *rest) for key, part in inner if depth for rest in [(), *places(part, depth - 1)]]


def with_part(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = holder = copy.deepcopy(document)
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return changed


STRANGE: tuple[Any, ...] = (
    None,
    "x",
    -1.5,
    float("nan"),
    float("inf"),
    [],
    {},
    [[1]],
    {"a": None},
    True,
    10**400,
)


@pytest.mark.parametrize("name", ["results.json", "episodes.jsonl"])
def test_no_part_of_a_wrong_type_ends_a_command_with_a_traceback(name: str, runs: tuple[Path, Path]) -> None:
    """Every part in turn is something else; a command says so or does without, and ``main`` never raises."""
    first, second = runs
    path = second / name
    head, *rest = path.read_text().split("\n", 1) if name.endswith("jsonl") else [path.read_text()]
    document, refused = json.loads(head), 0
    for number, place in enumerate(places(document)):
        value = STRANGE[number % len(STRANGE)]
        path.write_text("\n".join([json.dumps(with_part(document, place, value)), *rest]))
        words = commands(second, first)
        refused += main(words[number % len(words)]) != 0
    assert refused > 5


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.json", DEEP),
        ("results.json", "{}"),
        ("results.json", '{"scores": {"em_squad": {"mean": 1e999}}}'),
        ("episodes.jsonl", "\udcff\udcfe"),
        ("episodes.jsonl", DEEP),
        ("episodes.jsonl", "5\n"),
    ],
)
def test_a_file_of_something_else_is_named(
    name: str, content: str, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = runs
    (second / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert main(["compare", str(first), str(second)]) == 1
    assert len(capsys.readouterr().err) < 1000


def test_seconds_that_are_no_numbers_are_left_out(runs: tuple[Path, Path]) -> None:
    lines = [
        {"phase": "run", "seconds": {}, "waits": [1.0]},
        {"phase": "run", "seconds": 1.0, "waits": [None]},
        {"phase": "run", "seconds": 1.0, "waits": "x"},
        {"phase": "run", "seconds": 10**400, "waits": [1.0]},
        {"phase": "run", "seconds": 2.0, "waits": [1.0]},
    ]
    (runs[0] / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + DEEP + "\n")
    assert main(["report", str(runs[0])]) == 0


def test_an_episode_with_a_reward_that_is_no_number_is_named_by_its_line(runs: tuple[Path, Path]) -> None:
    path = runs[0] / "episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["reward"] = float("nan")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DatasetError, match="line 2"):
        read_evaluation(runs[0])


@pytest.mark.parametrize("name", ["../second", "..", ".", "", "a/b", "first/", "a\0b"])
def test_a_suite_names_no_evaluation_outside_of_it(
    name: str, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever wrote it could have any evaluation of this machine shown, sent to a judge and written to."""
    suite, other = runs[0].parent / "suite", runs[1]
    shutil.copytree(runs[0], suite / "first")
    summarize_suite(suite, ["first"])
    summary = json.loads((suite / "suite.json").read_text())
    held = (other / "results.json").read_bytes()
    for sets in ([name], ["first", name], [str(other)]):
        (suite / "suite.json").write_text(json.dumps(summary | {"sets": sets}))
        for words in (
            ["export", str(suite)],
            ["report", str(suite)],
            ["rescore", str(suite), "--scorer", "cem"],
        ):
            assert main(words) == 1
            assert "suite.json" in capsys.readouterr().err
    assert (other / "results.json").read_bytes() == held


@pytest.mark.parametrize("part", ["sets", "scores", "macro"])
def test_a_suite_lacks_a_part(part: str, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs[0].parent
    summarize_suite(folder, ["first"])
    summary = json.loads((folder / "suite.json").read_text())
    holder = summary if part in summary else summary["scores"]["em_squad"]
    del holder[part]
    (folder / "suite.json").write_text(json.dumps(summary))
    for words in (
        ["export", str(folder)],
        ["report", str(folder)],
        ["rescore", str(folder), "--scorer", "cem"],
    ):
        assert main(words) == 1
        assert "suite.json" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["metrics.jsonl", "results.json"])
def test_no_part_of_a_wrong_type_ends_the_report_of_a_training_run(name: str, training_folder: Path) -> None:
    path = training_folder / name
    head, *rest = path.read_text().split("\n", 1) if name.endswith("jsonl") else [path.read_text()]
    document, refused = json.loads(head), 0
    for number, place in enumerate(places(document, 3)):
        value = STRANGE[number % len(STRANGE)]
        path.write_text("\n".join([json.dumps(with_part(document, place, value)), *rest]))
        refused += main(["report", str(training_folder)]) != 0
    assert refused > 0


@pytest.mark.parametrize("line", ["[]", "5", '{"step": "x"}', '{"step": 1, "faults": [1]}'])
def test_a_line_of_a_log_that_is_none_is_named(
    line: str, training_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = training_folder / "metrics.jsonl"
    path.write_text(line + "\n" + path.read_text())
    assert main(["report", str(training_folder)]) == 1
    assert "metrics.jsonl, line 1" in capsys.readouterr().err


def test_what_is_not_known_is_kept() -> None:
    check_form("results", {"scores": {}, "something": {"else": [1, None, "x"]}}, "results.json")


@pytest.mark.parametrize(
    "line",
    [
        "[1]",
        '{"key": "k", "verdict": "A", "value": NaN}',
        '{"key": "k", "verdict": "A", "value": 7}',
        '{"key": "k", "verdict": 5, "value": 1.0}',
    ],
)
def test_a_grade_that_is_none_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "grades.jsonl"
    path.write_text(line + "}" * (not line.endswith("}")))
    with pytest.raises(ValueError, match="line 1"):
        GradeCache(path)


def test_half_a_line_of_grades_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "grades.jsonl"
    path.write_bytes(b'\n{"key": "k", "verdict": "A", "value": 1.0}\n\xff' + DEEP.encode())
    assert list(GradeCache(path).grades) == ["k"]
