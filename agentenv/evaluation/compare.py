"""Two evaluations of the same questions against each other, and one evaluation under another scorer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentenv.core.scorers import get_scorer
from agentenv.errors import ConfigurationError
from agentenv.evaluation.records import (
    SUITE,
    Evaluation,
    Record,
    read_evaluation,
    read_json,
    write_results,
)
from agentenv.evaluation.results import Json, score_tables, values_of
from agentenv.evaluation.statistics import holm, mcnemar_exact, paired_bootstrap


def compare_suites(dir_a: Path, dir_b: Path, *, scorer: str | None = None, seed: int = 0) -> Json:
    """Compares two suites set by set; of every scorer all p-values are corrected for the number of sets (Holm).

    Returns:
        ``sets`` holds the comparison of each set, as `compare` gives it, its rows with ``p_mcnemar_holm`` and
        ``p_bootstrap_holm``; ``macro`` the mean difference over sets for each scorer.

    Raises:
        ConfigurationError: not the same sets, or as in `compare`.
    """
    names, others = (read_json(directory / SUITE)["sets"] for directory in (dir_a, dir_b))
    if sorted(names) != sorted(others):
        raise ConfigurationError(
            f"Only suites of the same sets can be compared, not {names} against {others}."
        )
    sets = {name: compare(dir_a / name, dir_b / name, scorer=scorer, seed=seed) for name in names}
    rows: dict[str, list[Json]] = {}
    for found in sets.values():
        for name, row in found["scores"].items():
            rows.setdefault(name, []).append(row)
    for several in rows.values():
        for test in ("p_mcnemar", "p_bootstrap"):
            having = [row for row in several if test in row]
            for row, adjusted in zip(having, holm([row[test] for row in having]), strict=True):
                row[f"{test}_holm"] = adjusted
    return {
        "a": str(dir_a),
        "b": str(dir_b),
        "sets": sets,
        "macro": {
            name: sum(row["difference"] for row in several) / len(several) for name, several in rows.items()
        },
    }


def compare(dir_a: Path, dir_b: Path, *, scorer: str | None = None, seed: int = 0) -> Json:
    """Pairs two evaluation folders by question id.

    Differences are B minus A: positive means that the second is better. Questions on which either run had a
    fault of ours are left out of both and counted.

    Args:
        dir_a: an evaluation folder.
        dir_b: another one, over the same questions.
        scorer: one scorer; None compares under all that both have.
        seed: of the bootstrap.

    Raises:
        ConfigurationError: other data set, questions or scorer version, or no scorer in common.
    """
    a, b = read_evaluation(dir_a), read_evaluation(dir_b)
    pairs = _pair(a, b)
    names = _common_scorers(a, b, scorer)
    return {
        "a": str(dir_a),
        "b": str(dir_b),
        "dataset": a.results.get("dataset"),
        "split": a.results.get("split"),
        "n": len(pairs),
        "left_out": len(a.records) - len(pairs),
        "scores": {name: _compare_under(name, pairs, seed) for name in names},
    }


def rescore(directory: Path, scorers: Sequence[str]) -> Json:
    """Adds scorers to ``results.json`` from the same episodes; returns the new content.

    Raises:
        ConfigurationError: not an evaluation folder, or an unknown scorer. Nothing is written then.
    """
    evaluation = read_evaluation(directory)
    scored = [record for record in evaluation.records if record["valid"]]
    tables = score_tables(scored, scorers, seed=evaluation.results.get("seed", 0))
    results = dict(evaluation.results)
    results["scores"] = {**results.get("scores", {}), **tables["scores"]}
    for table in ("by_family", "by_hops"):
        results[table] = _merged(results.get(table, {}), tables[table])
    write_results(directory, results)
    return results


def _merged(old: Json, new: Json) -> Json:
    return {
        value: {**group, "scores": {**old.get(value, {}).get("scores", {}), **group["scores"]}}
        for value, group in new.items()
    }


def _pair(a: Evaluation, b: Evaluation) -> list[tuple[Record, Record]]:
    for key in ("dataset", "split"):
        if a.results.get(key) != b.results.get(key):
            raise ConfigurationError(
                f"Only runs over the same {key} can be compared, not {a.results.get(key)!r} against "
                f"{b.results.get(key)!r}."
            )
    rows_b = {record["id"]: record for record in b.records}
    only = sorted({record["id"] for record in a.records} ^ set(rows_b))
    if only:
        raise ConfigurationError(
            f"Only runs over the same questions can be compared; {len(only)} are in one run alone, "
            f"for example {only[0]!r}: give both the same --limit and --seed."
        )
    for record in a.records:
        if list(record["answers"]) != list(rows_b[record["id"]]["answers"]):
            raise ConfigurationError(f"The two runs have different accepted answers for {record['id']!r}.")
    pairs = [(record, rows_b[record["id"]]) for record in a.records]
    kept = [(left, right) for left, right in pairs if left["valid"] and right["valid"]]
    if not kept:
        raise ConfigurationError("No question was answered without a fault in both runs: nothing to compare.")
    return kept


def _common_scorers(a: Evaluation, b: Evaluation, scorer: str | None) -> list[str]:
    scores_a, scores_b = a.results.get("scores", {}), b.results.get("scores", {})
    names = [name for name in scores_a if name in scores_b] if scorer is None else [get_scorer(scorer).name]
    if not names:
        raise ConfigurationError(
            f"The runs have no scorer in common ({', '.join(scores_a)} against {', '.join(scores_b)}): "
            "run agentenv rescore on one of them."
        )
    for name in names:
        for side in (a, b):
            if name not in side.results.get("scores", {}):
                raise ConfigurationError(
                    f"{str(side.directory)!r} has no {name} score; run: agentenv rescore {side.directory} "
                    f"--scorer {name}"
                )
        versions = [scores_a[name].get("version"), scores_b[name].get("version"), get_scorer(name).version]
        if len(set(versions)) > 1:
            raise ConfigurationError(
                f"The runs were scored by versions {versions[0]} and {versions[1]} of {name}, and this is "
                f"version {versions[2]}: run agentenv rescore on both."
            )
    return names


def _compare_under(name: str, pairs: Sequence[tuple[Record, Record]], seed: int) -> Json:
    a = values_of((left for left, _ in pairs), name)
    b = values_of((right for _, right in pairs), name)
    only_a = sum(x > y for x, y in zip(a, b, strict=True))
    only_b = sum(x < y for x, y in zip(a, b, strict=True))
    paired = paired_bootstrap(a, b, seed=seed)
    result: dict[str, Any] = {
        "version": get_scorer(name).version,
        "mean_a": sum(a) / len(a),
        "mean_b": sum(b) / len(b),
        "difference": paired.difference,
        "ci95": [paired.low, paired.high],
        "a_better": only_a,
        "b_better": only_b,
        "discordant": only_a + only_b,
        "p_bootstrap": paired.p_value,
    }
    if get_scorer(name).binary:
        result["p_mcnemar"] = mcnemar_exact(only_a, only_b)
    return result
