"""Self-written search results leave the loss, and queries tell how uncertain they were (SSRL, Fan et al. 2025).

A complete ``<information>`` block of the policy's own is generated like everything else and trained like an observation: not
at all. Its content is found by token positions, so blocks of several lines and blocks that repeat are all found, and nothing
is encoded again; the tags themselves stay in the loss, since the format reward pays for them.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import exp

from agentenv.core.grammar import spans_between
from agentenv.core.rollout import EpisodeSpec, EpisodeState, act_on, sample
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import Completion
from agentenv.envs.search.self_search import SelfSearch, query_entropy
from agentenv.trainers.strategies.rollout_context import RolloutContext, gather_slots

Decode = Callable[[Sequence[int]], str]
Span = tuple[int, int]

_WINDOW = 64  # tokens; what stands so far before a token does not change how it is decoded
_QUERY = re.compile(r"<search>((?:(?!<search>).)*?)</search>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class SelfSearchStrategy:
    """Leaves search results that the policy wrote itself out of the loss; episodes are played as by ``plain``.

    SSRL, 2025, arXiv:2508.10874.
    """

    mask_information: bool = True
    """Whether the content of self-written ``<information>`` blocks stays out of the loss."""

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """One trajectory for each start, in their order."""
        return await gather_slots(specs, context, lambda state: self._play(state, context))

    async def _play(self, state: EpisodeState, context: RolloutContext) -> Trajectory:
        env = state.spec.env
        while state.ended is None:
            completion = await sample(state, context.policy, context.config)
            if completion is None:
                continue
            if isinstance(env, SelfSearch):
                env.tell_entropy(entropy_of_query(completion, context.decode))
            await act_on(completion, state, context.chat, context.config)
        return mask_information(state.ended, context.decode) if self.mask_information else state.ended


def entropy_of_query(completion: Completion, decode: Decode) -> float:
    """`query_entropy` of the first query in ``completion``; 0 where there is none."""
    found = _QUERY.search(decode(completion.ids))
    spans = content_positions(completion.ids, decode, [found.span(1)] if found else [])
    return query_entropy([exp(completion.logprobs[i]) for begin, end in spans for i in range(begin, end)])


def mask_information(trajectory: Trajectory, decode: Decode) -> Trajectory:
    """``trajectory`` with the content of every complete ``<information>`` block that the policy wrote out of the loss."""
    segments: list[Segment] = []
    for row in sorted({segment.row for segment in trajectory.segments}):
        own = [segment for segment in trajectory.segments if segment.row == row]
        head = max((n for n, s in enumerate(own) if s.kind is SegmentKind.PROMPT), default=-1) + 1
        written = [i for segment in own[head:] for i in segment.ids]
        contents = spans_between(decode(written), "<information>", "</information>")
        spans = content_positions(written, decode, contents)
        segments += own[:head]
        at = 0
        for segment in own[head:]:
            local = [(begin - at, end - at) for begin, end in spans]
            segments += _split(segment, local) if segment.kind is SegmentKind.POLICY else [segment]
            at += len(segment.ids)
    return replace(trajectory, segments=tuple(segments))


def content_positions(ids: Sequence[int], decode: Decode, contents: Sequence[Span]) -> list[Span]:
    """First token and end of each of ``contents``, which are pieces of the text of ``ids``; empty ones are left out.

    A token that holds a piece of the content and a piece of a tag belongs to the content. Positions come from the lengths of
    decoded prefixes, which never shrink.
    """
    length, counts = prefix_lengths(ids, decode), range(len(ids) + 1)

    def span(begin: int, end: int) -> Span:
        first = bisect_left(counts, begin + 1, key=length) - 1
        # A character of several tokens counts from its first one, a token of several characters with its last one.
        return first, max(bisect_left(counts, end, key=length), bisect_right(counts, end, key=length) - 1)

    return [span(begin, end) for begin, end in contents if begin < end]


def prefix_lengths(ids: Sequence[int], decode: Decode) -> Callable[[int], int]:
    """From a number of tokens to the length of their text, as many from the beginning of ``ids``.

    To decode every prefix as a whole would take the square of their number. What is added to a prefix is read in a window
    instead, as servers of language models stream text: decoded with and without it behind the tokens before it.
    """
    lengths = [0]  # of the prefixes of whole windows

    @cache
    def length(count: int) -> int:
        place = count // _WINDOW
        start, known = max(0, place - 1) * _WINDOW, place * _WINDOW
        return lengths[place] + len(decode(ids[start:count])) - len(decode(ids[start:known]))

    for end in range(_WINDOW, len(ids) + 1, _WINDOW):
        start = max(0, end - 2 * _WINDOW)
        added = len(decode(ids[start:end])) - len(decode(ids[start : end - _WINDOW]))
        lengths.append(lengths[-1] + added)
    return length


def _split(segment: Segment, spans: Sequence[Span]) -> list[Segment]:
    """``segment`` cut at ``spans``, its parts within them untrained."""
    size = len(segment.ids)
    inside = [(max(begin, 0), min(end, size)) for begin, end in spans if begin < size and end > 0]
    edges = sorted({0, size, *(edge for span in inside for edge in span)})
    return [
        replace(
            segment.part(begin, end),
            trained=segment.trained and not any(a <= begin < b for a, b in inside),
        )
        for begin, end in pairwise(edges)
    ]
