"""Forks within a turn: at a token where the policy nearly wrote another one (LATR, lookahead tree-based rollouts)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple, Protocol

from agentenv.core.protocols import Policy
from agentenv.core.scoring.likeness import edit_distance, matching_share

Ranked = tuple[tuple[int, float], tuple[int, float]]
"""The two most likely tokens of a place with their log-probs, the likelier first."""

Schedule = tuple[tuple[int, float], ...]
"""(first step, share) in the order of steps: the share holds until the next one."""


class TopTwo(Protocol):
    """What an engine offers as ``top_two`` that tells what else it might have written."""

    async def __call__(self, ids: Sequence[int], first: int, *, temperature: float = 1.0) -> list[Ranked]:
        """The two most likely tokens at each place of ``ids`` from ``first`` on, given what stands before it."""


def top_two_of(policy: Policy) -> TopTwo | None:
    """The policy's ``top_two``, where its engine has one."""
    found: TopTwo | None = getattr(policy, "top_two", None)
    return found


class AlternativeToken(NamedTuple):
    """The token that opens another continuation of a turn."""

    place: int
    """How many tokens of the turn stay before it."""
    token: int
    logprob: float


def alternatives_of(
    ids: Sequence[int], ranked: Sequence[Ranked], *, min_probability: float = 0.15, max_gap: float = 0.25
) -> list[AlternativeToken]:
    """Every place of a turn at which the runner-up is likely by itself and nearly as likely as the first.

    LATR, Xing et al. 2025, arXiv:2510.24302: p2 > ``min_probability`` and p1 - p2 < ``max_gap``.

    Args:
        ids: What was sampled.
        ranked: For each of ``ids`` the two most likely tokens.
        min_probability: The runner-up's probability must be above this.
        max_gap: Its distance from that of the first must be below this.

    Returns:
        Of the two tokens the one that was not sampled, the likelier where neither was.
    """
    return [
        AlternativeToken(place, *(second if sampled == first[0] else first))
        for place, (sampled, (first, second)) in enumerate(zip(ids, ranked, strict=True))
        if exp(second[1]) > min_probability and exp(first[1]) - exp(second[1]) < max_gap
    ]


@dataclass(frozen=True)
class Lookahead:
    """When a branch that left another at a token is too much like it (LATR).

    Each rule looks at the first tokens of both, from the token of the fork on, as many as a window has.
    """

    windows: tuple[int, ...] = (20, 30, 50)
    max_suffix_match: float = 0.2
    max_rouge_l: float = 0.5
    min_edit_distance: float = 0.0
    max_similarity: float = 0.8

    def drops(self, own: Sequence[int], other: Sequence[int]) -> bool:
        """Whether a branch that wrote ``own`` where the other wrote ``other`` is dropped, both to the end of their turn.

        A window that one of them does not outlast is not looked at, as in the released code. Where that leaves none, the
        turns as wholes are compared by ``similarity_of``, because turns of agents are short.
        """
        seen = [window for window in self.windows if window < min(len(own), len(other))]
        if not seen:
            return similarity_of(own, other) >= self.max_similarity
        return any(self._alike(own[:window], other[:window]) for window in seen)

    def _alike(self, own: Sequence[int], other: Sequence[int]) -> bool:
        return (
            suffix_match(own, other) > self.max_suffix_match
            or rouge_l(own, other) > self.max_rouge_l
            or edit_distance(own, other) / len(own) < self.min_edit_distance
        )


def similarity_of(a: Sequence[int], b: Sequence[int]) -> float:
    """2 M / (|a| + |b|) over token ids, M those in matching blocks: 1 for equal runs, 0 for runs without a common token."""
    return matching_share(a, b)


def suffix_match(a: Sequence[int], b: Sequence[int]) -> float:
    """Length of the longest end of one run that stands anywhere in the other, as a share of their common length (LATR)."""
    longest = max(_longest_end(a, b), _longest_end(b, a))
    return longest / len(a)


def _longest_end(of: Sequence[int], within: Sequence[int]) -> int:
    """Length of the longest end of ``of`` that stands in ``within``."""
    best = 0
    for end in range(1, len(within) + 1):
        length = 0
        while length < min(end, len(of)) and within[end - 1 - length] == of[-1 - length]:
            length += 1
        best = max(best, length)
    return best


def rouge_l(a: Sequence[int], b: Sequence[int]) -> float:
    """2 P R / (P + R) of the longest common subsequence: its length as a share of ``a`` (P) and of ``b`` (R)."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = row
        row = [0]
        for j, y in enumerate(b):
            row.append(before[j] + 1 if x == y else max(row[j], before[j + 1]))
    return 2 * row[-1] / (len(a) + len(b))


def share_at(schedule: Schedule, step: int) -> float:
    """The share in training step ``step``: that of the last entry that has begun; before that, the first entry's."""
    begun = [share for first, share in schedule if first <= step]
    return begun[-1] if begun else schedule[0][1]
