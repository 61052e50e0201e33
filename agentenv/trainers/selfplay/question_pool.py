"""The questions that self-play has accepted, and how varied those of a step are. Pure but for the pool's own list."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from agentenv.core.scoring.normalize import squad
from agentenv.errors import ConfigurationError

_NAMES = re.compile(r"\b(?:[A-Z]\w*|\d[\d,.]*)(?:\s+(?:[A-Z]\w*|\d[\d,.]*))*")


@dataclass(frozen=True)
class PooledQuestion:
    """One question of the pool."""

    question: str
    answer: str
    """Empty in games without golds."""
    rate: float
    """Share of the attempts that succeeded when it was last played; -1 before that."""


@dataclass
class QuestionPool:
    """Questions to go back to, without duplicates, cleared now and then.

    Raises:
        ConfigurationError: an option out of its range.
    """

    clear_every: int = 10
    """Steps between two clearings (SSP: 10 in its script, 5 in its configuration); 0 never clears (MAE)."""
    keep_ratio: float = 0.0
    """Share of the pool that a clearing leaves, the newest."""
    similar: float = 0.9
    """Word overlap with a question of the pool from which a new one is a duplicate."""
    entries: list[PooledQuestion] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.clear_every < 0 or not 0 <= self.keep_ratio <= 1 or not 0 < self.similar <= 1:
            raise ConfigurationError(
                "a pool needs clear_every of at least 0, keep_ratio within 0 to 1 and similar above 0 and at most 1, not "
                f"{self.clear_every}, {self.keep_ratio} and {self.similar}"
            )

    def add(self, entry: PooledQuestion) -> bool:
        """Takes ``entry`` in; False where it is a duplicate, whose rate is then brought up to date."""
        for place, other in enumerate(self.entries):
            if overlap(other.question, entry.question) >= self.similar:
                self.entries[place] = PooledQuestion(other.question, other.answer, entry.rate)
                return False
        self.entries.append(entry)
        return True

    def draw(
        self, rng: np.random.Generator, at_most: float = 1.0, *, gold: bool = False
    ) -> PooledQuestion | None:
        """A question with a rate of at most ``at_most``, uniformly, with ``gold`` one that has an answer; None of none."""
        fit = [
            i for i, entry in enumerate(self.entries) if entry.rate <= at_most and (entry.answer or not gold)
        ]
        if not fit:
            return None
        return self.entries[fit[int(rng.integers(len(fit)))]]

    def clear(self, step: int) -> int:
        """Drops all but the newest share at every ``clear_every``-th step; returns how many went."""
        if not self.clear_every or step % self.clear_every:
            return 0
        kept = int(self.keep_ratio * len(self.entries))
        gone = len(self.entries) - kept
        self.entries = self.entries[gone:]
        return gone

    def state_dict(self) -> list[dict[str, Any]]:
        """The entries in plain values."""
        return [asdict(entry) for entry in self.entries]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Takes up where ``state_dict`` stood."""
        self.entries = [PooledQuestion(**row) for row in state]


def overlap(one: str, other: str) -> float:
    """Words in common over words in all (Jaccard), both normalised as SQuAD does; 1 of two texts without words."""
    a, b = set(squad(one).split()), set(squad(other).split())
    return len(a & b) / len(a | b) if a or b else 1.0


def frame(question: str) -> str:
    """The kind of a question: its words with every run of names and numbers after the first word as one blank."""
    first, _, rest = question.strip().partition(" ")
    return f"{first} {_NAMES.sub('_', rest)}".strip()


def diversity(questions: Sequence[str]) -> dict[str, float]:
    """How varied the questions of a step are; empty for none.

    Returns:
        ``unique_share`` of distinct questions, ``distinct_2`` (distinct over all word pairs, Li et al. 2016),
        ``frame_entropy`` of their kinds in bits, and ``overlap``, the mean over pairs of them.
    """
    if not questions:
        return {}
    texts = [squad(question) for question in questions]
    pairs = [pair for text in texts for pair in zip(text.split(), text.split()[1:], strict=False)]
    shares = [count / len(questions) for count in Counter(map(frame, questions)).values()]
    between = [overlap(a, b) for a, b in combinations(texts, 2)]
    return {
        "unique_share": len(set(texts)) / len(texts),
        "distinct_2": len(set(pairs)) / len(pairs) if pairs else 0.0,
        "frame_entropy": -sum(share * math.log2(share) for share in shares) + 0.0,
        "overlap": sum(between) / len(between) if between else 0.0,
    }


def depth(searches: Sequence[int]) -> dict[str, float]:
    """How far their proposers went: the mean number of searches."""
    return {"searches_mean": sum(searches) / len(searches)} if searches else {}


def difficulty(rates: Sequence[float]) -> dict[str, float]:
    """How hard they were for the solver: mean share solved, and the shares never, always and sometimes solved."""
    if not rates:
        return {}
    count = len(rates)
    never, always = sum(rate == 0 for rate in rates), sum(rate == 1 for rate in rates)
    return {
        "solved_mean": sum(rates) / count,
        "solved_never": never / count,
        "solved_always": always / count,
        "solved_sometimes": (count - never - always) / count,
    }
