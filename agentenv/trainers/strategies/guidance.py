"""Guidance in a context: put in token-exactly, and taken out again so that nothing else changes.

Guidance (a lesson, a critique, a hint) stands in a segment of kind ``injected`` right before the place where the policy
writes. What the policy samples after it was sampled under another context than the trained one: once the guidance is cut
out, those segments carry ``context_mismatch`` and keep ids and log-probs as they are. Nothing is ever encoded again.
"""

from collections.abc import Sequence
from dataclasses import replace

from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import EpisodeSpec, EpisodeState, play
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import Message, is_context
from agentenv.errors import ConfigurationError
from agentenv.trainers.strategies.rollout_context import RolloutContext


def place_guidance(chat: ChatFormat, row: Sequence[int], text: str) -> tuple[int, list[int]]:
    """Where guidance goes into ``row``, and its ids: before the head of the turn that the policy is about to write.

    It goes in the user's name: many templates refuse a system message after the first.

    Args:
        chat: The format of the row.
        row: Ids up to the place where the policy writes.
        text: The guidance.

    Raises:
        ConfigurationError: the format does not end the row with the head of a turn, or writes that head differently after
            a message.
    """
    head = chat.extend([], ())
    added = chat.extend([], (Message("user", f"{text}\n"),))
    at = len(row) - len(head)
    if list(row[at:]) != head or added[len(added) - len(head) :] != head:
        raise ConfigurationError(
            "the chat format writes the head of a turn differently after a message, so that guidance could not be cut "
            "out again; use the inline format"
        )
    return at, added[: len(added) - len(head)]


def reopened(base: Trajectory, turn: int, spec: EpisodeSpec) -> EpisodeState:
    """The record of ``base`` as it stood when its turn ``turn`` began, to go on from.

    Args:
        base: A finished trajectory.
        turn: Turns before it are kept.
        spec: Its environment in the state of that turn, and the seed of what is sampled from there on.
    """
    head = base.cut(turn)
    row = head.segments[-1].row
    return EpisodeState(
        spec,
        base.id,
        prompt=base.prompt,
        ids=[i for segment in head.segments if segment.row == row for i in segment.ids],
        row=row,
        segments=[*head.segments],
        turns=[*head.turns],
    )


def guide(state: EpisodeState, chat: ChatFormat, text: str) -> int:
    """Puts ``text`` before the next turn of ``state``; how many ids that took.

    Raises:
        ConfigurationError: see ``place_guidance``.
    """
    at, ids = place_guidance(chat, state.ids, text)
    last, kept = state.segments[-1], at - len(state.ids) + len(state.segments[-1].ids)
    halves = [last.part(0, kept), last.part(kept, len(last.ids))]
    injected = Segment(SegmentKind.INJECTED, tuple(ids), last.turn, row=last.row)
    state.segments[-1:] = [s for s in (halves[0], injected, halves[1]) if s.ids]
    state.ids[at:at] = ids
    return len(ids)


async def play_guided(state: EpisodeState, context: RolloutContext, text: str | None) -> Trajectory:
    """Plays ``state`` to its end with ``text`` before its next turn, for which the context is made longer.

    Raises:
        ConfigurationError: see ``place_guidance``.
    """
    if text is not None:
        added = guide(state, context.chat, text)
        context = context.with_settings(context_tokens=context.config.context_tokens + added)
    return await play(state, context.policy, context.chat, context.config)


def unguided(guided: Trajectory) -> Trajectory:
    """``guided`` without its guidance; what was sampled in view of it is flagged, and not an id is changed.

    A context of its own, with which an environment goes on, never held the guidance: nothing in its row is flagged.

    Raises:
        ConfigurationError: the chat format rewrote tokens after the guidance, so that it may stand in a later row.
    """
    kept: list[Segment] = []
    guidance_seen = False
    for segment in guided.segments:
        if segment.kind is SegmentKind.INJECTED:
            guidance_seen, joins = True, True
            continue
        if guidance_seen and segment.kind is SegmentKind.PROMPT and segment.row > kept[-1].row:
            if not is_context(guided.turns[segment.turn - 1].observation):
                raise ConfigurationError(
                    "the chat format rewrites earlier tokens, so that guidance cannot be cut out; use one that only "
                    "appends"
                )
            guidance_seen = False
        if guidance_seen and segment.kind is SegmentKind.POLICY:
            segment = replace(segment, context_mismatch=True)
        # These are the two halves of the segment that the guidance was put into.
        if guidance_seen and joins and segment.kind is kept[-1].kind:
            kept[-1] = kept[-1].joined(segment)
        else:
            kept.append(segment)
        joins = False
    return replace(guided, segments=tuple(kept))


def is_guided(trajectory: Trajectory) -> bool:
    """Whether guidance stands in it."""
    return any(s.kind is SegmentKind.INJECTED for s in trajectory.segments)
