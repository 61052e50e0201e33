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
from agentenv.evaluation.records import EpisodeRecord, read_results, write_results
from agentenv.evaluation.report.export import export_table, score_table
from agentenv.evaluation.report.flat_tables import Column, FlatTable, as_text, interval_text
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


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "\t=1"])
def test_no_name_is_a_formula_of_a_spreadsheet(name: str) -> None:
    table = FlatTable("T", (Column("run"), Column("mean", "share")), ((name, -0.5), ("a=b", 0.5)))
    rows = list(csv.reader(io.StringIO(as_text(table, "csv"), newline="")))
    assert rows[1:] == [[f"'{name}", "-0.5"], ["a=b", "0.5"]]


@pytest.mark.parametrize("name", ["[a](http://h)", "![a](http://h/pixel)", "![[a]](x)"])
def test_no_name_is_a_link_or_a_picture(name: str) -> None:
    table = FlatTable("T", (Column("run"), Column("mean", "share")), ((name, 0.5), ("b", 0.5)))
    assert "](" not in as_text(table, "markdown")


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


def test_a_value_is_shown_as_its_kind_asks() -> None:
    shown = {
        ("text", 1.5): "1.5",
        ("count", 12345): "12,345",
        ("share", 0.12345): "0.123",
        ("difference", 0.5): "+0.500",
        ("interval", (0.1, 0.25)): "[0.100, 0.250]",
        ("signed interval", (-0.1, 0.25)): "[-0.100, +0.250]",
        ("p", 0.012345): "0.012",
    }
    assert {(kind, value): Column("x", kind).formatted(value) for kind, value in shown} == shown  # type: ignore[arg-type]
    assert (Column("left_out").heading, Column("x", label="y").heading) == ("left out", "y")
    assert (interval_text(None), interval_text([0.5, 1.0])) == ("(no interval)", "[0.500, 1.000]")


SMALL = FlatTable(
    "Scores",
    (
        Column("set"),
        Column("policy"),
        Column("n", "count"),
        Column("mean", "share", "the mean"),
        Column("empty", "p"),
    ),
    (("x_1", "p%", 1000, 0.5, None), ("y", "p%", 2, 0.25, None)),
)


def test_the_whole_of_a_small_table_in_every_format() -> None:
    """The policy is the same in both rows and stands in the title; nothing was measured of the last column."""
    assert as_text(SMALL, "csv") == ("set,policy,n,mean,empty\nx_1,p%,1000,0.5,\ny,p%,2,0.25,\n")
    assert as_text(SMALL, "markdown") == (
        "Scores, policy p%\n\n| set | n | the mean |\n|---|---:|---:|\n| x\\_1 | 1,000 | 0.500 |\n| y | 2 | 0.250 |\n"
    )
    assert as_text(SMALL, "latex").splitlines()[1:] == [
        r"\begin{table}",
        r"\centering",
        r"\caption{Scores, policy p\%}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"set & n & the mean \\",
        r"\midrule",
        r"x\_1 & 1,000 & 0.500 \\",
        r"y & 2 & 0.250 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    with pytest.raises(UnknownName, match=r"'markdwn'.*'markdown'"):
        as_text(SMALL, "markdwn")


def test_special_letters_are_written_out() -> None:
    table = FlatTable("t", (Column("a"), Column("n", "count")), ((HOSTILE, 1), ("[x", 2)))
    latex = as_text(table, "latex").splitlines()
    assert latex[8] == (
        r"a|b_c%d&e#f$g{h}i~j^k".replace("|", r"\textbar{}").replace("_", r"\_").replace("%", r"\%")
        .replace("&", r"\&").replace("#", r"\#").replace("$", r"\$").replace("g{h}i", r"g\{h\}i")
        .replace("~", r"\textasciitilde{}").replace("^", r"\textasciicircum{}")
        + r"\textbackslash{}l m\textless{}n\textgreater{} & 1 \\"
    )  # fmt: skip
    assert latex[9] == r"{[x} & 2 \\"
    assert as_text(table, "markdown").splitlines()[4] == (r"| a\|b\_c%d&e#f$g{h}i~j^k\\l m\<n> | 1 |")


def test_a_table_is_parted_by_the_values_of_a_column() -> None:
    rows = (("x", 1, "a"), ("y", 2, "b"), ("x", 3, "c"))
    table = FlatTable("t", (Column("set"), Column("n", "count"), Column("scorer")), rows)
    parts = table.parts("set")
    assert [(part.title, part.rows) for part in parts] == [("x", ((1, "a"), (3, "c"))), ("y", ((2, "b"),))]
    assert [column.name for column in parts[0].columns] == ["n", "scorer"]
    assert [part.title for part in table.parts("scorer")] == ["a", "b", "c"]


def test_the_rows_of_an_evaluation_its_judge_and_its_bounds(
    tmp_path: Path, record: Maker, write_run: Writer
) -> None:
    bound = {"mean": 0.9, "ci95": [0.8, 1.0], "n": 4, "interval": "wilson", "version": 1}
    rows = [record("a"), record("b", valid=False)]
    write_run(tmp_path / "run", rows, bounds={"oracle": bound, "expert": {"mean": 0.0, "ci95": None, "n": 4}})
    results = read_results(tmp_path / "run")
    judged = {"mean": 0.5, "ci95": [0.1, 0.9], "n": 1, "interval": "t", "version": 2}
    write_results(tmp_path / "run", results | {"judged": {"judge_x": judged}})
    own = results["scores"]["em_squad"]
    about = ("fictional", "test", "run", "scripted", "bm25:x")
    assert score_table([tmp_path / "run"]).rows == (
        (*about, "run", "em_squad", "1", 1, 1.0, tuple(own["ci95"]), own["interval"], 1),
        (*about, "run", "judge_x", "2", 1, 0.5, (0.1, 0.9), "t", 1),
        (*about, "bound oracle", "em_squad", "1", 4, 0.9, (0.8, 1.0), "wilson", None),
        (*about, "bound expert", "em_squad", None, 4, 0.0, None, None, None),
    )


def test_the_means_of_a_suite_come_last_under_its_name(suites: tuple[Path, Path]) -> None:
    table = export_table([suites[0]], None, ["cem"])
    assert [row[0] for row in table.rows] == [*SETS, "macro mean of 4 sets", "micro mean of 4 sets"]
    means = json.loads((suites[0] / "suite.json").read_text())["scores"]["cem"]
    macro, micro = means["macro"], means["micro"]
    shared = ("", "a", None, None, "mean over sets", "cem", "1")
    assert table.rows[-2][1:] == (*shared, None, macro["mean"], tuple(macro["ci95"]), None, None)
    assert table.rows[-1][1:] == (*shared, 40, micro["mean"], tuple(micro["ci95"]), None, None)


def test_evaluations_of_training_are_listed_as_they_were_made(
    tmp_path: Path, record: Maker, write_run: Writer
) -> None:
    for name in ("zero", "before", "after", "else"):
        write_run(tmp_path / "evaluation" / name, [record("q")])
    runs = [row[2] for row in score_table([tmp_path]).rows]
    assert runs == [f"{tmp_path.name}/{name}" for name in ("before", "after", "else", "zero")]


def test_a_difference_is_a_row_with_the_name_of_its_set(suites: tuple[Path, Path]) -> None:
    first, second = (folder / "musique" for folder in suites)
    found = compare(first, second, scorer="em_squad")
    row = found["scores"]["em_squad"]
    tests = (row["p_mcnemar"], None, row["p_bootstrap"], None)
    values = ("1", 10, 0, 0.3, 0.6, row["difference"], tuple(row["ci95"]), 0, 3)
    table = export_table([second], first, ["em_squad"])
    assert table.rows == (("musique test", "em_squad", *values, *tests),)
    assert str(first) in table.title.partition("second")[0]
    (_, _, squad, _) = SETS
    (one,) = [r for r in export_table([suites[1]], suites[0], ["em_squad"]).rows if r[0] == squad]
    assert one[:3] == (squad, "em_squad", "1")
    assert None not in one[-4:]  # of a suite the corrected values stand beside the plain ones


def test_which_folder_holds_nothing_is_said(tmp_path: Path, suites: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigurationError, match=rf"{tmp_path.name}.*{suites[0].name}"):
        export_table([suites[0]], suites[0] / "musique", [])
