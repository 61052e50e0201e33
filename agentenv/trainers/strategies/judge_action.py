"""ReSeek's JUDGE action: an observation that the policy finds useless leaves its context."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentenv.core.rollout import EpisodeSpec, EpisodeState, act, observe, sample
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError
from agentenv.trainers.strategies.rollout_context import RolloutContext, gather_slots

NOTE = "\n[The last result was of no use and is left out.]\n"


@dataclass(frozen=True, kw_only=True)
class JudgeStrategy:
    """Replaces an observation that the policy judges useless by a short note.

    ReSeek, 2025, arXiv:2510.00568. The observation is removed from the record when the next turn of the policy contains the
    verdict. That turn was sampled while the observation was in the context, so its tokens carry ``context_mismatch``. The
    state of the environment does not change.
    """

    verdict: str = "<judge>no</judge>"
    """What the policy writes, beside its action, to have the last observation dropped."""

    def __post_init__(self) -> None:
        if not self.verdict:
            raise ConfigurationError("judge needs a verdict that the policy can write, not an empty one")

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """One trajectory for each start, in their order."""
        return await gather_slots(specs, context, lambda state: self._play(state, context))

    async def _play(self, state: EpisodeState, context: RolloutContext) -> Trajectory:
        dropped, unseen = 0, state.copy()  # the latter is the episode before its last observation
        while state.ended is None:
            completion = await sample(state, context.policy, context.config)
            if completion is None:
                continue
            if state.turns and self.verdict in completion.text:
                state = _without_observation(unseen, state, context)
                dropped += 1
            observation = await act(state, completion.text, context.config)
            unseen = state.copy()
            if observation is not None:
                observe(state, context.chat, observation, context.config.context_tokens)
        metrics = {"judge_dropped": dropped}
        origin = Origin.SPLICE if dropped else state.ended.origin
        return replace(state.ended, origin=origin, info=state.ended.info | {"strategy": metrics})


def _without_observation(unseen: EpisodeState, state: EpisodeState, context: RolloutContext) -> EpisodeState:
    """``unseen`` with the note, then the turn that was just sampled in ``state``."""
    note = (Message("tool", NOTE),)
    cleaned = unseen.copy()
    cleaned.policy_seconds = state.policy_seconds
    cleaned.turns[-1] = replace(cleaned.turns[-1], observation=note)
    observe(cleaned, context.chat, note, context.config.context_tokens)
    turn = len(state.turns)
    for segment in state.segments:
        if segment.kind is SegmentKind.POLICY and segment.turn == turn:
            cleaned.segments.append(replace(segment, row=cleaned.row, context_mismatch=True))
            cleaned.ids.extend(segment.ids)
    return cleaned
