"""Several evaluations of one system on the same questions with different seeds: the variation between seeds.

The error over questions and the error over seeds are different quantities and reported separately. A question counts only if
every run answered it without an infrastructure failure.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentenv.core.io.files import write_text
from agentenv.errors import ConfigurationError
from agentenv.evaluation.compare import check_same_questions, other_rewards
from agentenv.evaluation.records import EpisodeRecord, Evaluation, read_evaluation
from agentenv.evaluation.results import OUTCOME, clusters_of, measure_of, values_of
from agentenv.evaluation.statistics.sequential import Decision, compare_sequentially
from agentenv.evaluation.statistics.significance import all_at_k, estimate, paired_bootstrap, pass_at_k

Json = dict[str, Any]


@dataclass(frozen=True)
class Runs:
    """The scores of S runs on the N questions that all of them answered."""

    ids: tuple[str, ...]
    clusters: list[str]
    scores: NDArray[np.float64]  # [N, S]
    left_out: int


def read_runs(directories: Sequence[Path], scorer: str, *, also: Sequence[Path] = ()) -> Runs:
    """Reads the scores of ``directories`` under ``scorer``, on questions without a fault in these and in ``also``.

    Raises:
        ConfigurationError: there are no folders, the same folder twice, or runs with different questions
            (`check_same_questions`).
    """
    everything = [*directories, *also]
    if not directories or len({path.resolve() for path in everything}) < len(everything):
        raise ConfigurationError("Give the folders of several runs, each once.")
    runs = [read_evaluation(path) for path in everything]
    for run in runs[1:]:
        check_same_questions(runs[0], run)
    valid = set.intersection(*({r["id"] for r in run.records if r["valid"]} for run in runs))
    if not valid:
        raise ConfigurationError("No question was answered without a fault in all runs.")
    kept = [_rows(run, valid) for run in runs[: len(directories)]]
    columns = [values_of(rows, scorer) for rows in kept]
    names = tuple(record["id"] for record in kept[0])
    return Runs(names, clusters_of(kept[0]), np.array(columns).T, len(runs[0].records) - len(valid))


def _rows(run: Evaluation, valid: set[str]) -> list[EpisodeRecord]:
    return sorted((r for r in run.records if r["id"] in valid), key=lambda record: record["id"])


def summarize_runs(runs: Runs, scorer: str, ks: Sequence[int] = (), *, seed: int = 0) -> Json:
    """Computes avg@S, pass@k and all@k over questions, and mean, range and standard error over seeds.

    Args:
        runs: S runs.
        scorer: The scorer of the runs; pass@k requires values of 0 and 1.
        ks: The values of k for pass@k; if empty, S and every power of two up to S.
        seed: The seed of the bootstrap.

    Raises:
        ConfigurationError: a k is greater than the number of runs.
    """
    n_seeds = runs.scores.shape[1]
    by_seed = [float(mean) for mean in runs.scores.mean(axis=0)]
    e = estimate(runs.scores.mean(axis=1), clusters=runs.clusters, seed=seed)
    table: Json = {
        "n": e.n,
        "left_out": runs.left_out,
        "seeds": n_seeds,
        f"avg@{n_seeds}": {"mean": e.mean, "ci95": e.ci95, "interval": e.method},
        "over_seeds": {
            "means": by_seed,
            "low": min(by_seed),
            "high": max(by_seed),
            "standard_error": stdev(by_seed) / n_seeds**0.5 if n_seeds > 1 else None,
        },
    }
    if measure_of(scorer).binary:
        correct = [int(count) for count in runs.scores.sum(axis=1)]
        for k in ks or sorted({2**i for i in range(n_seeds.bit_length()) if 2**i <= n_seeds} | {n_seeds}):
            for name, chance in (("pass", pass_at_k), ("all", all_at_k)):
                found = [chance(n_seeds, count, k) for count in correct]
                at = estimate(found, clusters=runs.clusters, seed=seed)
                table[f"{name}@{k}"] = {"mean": at.mean, "ci95": at.ci95, "interval": at.method}
    return table


SAMPLES = "samples.json"


def write_samples(folders: Sequence[Path], out: Path) -> Json:
    """Writes `summarize_runs` of an evaluation's samples, for each of their scorers, to ``samples.json`` in ``out``.

    Raises:
        ConfigurationError: as in `read_runs`.
    """
    scorers = list(read_evaluation(folders[0]).results["scores"])
    found = {"samples": {name: summarize_runs(read_runs(folders, name), name) for name in scorers}}
    write_text(out / SAMPLES, json.dumps(found, indent=2) + "\n")
    return found


def compare_runs(
    first: Sequence[Path],
    second: Sequence[Path],
    scorer: str,
    *,
    per_interim: int = 5,
    interims: int = 5,
    alpha: float = 0.05,
    seed: int = 0,
) -> Json:
    """Compares two systems with several seeds each: is one better, and are there enough seeds to decide?

    ``sequential`` tests one mean per seed (the population is other seeds of training). ``questions`` pairs the questions,
    each with its mean over seeds (the population is other questions). ``notes`` is there if rewards were paid under other
    settings.

    Raises:
        ConfigurationError: as in `read_runs` and `compare_sequentially`.
    """
    a, b = read_runs(first, scorer, also=second), read_runs(second, scorer, also=first)
    by_seed = {"first": list(a.scores.mean(axis=0)), "second": list(b.scores.mean(axis=0))}
    decision = compare_sequentially(
        by_seed, per_interim=per_interim, interims=interims, alpha=alpha, seed=seed
    )
    means = (b.scores.mean(axis=1), a.scores.mean(axis=1))
    paired = paired_bootstrap(*means, clusters=a.clusters, seed=seed)
    notes = other_rewards(read_evaluation(first[0]), read_evaluation(second[0])) if scorer == OUTCOME else []
    return {
        **({"notes": notes} if notes else {}),
        "difference": fmean(by_seed["first"]) - fmean(by_seed["second"]),
        "questions": {
            "ci95": paired.ci95,
            "p_bootstrap": paired.p_value,
            "n": len(a.ids),
            "left_out": a.left_out,
        },
        "sequential": _as_json(decision) | {"per_interim": per_interim, "interims": interims, "alpha": alpha},
    }


def _as_json(decision: Decision) -> Json:
    (pair,) = decision.pairs
    return {
        "verdict": str(pair.verdict),
        "difference": pair.difference,
        "ci95": pair.ci95,
        "seeds": pair.seeds,
        "enough": decision.enough,
        "more_seeds": decision.more_seeds,
        "interim": decision.interims,
    }
