"""ReSeek's JUDGE action: an observation that the policy finds useless leaves its context."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentenv.core.rollout import Record, Start, act, observe, sample
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError
from agentenv.trainers.strategies.rollout_context import RolloutContext, gather_slots

NOTE = "\n[The last result was of no use and is left out.]\n"


@dataclass(frozen=True, kw_only=True)
class JudgeStrategy:
    """Takes the last observation out of the record when the policy's next turn holds a verdict; a note stands in its place.

    The turn with the verdict was sampled in view of what is gone, so its tokens carry ``context_mismatch``. What the
    environment knows stays: nothing is done again.
    """

    verdict: str = "<judge>no</judge>"
    """What the policy writes, beside its action, to have the last observation dropped."""

    def __post_init__(self) -> None:
        if not self.verdict:
            raise ConfigurationError("judge needs a verdict that the policy can write, not an empty one")

    async def play(self, starts: Sequence[Start], context: RolloutContext) -> list[Trajectory]:
        """One trajectory for each start, in their order."""
        return await gather_slots(starts, context, lambda record: self._play(record, context))

    async def _play(self, record: Record, context: RolloutContext) -> Trajectory:
        dropped, unseen = 0, record.copy()  # the latter is the episode before its last observation
        while record.ended is None:
            completion = await sample(record, context.policy, context.config)
            if completion is None:
                continue
            if record.turns and self.verdict in completion.text:
                record = _without_observation(unseen, record, context)
                dropped += 1
            observation = await act(record, completion.text, context.config)
            unseen = record.copy()
            if observation is not None:
                observe(record, context.chat, observation, context.config.context_tokens)
        figures = {"judge_dropped": dropped}
        origin = Origin.SPLICE if dropped else record.ended.origin
        return replace(record.ended, origin=origin, info=record.ended.info | {"strategy": figures})


def _without_observation(unseen: Record, record: Record, context: RolloutContext) -> Record:
    """``unseen`` with the note, then the turn that was just sampled in ``record``."""
    note = (Message("tool", NOTE),)
    cleaned = unseen.copy()
    cleaned.policy_seconds = record.policy_seconds
    cleaned.turns[-1] = replace(cleaned.turns[-1], observation=note)
    observe(cleaned, context.chat, note, context.config.context_tokens)
    turn = len(record.turns)
    for segment in record.segments:
        if segment.kind is SegmentKind.POLICY and segment.turn == turn:
            cleaned.segments.append(replace(segment, row=cleaned.row, context_mismatch=True))
            cleaned.ids.extend(segment.ids)
    return cleaned
