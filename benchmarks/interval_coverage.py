"""How often the 95 % intervals of `agentenv.evaluation.statistics.significance` hold the true mean.

Made-up scores with a known mean: 0/1, and F1-like ones, of which most are 0 (or 1, for means above .5) and the others
spread over (0, 1]. They are independent, n questions; or in C clusters of 1 to 8 questions that agree within a cluster as
if a share of them had been drawn once for all (0/1: .3 of the variance; F1: .55 of the draws); or differences of two
systems, three quarters of which favour the second. Beside each stands what the percentile bootstrap of questions or clusters
would have given.

    python benchmarks/interval_coverage.py
    python benchmarks/interval_coverage.py --exact

With ``--exact`` nothing is sampled: of n independent 0/1 scores k are right with a binomial probability, and the coverage is
the sum of those of each k whose interval holds the mean.
"""

from collections.abc import Callable, Iterator
from math import comb
from typing import Any

import numpy as np
from common import common_arguments, finish, run_script
from numpy.typing import NDArray

from agentenv.evaluation.statistics.significance import estimate, paired_bootstrap

Floats = NDArray[np.float64]
MEANS = (0.02, 0.1, 0.5, 0.9)
QUESTIONS = (5, 10, 20, 30, 50, 100, 200)
CLUSTERS = (3, 5, 10, 20, 50)
_PARTIAL = np.array([2 / 7, 0.4, 0.5, 2 / 3, 0.8, 1.0])
_SHARES = np.array([0.2, 0.2, 0.15, 0.15, 0.1, 0.2])
_AGREE = 0.3


def binary(rng: np.random.Generator, mean: float, n: int) -> Floats:
    """0/1 scores."""
    return (rng.random(n) < mean).astype(np.float64)


def f1(rng: np.random.Generator, mean: float, n: int) -> Floats:
    """Scores like F1 with this mean."""
    small = min(mean, 1 - mean)
    hit = rng.random(n) < small / float(_PARTIAL @ _SHARES)
    scores = rng.choice(_PARTIAL, size=n, p=_SHARES) * hit
    return scores if mean <= 0.5 else 1 - scores


def clustered(kind: str, rng: np.random.Generator, mean: float, count: int) -> tuple[Floats, list[int]]:
    """Scores of ``count`` clusters, and the cluster of each."""
    parts: list[Floats] = []
    for size in rng.integers(1, 9, count):
        if kind == "binary":
            rate = rng.beta(mean * (1 / _AGREE - 1), (1 - mean) * (1 / _AGREE - 1))
            parts.append(binary(rng, float(rate), int(size)))
        else:
            own, shared = f1(rng, mean, int(size)), f1(rng, mean, 1)
            parts.append(np.where(rng.random(int(size)) < 0.55, shared, own))
    return np.concatenate(parts), [number for number, part in enumerate(parts) for _ in part]


def percentile(x: Floats, of: list[int], rng: np.random.Generator, draws: int = 1000) -> tuple[float, float]:
    """The percentile bootstrap of whole clusters."""
    sizes = np.bincount(of).astype(np.float64)
    sums = np.bincount(of, weights=x)
    times = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=draws)
    low, high = np.quantile(times @ sums / (times @ sizes), (0.025, 0.975))
    return float(low), float(high)


def cells() -> Iterator[tuple[str, str, float, int]]:
    """Every row of the table."""
    for form, sizes in (("independent", QUESTIONS), ("clusters", CLUSTERS), ("paired", QUESTIONS)):
        for kind in ("binary", "f1"):
            yield from ((form, kind, mean, size) for mean in MEANS for size in sizes)


def measure(form: str, kind: str, mean: float, size: int, trials: int) -> dict[str, Any]:
    """Coverage and mean width of one row."""
    rng = np.random.default_rng([sum(map(ord, form + kind)), round(mean * 100), size])
    draw: Callable[..., Floats] = binary if kind == "binary" else f1
    held, held_before, width = 0, 0, 0.0
    methods: dict[str, int] = {}
    for _ in range(trials):
        if form == "paired":  # b is better than a where a coin says so: the mean difference is mean / 2
            a = np.zeros(size)
            b = draw(rng, mean, size) * np.sign(rng.random(size) - 0.25)
            found, truth, of = paired_bootstrap(a, b, resamples=1000), mean / 2, list(range(size))
            x, low, high, method = b, found.low, found.high, found.method
        else:
            x, of = (
                clustered(kind, rng, mean, size)
                if form == "clusters"
                else (draw(rng, mean, size), list(range(size)))
            )
            one = estimate(x, clusters=of)
            truth, low, high, method = mean, one.low, one.high, one.method
        before = percentile(x, of, rng)
        held += low - 1e-9 <= truth <= high + 1e-9
        held_before += before[0] - 1e-9 <= truth <= before[1] + 1e-9
        width += high - low
        methods[method] = methods.get(method, 0) + 1
    return {
        "form": form,
        "scores": kind,
        "mean": mean,
        "size": size,
        "coverage": round(held / trials, 4),
        "percentile_bootstrap": round(held_before / trials, 4),
        "width": round(width / trials, 4),
        "methods": methods,
    }


def exact(mean: float, size: int) -> dict[str, Any]:
    """Coverage of ``size`` independent 0/1 scores, by calculation."""
    coverage = 0.0
    for right in range(size + 1):
        one = estimate(np.repeat([1.0, 0.0], [right, size - right]), clusters=list(range(size)))
        if one.low - 1e-9 <= mean <= one.high + 1e-9:
            coverage += comb(size, right) * mean**right * (1 - mean) ** (size - right)
    return {"mean": mean, "size": size, "coverage": round(coverage, 4)}


def main() -> None:
    """Prints the table and writes it."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--trials", type=int, default=400, help="samples a row")
    parser.add_argument("--exact", action="store_true", help="calculate the rows of independent 0/1 scores")
    asked = parser.parse_args()
    if asked.exact:
        calculated = [exact(mean, size) for mean in MEANS for size in QUESTIONS]
        lines = [f"{row['mean']:<6}{row['size']:<5}{row['coverage']:.4f}" for row in calculated]
        finish("interval_coverage_exact", asked, {"level": 0.95, "rows": calculated}, lines)
        return

    rows = [measure(*cell, asked.trials) for cell in cells()]
    lines = [
        f"{row['form']:<12}{row['scores']:<8}{row['mean']:<6}{row['size']:<5}{row['coverage']:.3f}"
        f"  percentile bootstrap {row['percentile_bootstrap']:.3f}  width {row['width']:.3f}"
        for row in rows
    ]
    finish("interval_coverage", asked, {"level": 0.95, "trials": asked.trials, "rows": rows}, lines)


if __name__ == "__main__":
    run_script(main)
