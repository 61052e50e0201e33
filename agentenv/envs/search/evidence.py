"""HierSearch's knowledge refiner (Tan et al. 2025, arXiv:2508.08088): what of an agent's findings goes up to its planner."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentenv.core.types import Passage
from agentenv.retrievers.base import passage_text
from agentenv.retrievers.rerank import Reranker

_THOUGHT = re.compile(r"<think>((?:(?!<think>).)*?)</think>", re.DOTALL)
"""Begins at the last mark before the end of the thought, so that marks without an end are each read once."""


@dataclass(frozen=True, slots=True)
class FoundEvidence:
    """What one search of an agent found."""

    thought: str
    """What the agent thought before it; empty where it did not."""
    passages: tuple[Passage, ...]


def thought_of(action: str) -> str:
    """The last thought in ``action``; empty where there is none."""
    thoughts = _THOUGHT.findall(action)
    return thoughts[-1].strip() if thoughts else ""


def share_of(count: int, share: float) -> int:
    """How many of ``count`` a share keeps: max(1, int(share m)), and none of none."""
    return min(count, max(1, int(share * count)))


def refine(passages: Sequence[Passage], text: str, reranker: Reranker, share: float) -> list[Passage]:
    """The best ``share`` of ``passages`` for ``text``, best first; without a text the first of them."""
    kept = share_of(len(passages), share)
    if not text or not passages:
        return list(passages[:kept])
    scores = reranker.score([(text, passage_text(passage)) for passage in passages])
    order = sorted(range(len(passages)), key=lambda i: -scores[i])
    return [passages[i] for i in order[:kept]]


def refine_evidence(
    searches: Sequence[FoundEvidence], conclusion: str, reranker: Reranker, share: float
) -> list[Passage]:
    """What an agent hands up: of each search the best for its thought, and of the rest the best for its conclusion.

    Args:
        searches: Of its episode.
        conclusion: Its answer; without one the first of the rest are taken.
        reranker: Says how near a passage is to a text.
        share: Kept each time.
    """
    kept: dict[str, Passage] = {}
    for search in searches:
        for passage in refine(search.passages, search.thought, reranker, share):
            kept.setdefault(passage.id, passage)
    rest = {p.id: p for search in searches for p in search.passages if p.id not in kept}
    return [*kept.values(), *refine(list(rest.values()), conclusion, reranker, share)]


def refine_together(
    found: Sequence[Passage], conclusions: Sequence[str], reranker: Reranker, share: float
) -> list[Passage]:
    """Of what several agents hand up the share that is nearest to the conclusions of all of them together."""
    given = [conclusion for conclusion in conclusions if conclusion]
    if not given or not found:
        return list(found[: share_of(len(found), share)])
    totals = [0.0] * len(found)
    for conclusion in given:
        scores = reranker.score([(conclusion, passage_text(passage)) for passage in found])
        totals = [total + float(score) for total, score in zip(totals, scores, strict=True)]
    order = sorted(range(len(found)), key=lambda i: -totals[i])
    return [found[i] for i in order[: share_of(len(found), share)]]
