"""Exports scores of evaluations, suites and training runs, and differences between two of them, as flat tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentenv.errors import ConfigurationError, check_known
from agentenv.evaluation.compare import compare, compare_suites
from agentenv.evaluation.records import EPISODES, RESULTS, SUITE, read_results, read_suite_summary
from agentenv.evaluation.report.flat_tables import Column, FlatTable

Json = dict[str, Any]

SCORES = (
    Column("set"),
    Column("split"),
    Column("run"),
    Column("policy"),
    Column("retriever"),
    Column("measured"),
    Column("scorer"),
    Column("version"),
    Column("n", "count"),
    Column("mean", "share"),
    Column("ci95", "interval", "95 % interval"),
    Column("interval", label="method"),
    Column("faults", "count"),
)
"""The columns of `score_table`."""

DIFFERENCES = (
    Column("set"),
    Column("scorer"),
    Column("version"),
    Column("n", "count"),
    Column("left_out", "count"),
    Column("first", "share"),
    Column("second", "share"),
    Column("difference", "difference"),
    Column("ci95", "signed interval", "95 % interval"),
    Column("first_better", "count"),
    Column("second_better", "count"),
    Column("p_mcnemar", "p", "p McNemar"),
    Column("p_mcnemar_holm", "p", "p McNemar, Holm"),
    Column("p_bootstrap", "p", "p bootstrap"),
    Column("p_bootstrap_holm", "p", "p bootstrap, Holm"),
)
"""The columns of `difference_table`."""


def export_table(directories: Sequence[Path], against: Path | None, scorers: Sequence[str]) -> FlatTable:
    """Returns the scores of evaluations, suites and training runs, or the differences between two of a kind.

    Args:
        directories: One or more folders.
        against: An evaluation or suite to compare with; ``directories`` then has a single folder. Differences are
            ``directories[0]`` minus ``against``.
        scorers: The scorers and judges (``judge_RUBRIC``) to list; all if empty.

    Raises:
        ConfigurationError: there is no folder, a folder contains nothing to export, there are several with ``against``, or
            the two cannot be compared.
        UnknownName: no folder has a score of that name.
    """
    if not directories:
        raise ConfigurationError("Name one or more folders of evaluations, suites or training runs.")
    if against is None:
        table = score_table(directories)
    elif len(directories) == 1:
        suites = [(folder / SUITE).is_file() for folder in (directories[0], against)]
        if len(set(suites)) > 1:
            raise ConfigurationError(
                f"Only one of {directories[0]} and {against} is a suite; compare like with like."
            )
        table = difference_table((compare_suites if suites[0] else compare)(against, directories[0]))
    else:
        raise ConfigurationError(
            f"--against compares one folder with another one, and {len(directories)} are given."
        )
    return _under(table, scorers)


def _under(table: FlatTable, scorers: Sequence[str]) -> FlatTable:
    place = [column.name for column in table.columns].index("scorer")
    known = {row[place] for row in table.rows}
    for scorer in scorers:
        check_known("score in these folders:", scorer, known)
    return replace(table, rows=tuple(row for row in table.rows if not scorers or row[place] in scorers))


def score_table(directories: Sequence[Path]) -> FlatTable:
    """Returns one row for each set, run and scorer, each followed by its bounds; the means of a suite come last.

    Raises:
        ConfigurationError: a folder contains no finished evaluation, suite or training run.
    """
    rows: list[tuple[Any, ...]] = []
    for directory in directories:
        for folder, name, run in _evaluations(directory):
            rows += _score_rows(name, run, read_results(folder))
        if (directory / SUITE).is_file():
            rows += _mean_rows(directory)
    return FlatTable("Scores", SCORES, tuple(rows))


def _evaluations(directory: Path) -> list[tuple[Path, str, str]]:
    """Lists the evaluations in a folder: the path, the name of the set in a suite, and the run that it belongs to."""
    own = directory.resolve().name
    if (directory / SUITE).is_file():
        return [(directory / name, name, own) for name in read_suite_summary(directory)["sets"]]
    if (directory / EPISODES).is_file():
        return [(directory, "", own)]
    found = sorted(path.parent for path in directory.glob(f"evaluation/*/{RESULTS}"))
    if not found:
        raise ConfigurationError(
            f"{str(directory)!r} holds no finished evaluation, suite or training run: "
            f"there is no {EPISODES}, {SUITE} or evaluation/*/{RESULTS} in it."
        )
    order = {"before": 0, "after": 1}
    found.sort(key=lambda path: order.get(path.name, 2))
    return [(path, "", f"{own}/{path.name}") for path in found]


def _score_rows(name: str, run: str, results: Json) -> list[tuple[Any, ...]]:
    of = (results.get("policy"), results.get("retriever"))
    about = (name or results.get("dataset"), results.get("split"), run, *of)
    scores = {**results.get("scores", {}), **results.get("judged", {})}
    headline = next(iter(scores), "")
    rows = [_row(about, "run", scorer, score, results.get("faults")) for scorer, score in scores.items()]
    rows += [
        _row(about, f"bound {bound}", headline, score, None)
        for bound, score in results.get("bounds", {}).items()
        if score.get("mean") is not None
    ]
    return rows


def _row(
    about: tuple[Any, ...], measured: str, scorer: str, score: Mapping[str, Any], faults: int | None
) -> tuple[Any, ...]:
    ci95 = score.get("ci95")
    values = (score.get("n"), score.get("mean"), (ci95[0], ci95[1]) if ci95 else None, score.get("interval"))
    return (*about, measured, scorer, _version(score), *values, faults)


def _version(score: Mapping[str, Any]) -> str | None:
    version = score.get("version")
    return None if version is None else str(version)


def _mean_rows(directory: Path) -> list[tuple[Any, ...]]:
    """Returns the macro and micro means of a suite. The macro mean is over sets, so its n is their number."""
    summary, own = read_suite_summary(directory), directory.resolve().name
    rows = []
    for scorer, means in summary["scores"].items():
        for kind in ("macro", "micro"):
            about = (f"{kind} mean of {len(summary['sets'])} sets", "", own, None, None)
            rows.append(
                _row(about, "mean over sets", scorer, {"version": means.get("version"), **means[kind]}, None)
            )
    return rows


def difference_table(found: Json) -> FlatTable:
    """Makes one row for each set and scorer of a result of `compare` or `compare_suites`; all sets together first."""
    whole = f"{found.get('dataset')} {found.get('split')}".strip()
    sets: Mapping[str, Json] = found.get("sets") or {whole: found, **found.get("by_set", {})}
    rows = [
        (
            *(
                name,
                scorer,
                _version(row),
                row["n"],
                part["left_out"],
                row["mean_a"],
                row["mean_b"],
                row["difference"],
            ),
            *(row["ci95"] and tuple(row["ci95"]), row["a_better"], row["b_better"]),
            *(row.get(column.name) for column in DIFFERENCES if column.kind == "p"),
        )
        for name, part in sets.items()
        for scorer, row in part["scores"].items()
    ]
    return FlatTable(
        f"First {found['a']}, second {found['b']}, difference second less first", DIFFERENCES, tuple(rows)
    )
