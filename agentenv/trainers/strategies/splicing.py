"""Putting one turn's call in the place of another's: surgery on token ids, text only to compare.

A turn is a run of policy segments. Its *call* begins with the token in which the first call marker begins, and goes to
the end of the turn; what stands before is its *reasoning*.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agentenv.core.images import image_kwargs
from agentenv.core.protocols import Policy
from agentenv.core.scoring.likeness import matching_share
from agentenv.core.tools import ToolCall, read_calls
from agentenv.core.trajectory import Segment, Trajectory

Decode = Callable[[Sequence[int]], str]
Comparison = Literal["recommended", "parity"]


@dataclass(frozen=True)
class SampledTurn:
    """The policy's part of one turn."""

    segments: tuple[Segment, ...]
    text: str
    """The action: what the environment acts on."""

    @property
    def ids(self) -> list[int]:
        """The token ids of the turn."""
        return [i for segment in self.segments for i in segment.ids]


def is_call(text: str, markers: Sequence[str]) -> bool:
    """Whether an action calls a tool; any action does where no markers are declared."""
    return not markers or any(marker in text for marker in markers)


def call_start(ids: Sequence[int], decode: Decode, markers: Sequence[str]) -> int | None:
    """Place of the token in which the first call marker begins; None where there is none."""
    text = decode(ids)
    begins = [text.index(marker) for marker in markers if marker in text]
    if not begins:
        return None
    low, high = 0, len(ids) - 1  # the last place before which no more than the reasoning stands
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(decode(ids[:middle])) <= min(begins) else (low, middle - 1)
    return low


def similarity(old: str, new: str, how: Comparison = "recommended") -> float:
    """2M / (|old| + |new|), M the characters in matching blocks (Ratcliff and Obershelp, as in ``difflib``).

    Args:
        old: The call that failed.
        new: The call that is to take its place.
        how: ``recommended`` compares what is passed to the tool, with every character counted. ``parity`` is the published
            code: the whole call with its wrapper, which makes any two calls alike, and difflib's rule that characters
            which make up more than 1 % of 200 or more do not count, which makes long equal calls differ.
    """
    if how == "parity":
        return matching_share(old, new, autojunk=True)
    return matching_share(argument_text(old), argument_text(new))


def argument_text(call: str) -> str:
    """What a call passes to its tool: the values of its arguments, or what stands within its tags."""
    calls = [found for found in read_calls(call) if isinstance(found, ToolCall)]
    if calls:
        given = [c.arguments.values() if isinstance(c.arguments, dict) else [c.arguments] for c in calls]
        return "\n".join(str(value) for values in given for value in values)
    within = re.search(r"<(\w+)>(.*?)(?:</\1>|\Z)", call, re.DOTALL)
    return within[2] if within else call


@dataclass(frozen=True)
class Splice:
    """The turn that replaces a failed turn."""

    turn: SampledTurn
    shallow: bool
    """Whether the old reasoning was kept."""
    similarity: float | None
    """Similarity of the two calls; None if one of the turns has no call."""


def splice(
    old: SampledTurn,
    new: SampledTurn,
    decode: Decode,
    markers: Sequence[str],
    *,
    threshold: float = 0.5,
    how: Comparison = "recommended",
    limit: int | None = None,
) -> Splice:
    """``new`` in the place of ``old`` (CLEANER's SAAR, arXiv 2601.15141).

    Calls that are less alike than ``threshold`` exchange the whole turn ("deep"); of others the old reasoning is kept and
    the call exchanged ("shallow"). Tokens of ``new`` were sampled in view of the error, so they carry
    ``context_mismatch``.

    Args:
        old: The turn that failed.
        new: The turn that the policy wrote in view of the error.
        decode: Text of token ids.
        markers: What a call may begin with.
        threshold: On the similarity; the comparison is strict on the deep side.
        how: See ``similarity``.
        limit: Tokens that the spliced turn may have; a shallow one that is longer becomes deep. None is no limit.
    """
    off_context = tuple(replace(s, context_mismatch=True) for s in new.segments)
    deep = SampledTurn(off_context, new.text)
    before, after = (call_start(turn.ids, decode, markers) for turn in (old, new))
    if before is None or after is None:
        return Splice(deep, False, None)
    alike = similarity(decode(old.ids[before:]), decode(new.ids[after:]), how)
    length = before + len(new.ids) - after
    if alike < threshold or (limit is not None and length > limit):
        return Splice(deep, False, alike)
    text = decode(old.ids[:before]) + new.text[len(decode(new.ids[:after])) :]
    return Splice(SampledTurn((*_take(old.segments, before), *_drop(off_context, after)), text), True, alike)


async def rescore_logprobs(trajectory: Trajectory, policy: Policy, temperature: float) -> Trajectory:
    """``trajectory`` with log-probs of its tokens of another context where they stand now; these then count as any others.

    Args:
        trajectory: An episode.
        policy: The one that sampled it, its weights unchanged.
        temperature: That of the sampling.
    """
    if not any(segment.context_mismatch for segment in trajectory.segments):
        return trajectory
    scores: list[float] = []
    for row, images in zip(trajectory.row_slices, trajectory.row_images, strict=True):
        ids = trajectory.ids[row].tolist()
        scores += await policy.score(ids, temperature=temperature, **image_kwargs(images))
    segments, start = [], 0
    for segment in trajectory.segments:
        end = start + len(segment.ids)
        if segment.context_mismatch:
            mine = tuple(scores[start:end])
            segment = replace(segment, logprobs=mine, version=policy.version, context_mismatch=False)
        segments.append(segment)
        start = end
    return replace(trajectory, segments=tuple(segments))


def _take(segments: Sequence[Segment], count: int) -> list[Segment]:
    """The first ``count`` tokens of a run of segments."""
    kept: list[Segment] = []
    for segment in segments:
        if count > 0:
            kept.append(segment.part(0, count))
        count -= len(segment.ids)
    return kept


def _drop(segments: Sequence[Segment], count: int) -> list[Segment]:
    """A run of segments without its first ``count`` tokens."""
    kept: list[Segment] = []
    for segment in segments:
        if count < len(segment.ids):
            kept.append(segment.part(max(count, 0), len(segment.ids)))
        count -= len(segment.ids)
    return kept
