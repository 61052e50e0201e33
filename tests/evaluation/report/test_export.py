"""Covers flat tables of scores and differences, their three formats, and how a terminal of any width shows them."""

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import rich.console
from rich.cells import cell_len

from agentenv.cli.compare import Compare
from agentenv.cli.main import main
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.compare import compare
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.report.export import export_table, score_table
from agentenv.evaluation.report.flat_tables import Column, FlatTable, as_text
from agentenv.evaluation.suite import summarize_suite

Maker = Callable[..., EpisodeRecord]
Writer = Callable[..., None]
SCORERS = ("em_squad", "f1_squad", "em_cover", "cem", "f1_hotpot")
SETS = ("hotpotqa", "a_set_with_a_long_name", "musique", "squad")


@pytest.fixture
def suites(tmp_path: Path, record: Maker, write_run: Writer) -> tuple[Path, Path]:
    """Two suites of four sets under five scorers: A is right on 3 of 10 questions of a set, B on 6."""
    for name, right in (("a", 3), ("b", 6)):
        for part in SETS:
            rows = [record(f"q{i}", "Paris" if i < right else "Rome") for i in range(10)]
            write_run(tmp_path / name / part, rows, SCORERS, dataset=part, policy=f"policy_{name}%")
        summarize_suite(tmp_path / name, SETS)
    return tmp_path / "a", tmp_path / "b"


def _shown(first: Path, second: Path, width: int) -> str:
    out = io.StringIO()
    command = Compare(first, second)
    command.show(command.run(), rich.console.Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("part", ["", "hotpotqa"])
def test_a_comparison_is_whole_on_a_terminal_of_any_width(
    suites: tuple[Path, Path], width: int, part: str
) -> None:
    first, second = (folder / part for folder in suites)
    lines = _shown(first, second, width).splitlines()
    paths = [line for line in lines if line.startswith(("first: ", "second: "))]
    assert len(paths) >= 2
    table = [line for line in lines if "/" not in line]
    assert max(map(cell_len, table)) <= width
    text = "\n".join(table)
    assert "…" not in text
    # 0.3 -> 0.6 under every scorer of every set, and McNemar's 2 * 2^-3 of three questions that B alone has right.
    pairs = len(SCORERS) * (1 if part else len(SETS))
    assert len(re.findall(r"\+0\.300", text)) >= pairs
    assert len(re.findall(r"(?<![+.\d])0\.600", text)) == pairs
    assert "0.25" in text


def test_csv_has_every_digit_n_and_interval_of_scores_bounds_and_means(
    suites: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *map(str, suites), "--scorer", "f1_squad", "--scorer", "em_squad"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["run"] for row in rows} == {"a", "b"}
    (one,) = [r for r in rows if (r["set"], r["scorer"], r["run"]) == ("musique", "em_squad", "b")]
    written = json.loads((suites[1] / "musique" / "results.json").read_text())["scores"]["em_squad"]
    found = (int(one["n"]), float(one["mean"]), float(one["ci95_low"]), float(one["ci95_high"]))
    assert found == (written["n"], written["mean"], *written["ci95"])
    micro = [row for row in rows if row["set"].startswith("micro")]
    assert [(row["n"], row["scorer"]) for row in micro] == [("40", "em_squad"), ("40", "f1_squad")] * 2
    assert {row["scorer"] for row in rows} == {"em_squad", "f1_squad"}


def test_bounds_are_rows_and_one_that_was_not_measured_is_none(
    tmp_path: Path, record: Maker, write_run: Writer
) -> None:
    bounds = {"oracle": {"mean": 0.9, "ci95": [0.8, 1.0], "n": 4}, "closed_book": {"note": "cannot be had"}}
    write_run(tmp_path, [record(f"q{i}") for i in range(4)], bounds=bounds)
    rows = list(csv.DictReader(io.StringIO(as_text(score_table([tmp_path]), "csv"))))
    assert [(row["measured"], row["mean"]) for row in rows] == [("run", "1.0"), ("bound oracle", "0.9")]


def test_a_training_run_gives_its_evaluations(training_folder: Path) -> None:
    rows = score_table([training_folder]).rows
    assert [row[2] for row in rows] == [
        f"{training_folder.name}/{name}" for name in ("before", "after") for _ in range(3)
    ]


def test_differences_are_those_of_compare(suites: tuple[Path, Path]) -> None:
    first, second = (folder / "musique" for folder in suites)
    table = export_table([second], first, ["em_squad"])
    (row,) = csv.DictReader(io.StringIO(as_text(table, "csv")))
    wanted = compare(first, second)["scores"]["em_squad"]
    assert (float(row["difference"]), float(row["p_mcnemar"])) == (wanted["difference"], wanted["p_mcnemar"])
    assert (float(row["ci95_low"]), float(row["ci95_high"])) == tuple(wanted["ci95"])


def _latex_rows(text: str) -> list[list[str]]:
    body = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0]
    lines = [line for line in body.splitlines() if line and line != r"\midrule"]
    assert all(line.endswith(r" \\") for line in lines)
    return [re.split(r"(?<!\\)&", line.removesuffix(r" \\")) for line in lines]


def test_latex_is_a_booktabs_table_with_every_special_letter_escaped(suites: tuple[Path, Path]) -> None:
    for table in (score_table(suites), export_table([suites[1]], suites[0], [])):
        text = as_text(table, "latex")
        columns = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)
        assert columns
        rows = _latex_rows(text)
        assert {len(row) for row in rows} == {len(columns[1])}
        assert len(rows) == 1 + len(table.rows)
        code = text.split("\n", 1)[1]
        assert not re.search(r"(?<!\\)[_%#$]", code)
        for name in ("table", "tabular"):
            assert code.count(rf"\begin{{{name}}}") == code.count(rf"\end{{{name}}}") == 1
        # An unbraced bracket after a line break would be taken for its optional argument.
        assert not any(cell.lstrip().startswith("[") for row in rows for cell in row)
    assert r"policy\_a\%" in as_text(score_table(suites[:1]), "latex")


def test_a_set_of_a_suite_stands_under_its_name_there(
    tmp_path: Path, record: Maker, write_run: Writer
) -> None:
    """One data set may stand in a suite twice, under other options."""
    for part in ("easy", "hard"):
        write_run(tmp_path / part, [record("q")], dataset="musique")
    summarize_suite(tmp_path, ("easy", "hard"))
    rows = list(csv.DictReader(io.StringIO(as_text(score_table([tmp_path]), "csv"))))
    assert [row["set"] for row in rows[:2]] == ["easy", "hard"]


def test_latex_sets_text_to_the_left_and_numbers_to_the_right() -> None:
    table = FlatTable(
        "t", (Column("name"), Column("n", "count"), Column("mean", "share")), (("x", 1, 0.5), ("y", 2, 0.25))
    )
    assert r"\begin{tabular}{lrr}" in as_text(table, "latex")


HOSTILE = "a|b_c%d&e#f$g{h}i~j^k\\l\nm<n>"


def test_no_text_breaks_out_of_its_cell() -> None:
    table = FlatTable("t", (Column("name"), Column("n", "count")), ((HOSTILE, 1), ("plain", 2)))
    (head, *rows) = _latex_rows(as_text(table, "latex"))
    assert [len(row) for row in (head, *rows)] == [2, 2, 2]
    lines = as_text(table, "markdown").splitlines()[2:]
    assert [len(re.split(r"(?<!\\)\|", line)) - 2 for line in lines] == [2] * 4
    assert list(csv.reader(io.StringIO(as_text(table, "csv"))))[1] == [HOSTILE, "1"]


def test_a_value_that_is_missing_is_empty_and_a_column_of_none_is_left_out() -> None:
    columns = (Column("name"), Column("mean", "share"), Column("ci95", "interval"), Column("p", "p"))
    rows: Sequence[tuple[Any, ...]] = (("x", None, None, None), ("y", 0.25, (0.1, 0.4), None))
    table = FlatTable("t", columns, tuple(rows))
    assert table.readable().cells() == [["x", "", ""], ["y", "0.250", "[0.100, 0.400]"]]
    assert as_text(table, "csv").splitlines() == [
        "name,mean,ci95_low,ci95_high,p",
        "x,,,,",
        "y,0.25,0.1,0.4,",
    ]


def test_the_command_writes_a_file_whole_or_not_at_all(
    suites: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.md"
    assert main(["export", str(suites[0]), "--format", "markdown", "--out", str(out)]) == 0
    assert out.read_text() == as_text(score_table(suites[:1]), "markdown")
    capsys.readouterr()
    assert main(["export", str(suites[0]), "--scorer", "em_squat", "--out", str(tmp_path / "no.md")]) == 1
    assert "'em_squat'" in capsys.readouterr().err
    assert not (tmp_path / "no.md").exists()


def test_what_cannot_be_exported_is_refused(suites: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        export_table([], None, [])
    with pytest.raises(ConfigurationError, match="nowhere"):
        export_table([tmp_path / "nowhere"], None, [])
    with pytest.raises(ConfigurationError, match="2"):
        export_table(suites, suites[0], [])
    with pytest.raises(ConfigurationError):
        export_table([suites[0]], suites[1] / "musique", [])
    with pytest.raises(UnknownName, match="em_squat"):
        export_table([suites[0]], None, ["em_squat"])
