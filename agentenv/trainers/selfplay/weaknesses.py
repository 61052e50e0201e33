"""What a policy cannot do yet: the kinds of questions that it fails, after *self-aware weakness-driven synthesis*.

SwS (Liang et al. 2025) finds the kinds of tasks that are failed again and again and asks for new ones of them, in shares of
their failures. A pure function here; kinds are frames of questions.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

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


def weaknesses(rates: Mapping[str, float], *, at_most: float = 0.5, least: int = 2) -> list[Weakness]:
    """The kinds with at least ``least`` tasks and a mean solve rate of at most ``at_most``, the weakest first.

    Args:
        rates: Share of solved attempts by question.
        at_most: Solve rate above which a kind is no weakness.
        least: Tasks below which nothing is said of a kind.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    for question in rates:
        kinds[frame(question)].append(question)
    failed = {kind: sum(1 - rates[q] for q in asked) / len(asked) for kind, asked in kinds.items()}
    weak = [kind for kind, asked in kinds.items() if len(asked) >= least and 1 - failed[kind] <= at_most]
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
