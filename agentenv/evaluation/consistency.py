"""Does a system say the same to the same question in other words? (Con-RAG), at each of its stages.

Every figure is the mean over all pairs of wordings of one question, then over questions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from agentenv.core.scoring.scorers import get_scorer


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of one wording."""

    answer: str | None
    found: frozenset[str]
    """Ids of every passage that its searches returned."""


def consistency(questions: Iterable[Sequence[Asked]], scorer: str = "f1_squad") -> dict[str, float | None]:
    """Consistency of retriever, generator and the whole.

    Args:
        questions: For each question what came of its wordings.
        scorer: How alike two answers are; taken both ways and averaged.

    Returns:
        ``retriever``, the Jaccard index of what two wordings found; ``end_to_end``, the likeness of their answers;
        ``generator``, the same over pairs that found equal passages, so that the generator alone can differ; None where
        there is no such pair.
    """
    groups = [list(combinations(asked, 2)) for asked in questions]
    same = [[(a, b) for a, b in pairs if a.found == b.found] for pairs in groups]

    def alike(a: Asked, b: Asked) -> float:
        score = get_scorer(scorer)
        if a.answer is None or b.answer is None:
            return float(a.answer is b.answer)
        return (score(a.answer, (b.answer,)).value + score(b.answer, (a.answer,)).value) / 2

    return {
        "retriever": _mean(groups, lambda a, b: jaccard(a.found, b.found)),
        "generator": _mean(same, alike),
        "end_to_end": _mean(groups, alike),
    }


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """Size of the intersection over that of the union; 1 for two empty sets."""
    return len(a & b) / len(a | b) if a | b else 1.0


def _mean(
    groups: Sequence[Sequence[tuple[Asked, Asked]]], value: Callable[[Asked, Asked], float]
) -> float | None:
    means = [fmean(value(a, b) for a, b in pairs) for pairs in groups if pairs]
    return fmean(means) if means else None
