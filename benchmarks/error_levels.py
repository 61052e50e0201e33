"""How often tests find a difference that is not there, and intervals miss the true mean, beside `interval_coverage.py`.

Made-up scores with a known truth: equal systems (independent questions, clusters of 1 to 8 questions, seeds with ties and
with unequal spreads), rewards that leave [-1, 1], pass@k over repeated samples of questions of unequal difficulty, the macro
mean of a suite, systems that differ by an equivalence margin exactly, a difference between systems that are compared until
an interim analysis tells them apart, and families of two to seven equal systems.

    python benchmarks/error_levels.py
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from common import common_arguments, finish, run_script
from numpy.typing import NDArray

from agentenv.evaluation.statistics.equivalence import equivalence_p
from agentenv.evaluation.statistics.power import distinguished
from agentenv.evaluation.statistics.sequential import Pair, Verdict, compare_sequentially, signs
from agentenv.evaluation.statistics.significance import (
    estimate,
    mcnemar_clustered,
    paired_bootstrap,
    pass_at_k,
    wilson_interval,
)
from agentenv.evaluation.suite import combine

Floats = NDArray[np.float64]
Row = dict[str, Any]
LEVEL = 0.05
_TINY = 1e-9  # by which an end may be rounded


def share(what: str, outcomes: Sequence[bool], **setting: Any) -> Row:
    """A row: how often ``what`` happened, with Wilson's interval for the simulations."""
    hits = sum(map(bool, outcomes))
    ends = [round(end, 4) for end in wilson_interval(hits, len(outcomes))]
    return {
        "what": what,
        **setting,
        "share": round(hits / len(outcomes), 4),
        "ci95": ends,
        "n": len(outcomes),
    }


def holds(ends: Sequence[float] | None, truth: float) -> bool:
    """Whether an interval holds the truth; none at all claims nothing."""
    return ends is None or ends[0] - _TINY <= truth <= ends[1] + _TINY


def equal_systems(rng: np.random.Generator, trials: int) -> list[Row]:
    """Two equal systems over the same questions: how often a test finds one better."""
    rows = []
    for questions in (5, 20, 200):
        for right in (0.02, 0.2, 0.5):
            pairs = [rng.random((2, questions)) < right for _ in range(trials)]
            found = [paired_bootstrap(*pair, resamples=1000).p_value <= LEVEL for pair in pairs]
            rows.append(share("equal systems told apart", found, questions=questions, right=right))
    for clusters in (5, 20, 60):
        by_test: dict[str, list[bool]] = {"paired bootstrap": [], "McNemar": []}
        for _ in range(trials):
            of = np.repeat(np.arange(clusters), rng.integers(1, 9, clusters))
            own = np.clip(rng.beta(1, 2, clusters) + rng.normal(0, 0.2, (2, clusters)), 0, 1)[:, of]
            a, b = (rng.random(own.shape) < own).astype(int)
            paired = paired_bootstrap(a, b, clusters=of.tolist(), resamples=1000)
            by_test["paired bootstrap"].append(paired.p_value <= LEVEL)
            by_test["McNemar"].append(mcnemar_clustered((b - a).tolist(), of.tolist()) <= LEVEL)
        rows += [
            share("equal systems told apart", found, clusters=clusters, test=test)
            for test, found in by_test.items()
        ]
    return rows


def rewards(rng: np.random.Generator, trials: int) -> list[Row]:
    """Differences of rewards that leave [-1, 1]."""
    draws: dict[str, tuple[Callable[[int], NDArray[Any]], float]] = {
        "2 for nine of ten": (lambda n: 2.0 * (rng.random(n) < 0.9), 1.8),
        "2 for one of twenty": (lambda n: 2.0 * (rng.random(n) < 0.05), 0.1),
        "2 for nine of ten, else -2": (lambda n: 2 * np.sign(rng.random(n) - 0.1), 1.6),
        "normal, of deviation 3": (lambda n: rng.normal(1, 3, n), 1.0),
    }
    rows = []
    for questions in (5, 20, 60):
        for name, (draw, truth) in draws.items():
            found = [
                paired_bootstrap(np.zeros(questions), draw(questions), resamples=1000) for _ in range(trials)
            ]
            held = [holds(one.ci95, truth) for one in found]
            rows.append(
                share("interval of a difference holds it", held, questions=questions, differences=name)
            )
    return rows


def repeats(rng: np.random.Generator, trials: int) -> list[Row]:
    """pass@k of questions that are sampled several times, whose rates of success are Beta(a, b)."""
    rows = []
    for questions, samples in ((5, 4), (20, 4), (200, 8)):
        for a, b in ((0.2, 0.8), (5.0, 5.0)):
            rates = rng.beta(a, b, 400_000)
            for k in (1, samples):
                truth = float((1 - (1 - rates) ** k).mean())
                held = []
                for _ in range(trials):
                    right = rng.binomial(samples, rng.beta(a, b, questions))
                    one = estimate([pass_at_k(samples, int(count), k) for count in right])
                    held.append(holds(one.ci95, truth))
                rows.append(
                    share(
                        "interval of pass@k holds it",
                        held,
                        questions=questions,
                        samples=samples,
                        k=k,
                        beta=[a, b],
                    )
                )
    return rows


def suites(rng: np.random.Generator, trials: int) -> list[Row]:
    """The macro mean of sets of equal difficulty."""
    rows = []
    for sizes in ((5, 5), (20, 20, 20), (5, 200)):
        for right in (0.0, 0.02, 0.5):
            sets = [[(rng.random(n) < right).astype(float).tolist() for n in sizes] for _ in range(trials)]
            held = [holds(combine(one)["macro"]["ci95"], right) for one in sets]
            rows.append(share("interval of a macro mean holds it", held, sets=list(sizes), right=right))
    return rows


def seeds(rng: np.random.Generator, trials: int) -> list[Row]:
    """Systems with the same mean, five seeds an interim analysis and two of these; and a margin that they just reach."""
    rows = []
    draws: dict[str, Callable[[], Floats]] = {
        "normal": lambda: rng.standard_normal(10),
        "20 questions, .9 right": lambda: (rng.random((10, 20)) < 0.9).mean(1),
    }
    for systems in (2, 3):
        for name, draw in draws.items():
            found = [any_better({str(i): draw() for i in range(systems)}, trial) for trial in range(trials)]
            rows.append(share("equal systems told apart", found, systems=systems, seeds=name))
        found = [
            any_better({str(i): draws["normal"]() * (5 if i == 0 else 1) for i in range(systems)}, trial)
            for trial in range(trials)
        ]
        rows.append(
            share(
                "equal means told apart",
                found,
                systems=systems,
                seeds="normal, one of five times the deviation",
            )
        )
    for count in (3, 5, 10):
        for spread in (1.0, 0.1):
            found = [
                equivalence_p(rng.standard_normal(count), 1.5 + spread * rng.standard_normal(count), 1.5)
                <= LEVEL
                for _ in range(5 * trials)
            ]
            rows.append(
                share("systems at the margin found equivalent", found, seeds=count, deviations=[1.0, spread])
            )
    return rows


def any_better(scores: dict[str, Floats], seed: int) -> bool:
    """Whether two looks at five seeds each tell any two systems apart."""
    return any(apart(pair) for pair in two_looks(scores, seed))


def two_looks(scores: dict[str, Floats], seed: int) -> tuple[Pair, ...]:
    """The pairs after at most two interim analyses of five seeds."""
    return compare_sequentially(scores, per_interim=5, interims=2, permutations=1000, seed=seed).pairs


def apart(pair: Pair) -> bool:
    """Whether a pair was told apart."""
    return pair.verdict in (Verdict.FIRST_BETTER, Verdict.SECOND_BETTER)


def stopped(rng: np.random.Generator, trials: int) -> list[Row]:
    """Intervals and differences of pairs that may be told apart at the first of two interim analyses."""
    rows = []
    for effect in (0.0, 0.5, 1.0, 1.5, 2.0):
        pairs: list[Pair] = []
        for trial in range(trials):
            scores = {"a": rng.standard_normal(10) + effect, "b": rng.standard_normal(10)}
            pairs += two_looks(scores, trial)
        first = [pair for pair in pairs if apart(pair) and pair.seeds == 5]
        row = share("interval of a sequential comparison holds it", [holds(p.ci95, effect) for p in pairs])
        row |= {"difference": effect, "mean_found": round(float(np.mean([p.difference for p in pairs])), 3)}
        if first:
            early = share("decided first", [holds(pair.ci95, effect) for pair in first])
            early["mean_found"] = round(float(np.mean([pair.difference for pair in first])), 3)
            row["decided_at_the_first_analysis"] = early
        rows.append(row)
    return rows


def families(rng: np.random.Generator, trials: int) -> list[Row]:
    """Families of equal systems with normal scores: how often the sequential test tells any two of a family apart.

    A block of 100 comparisons shares its permutations, which the next block draws anew.
    """
    rows = []
    for systems, per_interim, interims in ((2, 5, 2), (3, 5, 2), (5, 5, 2), (7, 5, 2), (3, 3, 3), (5, 10, 1)):
        pairs = [*combinations(range(systems), 2)]
        found: list[bool] = []
        for _ in range(max(1, trials // 5)):
            sums_RPS = np.zeros((100, len(pairs), 1001))
            looks = []
            for _ in range(interims):
                scores_RMN = rng.standard_normal((100, systems, per_interim))
                signs_SN = signs(rng, 1000, per_interim)
                pools = [np.concatenate([scores_RMN[:, i], scores_RMN[:, j]], axis=1) for i, j in pairs]
                sums_RPS = sums_RPS + np.stack([pool @ signs_SN.T for pool in pools], axis=1)
                looks.append(sums_RPS)
            apart_RP = distinguished(np.stack(looks), LEVEL / interims)
            found += [bool(one.any()) for one in apart_RP]
        setting = {"systems": systems, "per_interim": per_interim, "interims": interims}
        rows.append(share("any of a family told apart", found, **setting))
    return rows


PARTS = (equal_systems, rewards, repeats, suites, seeds, stopped, families)


def main() -> None:
    """Prints the rows and writes them."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--trials", type=int, default=300, help="simulations a row")
    asked = parser.parse_args()
    rows = {
        part.__name__: part(np.random.default_rng(place), asked.trials) for place, part in enumerate(PARTS)
    }
    lines = [f"{name}: {row}" for name, part in rows.items() for row in part]
    finish("error_levels", asked, {"level": LEVEL, "trials": asked.trials, "rows": rows}, lines)


if __name__ == "__main__":
    run_script(main)
