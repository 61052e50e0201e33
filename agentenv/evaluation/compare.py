"""Compares two evaluations of the same questions, and adds further scorers to one evaluation."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from statistics import fmean
from typing import Any

from agentenv.errors import ConfigurationError
from agentenv.evaluation.llm_judge import cached_grades
from agentenv.evaluation.records import (
    EpisodeRecord,
    Evaluation,
    read_evaluation,
    read_suite_summary,
    write_results,
)
from agentenv.evaluation.results import (
    OUTCOME,
    RECORDED,
    Json,
    clusters_of,
    load_measure,
    measure_of,
    score_tables,
    values_of,
)
from agentenv.evaluation.rubrics import Grade, get_rubric
from agentenv.evaluation.statistics.macro import macro_mean
from agentenv.evaluation.statistics.significance import (
    holm,
    mcnemar_clustered,
    mcnemar_exact,
    paired_bootstrap,
)

Pair = tuple[EpisodeRecord, EpisodeRecord]


def compare_suites(dir_a: Path, dir_b: Path, *, scorer: str | None = None) -> Json:
    """Compares two suites set by set. P-values are corrected for the number of sets, for each scorer separately (Holm).

    Returns:
        ``sets`` holds the comparison of each set, as `compare` gives it, its rows with ``p_mcnemar_holm`` and
        ``p_bootstrap_holm``; ``macro`` the mean difference over sets for each scorer, and ``macro_ci95`` its interval over
        the questions of these sets. P-values are not corrected for the number of scorers.

    Raises:
        ConfigurationError: the suites have different sets, or one of the reasons of `compare`.
    """
    names, others = (read_suite_summary(directory)["sets"] for directory in (dir_a, dir_b))
    if sorted(names) != sorted(others):
        raise ConfigurationError(
            f"Only suites of the same sets can be compared, not {names} against {others}."
        )
    both = {name: _compared(dir_a / name, dir_b / name, scorer, 0) for name in names}
    sets = {name: found for name, (found, _) in both.items()}
    _correct(sets)
    values: dict[str, list[_PairedValues]] = {}
    for _, measured in both.values():
        for name, one in measured.items():
            values.setdefault(name, []).append(one)
    macro = {
        name: macro_mean([m.differences for m in several], [m.clusters for m in several], lowest=-1.0)
        for name, several in values.items()
    }
    return {
        "a": str(dir_a),
        "b": str(dir_b),
        "sets": sets,
        "macro": {name: mean for name, (mean, _) in macro.items()},
        "macro_ci95": {name: ends for name, (_, ends) in macro.items()},
    }


def _correct(sets: Mapping[str, Json]) -> None:
    """Adds to the rows of each set its p-values corrected for the number of sets with the same scorer (Holm)."""
    rows: dict[str, list[Json]] = {}
    for part in sets.values():
        for name, row in part["scores"].items():
            rows.setdefault(name, []).append(row)
    for several in rows.values():
        for test in ("p_mcnemar", "p_bootstrap"):
            having = [row for row in several if test in row]
            for row, adjusted in zip(having, holm([row[test] for row in having]), strict=True):
                row[f"{test}_holm"] = adjusted


def compare(dir_a: Path, dir_b: Path, *, scorer: str | None = None, seed: int = 0) -> Json:
    """Pairs two evaluation folders by question id.

    Differences are B minus A: a positive one means that the second is better. Questions on which either run had an
    infrastructure failure are left out of both and counted, as are the failures of each run. Questions that a judge has not
    graded in both runs are left out of its row. If questions share a passage, both tests treat each passage as a cluster.
    Grades of judges are read from the folders.

    Args:
        dir_a: An evaluation folder.
        dir_b: Another evaluation folder over the same questions.
        scorer: One scorer, or a judge as ``judge_RUBRIC``; None compares all that both folders have.
        seed: The seed of the bootstrap.

    Returns:
        Both folders, the number of questions and, for each scorer, the difference with its interval and tests; ``notes`` if
        rewards were paid under other settings. If the questions belong to several sets, ``by_set`` has the same for each
        set, with p-values that are also corrected for the number of sets as in `compare_suites`. Each interval has a level
        of 95 %.

    Raises:
        ConfigurationError: data set, questions, scorer version or judge differ, or the folders have no scorer in common.
    """
    return _compared(dir_a, dir_b, scorer, seed)[0]


def _compared(
    dir_a: Path, dir_b: Path, scorer: str | None, seed: int
) -> tuple[Json, dict[str, "_PairedValues"]]:
    """Returns the result of `compare`, and the values by scorer from which it was computed."""
    a, b = read_evaluation(dir_a), read_evaluation(dir_b)
    pairs = _pair(a, b)
    measured = {name: _measured(name, (a, b), pairs) for name in _common_scorers(a, b, scorer)}
    found = {
        "a": str(dir_a),
        "b": str(dir_b),
        "dataset": a.results.get("dataset"),
        "split": a.results.get("split"),
        **_counts(a.records, b.records, pairs),
        "scores": {name: _compare_under(m, seed) for name, m in measured.items()},
    }
    if OUTCOME in measured and (notes := other_rewards(a, b)):
        found["notes"] = notes
    sets = sorted({str(record["set"]) for record in a.records if record.get("set")})
    if len(sets) > 1:
        found["by_set"] = {name: _of_set(name, (a, b), pairs, measured, seed) for name in sets}
        _correct(found["by_set"])
    return found, measured


def other_rewards(a: Evaluation, b: Evaluation) -> list[str]:
    """What to say where the two runs need not have been paid for the same: another environment, or other options of it."""
    first, second = (side.results.get("settings", {}) for side in (a, b))
    options = [{**one.get("trained_options", {}), **one.get("options", {})} for one in (first, second)]
    others = [name for name in ("env",) if first.get(name) != second.get(name)]
    others += sorted(key for key in {*options[0], *options[1]} if options[0].get(key) != options[1].get(key))
    if not others:
        return []
    return [
        f"{OUTCOME} is what the environment of each run paid, and the runs differ in {', '.join(others)}: where that "
        "changes what is paid for, its difference does not say which answers are better"
    ]


def _counts(a: Sequence[EpisodeRecord], b: Sequence[EpisodeRecord], pairs: Sequence[Pair]) -> Json:
    return {
        "n": len(pairs),
        "left_out": len(a) - len(pairs),
        "faults_a": sum(not record["valid"] for record in a),
        "faults_b": sum(not record["valid"] for record in b),
    }


def _of_set(
    name: str,
    sides: tuple[Evaluation, Evaluation],
    pairs: Sequence[Pair],
    measured: Mapping[str, "_PairedValues"],
    seed: int,
) -> Json:
    """Compares the questions of one set; scorers without a value in this set are left out."""
    (a, b) = ([record for record in side.records if record.get("set") == name] for side in sides)
    own = [pair for pair in pairs if pair[0].get("set") == name]
    parts = {scorer: m.of_set(name) for scorer, m in measured.items()}
    scores = {scorer: _compare_under(part, seed) for scorer, part in parts.items() if part.a}
    return {**_counts(a, b, own), "scores": scores}


def rescore(directory: Path, scorers: Sequence[str]) -> Json:
    """Adds scorers to ``results.json``, computed from the same episodes; returns the new content.

    Raises:
        ConfigurationError: the folder is no evaluation, or a scorer is unknown or needs an entry that no episode has.
            Nothing is written then.
    """
    evaluation = read_evaluation(directory)
    scored = [record for record in evaluation.records if record["valid"]]
    for name in scorers:
        load_measure(name)
        entry = RECORDED[name].entry if name in RECORDED else None
        if entry and not any(entry in one for one in scored):
            raise ConfigurationError(
                f"{name} needs the entry {entry!r} that some environments add to the record of an episode, and no "
                f"episode of {directory} has one."
            )
    seed, faults = evaluation.results.get("seed", 0), len(evaluation.records) - len(scored)
    tables = score_tables(scored, scorers, seed=seed, faults=faults)
    results = dict(evaluation.results)
    results["scores"] = {**results.get("scores", {}), **tables["scores"]}
    for table in ("by_set", "by_family", "by_hops"):
        results[table] = _merged(results.get(table, {}), tables[table])
    write_results(directory, results)
    return results


def _merged(old: Json, new: Json) -> Json:
    return {
        value: {**group, "scores": {**old.get(value, {}).get("scores", {}), **group["scores"]}}
        for value, group in new.items()
    }


def check_same_questions(a: Evaluation, b: Evaluation) -> None:
    """Refuses two evaluations that are not over the same questions: equal ids alone do not say so.

    Raises:
        ConfigurationError: another data set, split, id or accepted answer.
    """
    for key in ("dataset", "split"):
        if a.results.get(key) != b.results.get(key):
            raise ConfigurationError(
                f"Only runs over the same {key} can be compared, not {a.results.get(key)!r} in {a.directory} against "
                f"{b.results.get(key)!r} in {b.directory}."
            )
    answers_b = {record["id"]: list(record["answers"]) for record in b.records}
    only = sorted({record["id"] for record in a.records} ^ set(answers_b))
    if only:
        raise ConfigurationError(
            f"Only runs over the same questions can be compared; of {a.directory} and {b.directory} {len(only)} are in one "
            f"alone, for example {only[0]!r}: give both the same --limit and --seed."
        )
    for record in a.records:
        if list(record["answers"]) != answers_b[record["id"]]:
            raise ConfigurationError(
                f"{a.directory} and {b.directory} have different accepted answers for {record['id']!r}."
            )


def _pair(a: Evaluation, b: Evaluation) -> list[Pair]:
    check_same_questions(a, b)
    rows_b = {record["id"]: record for record in b.records}
    pairs = [(record, rows_b[record["id"]]) for record in a.records]
    kept = [(left, right) for left, right in pairs if left["valid"] and right["valid"]]
    if not kept:
        raise ConfigurationError("No question was answered without a fault in both runs: nothing to compare.")
    return kept


def _common_scorers(a: Evaluation, b: Evaluation, scorer: str | None) -> list[str]:
    """Returns the scorers to compare, and the judges, which are named ``judge_RUBRIC``."""
    (all_a, all_b) = tables = [_scored_by(side) for side in (a, b)]
    if scorer is not None and not any(scorer in found for found in tables):
        measure_of(scorer)  # raises UnknownName for an unknown one
    names = [name for name in all_a if name in all_b] if scorer is None else [scorer]
    if not names:
        raise ConfigurationError(
            f"The runs have no scorer in common ({', '.join(all_a)} against {', '.join(all_b)}): "
            "run agentenv rescore on one of them."
        )
    for name in names:
        for side, found in zip((a, b), tables, strict=True):
            if name not in found:
                asked = "--judge openai:MODEL@URL" if name.startswith("judge_") else f"--scorer {name}"
                folder = str(side.directory)
                raise ConfigurationError(
                    f"{folder!r} has no {name} score; run: agentenv rescore {shlex.quote(folder)} {asked}"
                )
        _refuse_other_measure(name, all_a[name], all_b[name])
    return names


def _scored_by(side: Evaluation) -> dict[str, Json]:
    return {**side.results.get("scores", {}), **side.results.get("judged", {})}


def _refuse_other_measure(name: str, a: Json, b: Json) -> None:
    """Refuses to compare two scores of the same name that were computed differently."""
    if "judge" in a:
        if (a["judge"], a["prompt_sha256"]) != (b["judge"], b["prompt_sha256"]):
            raise ConfigurationError(
                f"{name} was given by {a['judge']} and by {b['judge']}, or under two prompts: judge both runs alike, "
                "or name another scorer with --scorer."
            )
        return
    versions = [a.get("version"), b.get("version"), measure_of(name).version]
    if len(set(versions)) > 1:
        raise ConfigurationError(
            f"The runs were scored by versions {versions[0]} and {versions[1]} of {name}, and this is "
            f"version {versions[2]}: run agentenv rescore on both."
        )


@dataclass(frozen=True)
class _PairedValues:
    """The values of both runs under one scorer, on the questions that it could score in both runs."""

    a: list[float]
    b: list[float]
    clusters: list[str]
    sets: list[Any]
    """The set of each question; None if the evaluation has a single set."""
    version: int
    binary: bool

    def of_set(self, name: str) -> "_PairedValues":
        """Returns the values on the questions of one set."""
        kept = [own == name for own in self.sets]
        columns = (self.a, self.b, self.clusters, self.sets)
        a, b, clusters, sets = (list(compress(column, kept)) for column in columns)
        return _PairedValues(a, b, clusters, sets, self.version, self.binary)

    @property
    def differences(self) -> list[float]:
        """The second value minus the first, for each question."""
        return [y - x for x, y in zip(self.a, self.b, strict=True)]


def _measured(name: str, sides: tuple[Evaluation, Evaluation], pairs: Sequence[Pair]) -> _PairedValues:
    columns = [list(column) for column in zip(*pairs, strict=True)]
    clusters = clusters_of(columns[0])
    sets = [record.get("set") for record in columns[0]]
    if "judge" not in (table := _scored_by(sides[0])[name]):
        a, b = (values_of(column, name) for column in columns)
        return _PairedValues(a, b, clusters, sets, measure_of(name).version, measure_of(name).binary)
    graded = [
        cached_grades(side.directory, table, column) for side, column in zip(sides, columns, strict=True)
    ]
    kept = [
        (x.value, y.value, cluster, own)
        for x, y, cluster, own in zip(*graded, clusters, sets, strict=True)
        if isinstance(x, Grade) and isinstance(y, Grade)
    ]
    if not kept:
        raise ConfigurationError(
            f"No question has a grade of {name} in both runs: run agentenv rescore --judge."
        )
    binary = set(get_rubric(table["rubric"]).verdicts.values()) <= {0.0, 1.0}
    left, right, passages, of = (list(column) for column in zip(*kept, strict=True))
    return _PairedValues(left, right, passages, of, table["version"], binary)


def _compare_under(m: _PairedValues, seed: int) -> Json:
    signs = [(y > x) - (y < x) for x, y in zip(m.a, m.b, strict=True)]
    only_a, only_b = signs.count(-1), signs.count(1)
    clustered = len(set(m.clusters)) < len(m.clusters)
    paired = paired_bootstrap(m.a, m.b, clusters=m.clusters, seed=seed)
    result: dict[str, Any] = {
        "version": m.version,
        "n": len(m.a),
        "mean_a": fmean(m.a),
        "mean_b": fmean(m.b),
        "difference": paired.difference,
        "ci95": paired.ci95,
        "interval": paired.method,
        "a_better": only_a,
        "b_better": only_b,
        "discordant": only_a + only_b,
        "p_bootstrap": paired.p_value,
    }
    if m.binary:
        exact = mcnemar_clustered(signs, m.clusters) if clustered else mcnemar_exact(only_a, only_b)
        result["p_mcnemar"] = exact
    return result
