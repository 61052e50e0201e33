"""Which test of failed questions finds the kinds that a policy lacks? Simulated histories of five kinds.

SwS (arXiv:2506.08989) counts a question as failed if it was never half solved and its accuracy falls, and asks for new
questions of a kind in the share of its failed ones. The script draws what a policy solves of 40 questions of each kind, with
eight attempts in each of four epochs. Three kinds are learned or known, and two are lacking: never solved, seldom solved, or
unlearned. For each test in ``agentenv.trainers.selfplay.weaknesses`` it reports the share of the new questions that go to
the two kinds (uniform: .4), how often exactly these two are first, and how often nothing is found.

    python benchmarks/weak_kinds.py
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from common import common_arguments, finish, interval, run_script

from agentenv.trainers.selfplay.weaknesses import Rule, failed_kinds

QUESTIONS, ATTEMPTS, EPOCHS, RUNS = 40, 8, 4, 500
CONCENTRATION = 8.0  # of the accuracies of the questions of a kind around its mean, as a Beta distribution
RULES: tuple[Rule, ...] = ("slope", "flat", "test", "mean")
HELD: Mapping[str, Sequence[float]] = {
    "knows": (0.9, 0.9, 0.9, 0.9),
    "learns": (0.4, 0.5, 0.6, 0.7),
    "half": (0.6, 0.6, 0.6, 0.6),
}
"""Mean accuracy in each epoch of the kinds that are not lacking."""
LACKING: Mapping[str, Sequence[float]] = {
    "never solved": (0.0, 0.0, 0.0, 0.0),
    "seldom solved": (0.15, 0.15, 0.15, 0.15),
    "unlearned": (0.4, 0.3, 0.2, 0.1),
}
"""The same of both kinds that are lacking, by how they are."""
WEAK = ("first", "second")


def history(
    kinds: Mapping[str, Sequence[float]], generator: np.random.Generator, attempts: int
) -> dict[str, list[float]]:
    """Accuracies of every question in every epoch, by a question whose frame is its kind.

    A question is as much easier or harder than its kind in every epoch: its place in the distribution stays.
    """
    found: dict[str, list[float]] = {}
    for kind, means in kinds.items():
        places = generator.random(QUESTIONS)
        for number, place in enumerate(places):
            chances = [_chance(mean, place) for mean in means]
            solved = generator.binomial(attempts, chances) / attempts
            found[f"what does it {kind} in {number}?"] = [float(share) for share in solved]
    return found


def _chance(mean: float, place: float) -> float:
    """The accuracy at ``place`` of 1 of a Beta distribution around ``mean``, by the order of a thousand draws."""
    if mean in (0.0, 1.0):
        return mean
    a, b = CONCENTRATION * mean, CONCENTRATION * (1 - mean)
    return float(
        _ORDERED.setdefault((a, b), np.sort(np.random.default_rng(0).beta(a, b, 1000)))[int(place * 1000)]
    )


_ORDERED: dict[tuple[float, float], Any] = {}


def found_by(rule: Rule, accuracies: Mapping[str, Sequence[float]], attempts: int) -> dict[str, float]:
    """What one test says of one history: the share of the lacking kinds, and whether they are first or nothing is found."""
    weak = failed_kinds(accuracies, rule, attempts=attempts)
    share = sum(one.share for one in weak if one.kind.split()[3] in WEAK)
    first = {one.kind.split()[3] for one in weak[:2]}
    return {
        "share": share if weak else len(WEAK) / (len(WEAK) + len(HELD)),  # then nothing is chosen by failures
        "both_first": float(first == set(WEAK)),
        "nothing": float(not weak),
    }


def main() -> None:
    """Simulates, reports, writes."""
    args = common_arguments(__doc__ or "").parse_args()
    figures: dict[str, Any] = {}
    lines = []
    for name, means in LACKING.items():
        kinds = {**HELD, **dict.fromkeys(WEAK, means)}
        generator = np.random.default_rng(0)
        histories = [history(kinds, generator, ATTEMPTS) for _ in range(RUNS)]
        for rule in RULES:
            rows = [found_by(rule, one, ATTEMPTS) for one in histories]
            figures[f"{name}, {rule}"] = {
                "share": interval([row["share"] for row in rows]),
                "both_first": fmean(row["both_first"] for row in rows),
                "nothing": fmean(row["nothing"] for row in rows),
            }
            lines.append(f"{name:14} {rule:6} {figures[f'{name}, {rule}']}")
    settings = {"questions": QUESTIONS, "attempts": ATTEMPTS, "epochs": EPOCHS, "runs": RUNS}
    finish("weak_kinds", args, {"settings": settings, "found": figures}, lines)


if __name__ == "__main__":
    run_script(main)
