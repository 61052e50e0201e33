"""HierSearch's knowledge refiner (Tan et al. 2025, arXiv:2508.08088): which evidence of the agents the planner sees."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentenv.core.types import Passage
from agentenv.errors import ConfigurationError
from agentenv.retrievers.base import passage_text
from agentenv.retrievers.rerank import Reranker

_THOUGHT = re.compile(r"<think>((?:(?!<think>).)*?)</think>", re.DOTALL)
"""Matches from the last opening tag before the end of a thought, so that many unclosed tags take only linear time."""


@dataclass(frozen=True, slots=True)
class FoundEvidence:
    """The passages that one search of an agent found."""

    thought: str
    """The agent's thought before the search; empty without one."""
    passages: tuple[Passage, ...]


def thought_of(action: str) -> str:
    """Returns the last thought in ``action``; empty without one."""
    thoughts = _THOUGHT.findall(action)
    return thoughts[-1].strip() if thoughts else ""


def share_of(count: int, share: float) -> int:
    """Returns the number of ``count`` items that a share keeps: max(1, int(share m)), and 0 of 0."""
    return min(count, max(1, int(share * count)))


def closeness(passages: Sequence[Passage], texts: Sequence[str], reranker: Reranker) -> list[float]:
    """Returns the similarity of each of ``passages`` to all of ``texts`` together.

    The scores for each text are scaled to [0, 1] over the passages (min-max), so that no text dominates, and are summed.
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
    """Returns the best ``share`` of ``passages`` for ``texts``, best first; without a text, the first ones."""
    kept, said = share_of(len(passages), share), [text for text in texts if text]
    if not said or not passages:
        return list(passages[:kept])
    near = closeness(passages, said, reranker)
    return [passages[i] for i in sorted(range(len(passages)), key=lambda i: -near[i])[:kept]]


@dataclass(frozen=True, slots=True)
class Refiner:
    """Selects the agents' evidence for the planner.

    Raises:
        ConfigurationError: a share is out of range.
    """

    reranker: Reranker
    """Scores the similarity of a passage and a text."""
    share: float
    """The share of each search that is kept, by the thought before it."""
    share_of_rest: float
    """The share of the rest of an agent's evidence that is kept, by conclusions."""
    cut_again: bool = False
    """Whether the rest of an agent is compared only with its own conclusion, and ``share`` of everything is kept again."""

    def __post_init__(self) -> None:
        shares = (self.share, self.share_of_rest)
        if not all(0 < share <= 1 for share in shares):
            raise ConfigurationError(f"the shares of evidence to keep must be in (0, 1], not {shares}")

    def of_all(self, found: Sequence[tuple[Sequence[FoundEvidence], str]]) -> list[Passage]:
        """Selects from the evidence of several agents, given as pairs of searches and the agent's conclusion.

        HierSearch's program compares the rest of an agent's evidence with the conclusions of all agents that were asked
        together, and passes on what each agent keeps.
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
        """Returns the best passages of each search for its thought, and the best of the rest for the conclusions."""
        kept: dict[str, Passage] = {}
        for search in searches:
            for passage in refine(search.passages, [search.thought], self.reranker, self.share):
                kept.setdefault(passage.id, passage)
        rest = {p.id: p for search in searches for p in search.passages if p.id not in kept}
        return [
            *kept.values(),
            *refine(list(rest.values()), conclusions, self.reranker, self.share_of_rest),
        ]
