"""Forks within a turn: at a token where the policy nearly wrote another one (LATR, lookahead tree-based rollouts)."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from math import exp
from typing import NamedTuple, Protocol

from agentenv.core.protocols import Policy

Ranked = tuple[tuple[int, float], tuple[int, float]]
"""The two most likely tokens of a place with their log-probs, the likelier first."""


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


def alternative_of(
    ids: Sequence[int], ranked: Sequence[Ranked], *, min_probability: float = 0.15, max_gap: float = 0.25
) -> AlternativeToken | None:
    """The first place of a turn at which the runner-up is likely by itself and nearly as likely as the first.

    Args:
        ids: What was sampled.
        ranked: For each of ``ids`` the two most likely tokens.
        min_probability: The runner-up's probability must be above this.
        max_gap: Its distance from that of the first must be below this.

    Returns:
        Of the two tokens the one that was not sampled, the likelier where neither was; None where there is no such place.
    """
    for place, (sampled, (first, second)) in enumerate(zip(ids, ranked, strict=True)):
        high, low = exp(first[1]), exp(second[1])
        if low > min_probability and high - low < max_gap:
            return AlternativeToken(place, *(second if sampled == first[0] else first))
    return None


def similarity_of(a: Sequence[int], b: Sequence[int]) -> float:
    """2 M / (|a| + |b|) over token ids, M those in matching blocks: 1 for equal runs, 0 for runs without a common token."""
    return SequenceMatcher(None, a, b, autojunk=False).ratio()
