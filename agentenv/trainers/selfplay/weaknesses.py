"""What a policy cannot do yet: the kinds of questions that it fails, after *self-aware weakness-driven synthesis*.

SwS (Liang et al. 2025, arXiv:2506.08989) finds the kinds of tasks that are failed again and again and asks for new ones of
them, in shares of their failures. Pure functions here; kinds are frames of questions.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal

from agentenv.trainers.selfplay.question_pool import frame


@dataclass(frozen=True)
class Weakness:
    """One kind of task that is often failed."""

    kind: str
    """The frame of its questions."""
    tasks: int
    """How many were played."""
    failure_rate: float
    """Mean share of failed attempts."""
    share: float
    """Part of the next proposals that should be of this kind; the parts of all weaknesses add up to 1."""
    example: str
    """The question of this kind that was failed most, the first of equals."""


FAILED_BELOW = 0.5
"""Accuracy that a failed question never reaches."""
SURE = 0.95
"""Probability from which the test counts a question as failed."""


def slope(accuracies: Sequence[float]) -> float:
    """Slope of the least-squares line through accuracies over their number; 0 of a single one."""
    count = len(accuracies)
    middle, mean = (count - 1) / 2, sum(accuracies) / count
    spread = sum((t - middle) ** 2 for t in range(count))
    return sum((t - middle) * (a - mean) for t, a in enumerate(accuracies)) / spread if spread else 0.0


def is_failed(accuracies: Sequence[float]) -> bool:
    """F = [max a_t < .5 and slope(a_t) < 0] (SwS).

    A question that is never solved has a slope of 0 and is not failed by this rule; see `is_failed_or_flat`.
    """
    return max(accuracies) < FAILED_BELOW and slope(accuracies) < -1e-12


def is_failed_or_flat(accuracies: Sequence[float]) -> bool:
    """[max a_t < .5 and slope(a_t) <= 0]: the hardest questions count, which SwS's own rule leaves out (ours)."""
    return max(accuracies) < FAILED_BELOW and slope(accuracies) <= 1e-12


def is_failed_by_test(accuracies: Sequence[float], attempts: int) -> bool:
    """Whether the accuracy is below .5 with a probability of at least .95, from Beta(1, 1) and all attempts (ours).

    Args:
        accuracies: Share of solved attempts each time that the question was played.
        attempts: Each time.
    """
    total = attempts * len(accuracies)
    solved = round(attempts * sum(accuracies))
    # P(p < 1/2) of Beta(1 + k, 1 + n - k) is P(X > k) of n + 1 fair coins
    ways: int = sum(comb(total + 1, k) for k in range(solved + 1, total + 2))
    return bool(ways / 2 ** (total + 1) >= SURE)


Rule = Literal["mean", "slope", "flat", "test"]
FAILED: Mapping[str, Callable[[Sequence[float], int], bool]] = {
    "slope": lambda accuracies, _: is_failed(accuracies),
    "flat": lambda accuracies, _: is_failed_or_flat(accuracies),
    "test": is_failed_by_test,
}
"""The tests of a question by name, which get its accuracies and the number of attempts behind each; ``mean`` has none and
goes by the kind's mean."""


def failed_questions(history: Mapping[str, Sequence[float]], rule: str, attempts: int) -> list[str]:
    """The questions that a row of ``FAILED`` counts as failed, in their order."""
    return [question for question, accuracies in history.items() if FAILED[rule](accuracies, attempts)]


def failed_kinds(
    history: Mapping[str, Sequence[float]],
    rule: Rule,
    *,
    attempts: int,
    least: int = 2,
    kind_of: Callable[[str], str] = frame,
) -> list[Weakness]:
    """The kinds with at least ``least`` questions of which some are failed, in shares of their failure ratios (SwS).

    Args:
        history: Accuracies of each question, the earliest first; none is empty.
        rule: Row of ``FAILED``, or ``mean`` for `weaknesses` over the latest accuracies.
        attempts: Behind each accuracy.
        least: Questions below which nothing is said of a kind.
        kind_of: The kind of a question; without effect for ``mean``.
    """
    latest = {question: accuracies[-1] for question, accuracies in history.items()}
    if rule == "mean":
        return weaknesses(latest, least=least)
    failed = set(failed_questions(history, rule, attempts))
    kinds: dict[str, list[str]] = defaultdict(list)
    for question in history:
        kinds[kind_of(question)].append(question)
    ratios = {kind: sum(q in failed for q in asked) / len(asked) for kind, asked in kinds.items()}
    weak = {kind: ratio for kind, ratio in ratios.items() if ratio and len(kinds[kind]) >= least}
    total = sum(weak.values())
    found = [
        Weakness(
            kind,
            len(kinds[kind]),
            ratio,
            ratio / total,
            min((q for q in kinds[kind] if q in failed), key=lambda q: latest[q]),
        )
        for kind, ratio in weak.items()
    ]
    return sorted(found, key=lambda weakness: (-weakness.failure_rate, weakness.kind))


def weaknesses(rates: Mapping[str, float], *, least: int = 2) -> list[Weakness]:
    """The kinds with at least ``least`` tasks and a mean solve rate of at most .5, the weakest first.

    Args:
        rates: Share of solved attempts by question.
        least: Tasks below which nothing is said of a kind.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    for question in rates:
        kinds[frame(question)].append(question)
    failed = {kind: sum(1 - rates[q] for q in asked) / len(asked) for kind, asked in kinds.items()}
    weak = [kind for kind, asked in kinds.items() if len(asked) >= least and 1 - failed[kind] <= 0.5]
    total = sum(failed[kind] for kind in weak)
    found = [
        Weakness(
            kind,
            len(kinds[kind]),
            failed[kind],
            failed[kind] / total,
            min(kinds[kind], key=lambda q: rates[q]),
        )
        for kind in weak
    ]
    return sorted(found, key=lambda weakness: (-weakness.failure_rate, weakness.kind))
