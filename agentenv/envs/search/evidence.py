"""HierSearch's knowledge refiner (Tan et al. 2025, arXiv:2508.08088): what of an agent's findings goes up to its planner."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentenv.core.types import Passage
from agentenv.errors import ConfigurationError
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


def closeness(passages: Sequence[Passage], texts: Sequence[str], reranker: Reranker) -> list[float]:
    """How near each of ``passages`` is to all of ``texts`` together.

    The scores for each text go from 0 to 1 over the passages (min-max), so that no text outweighs another, and are summed.
    """
    totals = [0.0] * len(passages)
    for text in texts:
        scores = [float(s) for s in reranker.score([(text, passage_text(passage)) for passage in passages])]
        least, span = min(scores), (max(scores) - min(scores)) or 1.0
        totals = [total + (score - least) / span for total, score in zip(totals, scores, strict=True)]
    return totals


def refine(
    passages: Sequence[Passage], texts: Sequence[str], reranker: Reranker, share: float
) -> list[Passage]:
    """The best ``share`` of ``passages`` for ``texts``, best first; without a text the first of them."""
    kept, said = share_of(len(passages), share), [text for text in texts if text]
    if not said or not passages:
        return list(passages[:kept])
    near = closeness(passages, said, reranker)
    return [passages[i] for i in sorted(range(len(passages)), key=lambda i: -near[i])[:kept]]


@dataclass(frozen=True, slots=True)
class Refiner:
    """Says what of the evidence of agents goes up.

    Raises:
        ConfigurationError: a share out of range.
    """

    reranker: Reranker
    """Says how near a passage is to a text."""
    share: float
    """Kept of each search, by the thought before it."""
    share_of_rest: float
    """Kept of the rest of an agent's evidence, by conclusions."""
    cut_again: bool = False
    """Whether an agent's rest is held against its own conclusion alone, and ``share`` of everything is kept once more."""

    def __post_init__(self) -> None:
        shares = (self.share, self.share_of_rest)
        if not all(0 < share <= 1 for share in shares):
            raise ConfigurationError(f"the shares of evidence to keep must be in (0, 1], not {shares}")

    def of_all(self, found: Sequence[tuple[Sequence[FoundEvidence], str]]) -> list[Passage]:
        """What goes up of what each of several agents found, where the second of a pair is its conclusion.

        HierSearch's program holds the rest of an agent's evidence against its own conclusion and those of the others that
        were asked with it, and hands up what every agent keeps.
        """
        conclusions = [conclusion for _, conclusion in found]
        kept: dict[str, Passage] = {}
        for searches, conclusion in found:
            best = self.of_agent(searches, [conclusion] if self.cut_again else conclusions)
            kept |= {passage.id: passage for passage in best}
        passages = list(kept.values())
        if self.cut_again and len(found) > 1:
            return refine(passages, conclusions, self.reranker, self.share)
        return passages

    def of_agent(self, searches: Sequence[FoundEvidence], conclusions: Sequence[str]) -> list[Passage]:
        """The best passages of each search for its thought, and of the rest the best for the conclusions."""
        kept: dict[str, Passage] = {}
        for search in searches:
            for passage in refine(search.passages, [search.thought], self.reranker, self.share):
                kept.setdefault(passage.id, passage)
        rest = {p.id: p for search in searches for p in search.passages if p.id not in kept}
        return [
            *kept.values(),
            *refine(list(rest.values()), conclusions, self.reranker, self.share_of_rest),
        ]
