"""ReSeek's JUDGE action: an observation that the policy finds useless leaves its context, or is marked there."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentenv.core.grammar import earliest_block
from agentenv.core.rollout import EpisodeSpec, EpisodeState, act, observe, sample
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory, Turn
from agentenv.core.types import Message, MessagePart, Observation
from agentenv.errors import ConfigurationError, check_known
from agentenv.trainers.strategies.rollout_context import RolloutContext, gather_slots

NOTE = "\n[The last result was of no use and is left out.]\n"
MARK = "\n[This result was of no use.]\n"
DROPS = ("note", "mark")


@dataclass(frozen=True, kw_only=True)
class JudgeStrategy:
    """Replaces an observation that the policy judges useless by a short note, or marks it.

    ReSeek, 2025, arXiv:2510.00568. The observation changes in the record when the next turn of the policy contains the
    verdict and the turn before it searched; what follows another turn, such as a correction, stays. The later turn was
    sampled while the observation was in the context as it was, so its tokens carry ``context_mismatch``. The state of the
    environment does not change.
    """

    verdict: str = "<judge>no</judge>"
    """What the policy writes, beside its action, to have the page of its last search dropped; see `says`."""

    drop: str = "note"
    """What becomes of it: ``note`` leaves a note in its place, ``mark`` keeps it with a mark (version 3 of the paper)."""

    def __post_init__(self) -> None:
        check_known("way to drop an observation", self.drop, DROPS)
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
            if state.turns and has_searched(state.turns[-1]) and says(completion.text, self.verdict):
                before = state
                state = self._judged(unseen, state, context)
                dropped += state is not before
            observation = await act(state, completion.text, context.config)
            unseen = state.copy()
            if observation is not None:
                observe(state, context.chat, observation, context.config.context_tokens)
        metrics = {"judge_dropped": dropped}
        origin = Origin.SPLICE if dropped else state.ended.origin
        return replace(state.ended, origin=origin, info=state.ended.info | {"strategy": metrics})

    def _judged(self, unseen: EpisodeState, state: EpisodeState, context: RolloutContext) -> EpisodeState:
        """``unseen`` with the note or the marked observation, then the turn that was just sampled in ``state``.

        Where the context has no room for that, the episode stays as it is.
        """
        shown = (Message("tool", NOTE),) if self.drop == "note" else marked(unseen.turns[-1].observation)
        limit = context.config.context_tokens
        judged = unseen.copy()
        judged.policy_seconds = state.policy_seconds
        judged.turns[-1] = replace(judged.turns[-1], observation=shown)
        observe(judged, context.chat, shown, limit)
        turn = len(state.turns)
        sampled = [s for s in state.segments if s.kind is SegmentKind.POLICY and s.turn == turn]
        if judged.ended is not None or len(judged.ids) + sum(len(s.ids) for s in sampled) > limit:
            return state
        for segment in sampled:
            judged.segments.append(replace(segment, row=judged.row, context_mismatch=True))
            judged.ids.extend(segment.ids)
        return judged


def has_searched(turn: Turn) -> bool:
    """Whether a tool named ``search`` was called in ``turn``."""
    return any(result.name == "search" for result in turn.tool_results)


def says(text: str, verdict: str) -> bool:
    """Whether ``text`` says ``verdict``.

    A verdict in tags is read as `JudgedSearch-v0` reads it: the first complete block with these tags counts, and neither
    case nor white space at the ends of its content matters. Any other verdict has to stand in ``text`` as it is.
    """
    tags = re.fullmatch(r"<(\w+)>.*</\1>", verdict, re.DOTALL)
    if tags is None:
        return verdict in text
    said, wanted = (earliest_block(written, (tags[1],)) for written in (text, verdict))
    return said is not None and wanted is not None and said.content.lower() == wanted.content.lower()


def marked(observation: Observation) -> Observation:
    """``observation`` with ``MARK`` behind its last message."""
    if not observation:
        return (Message("tool", MARK),)
    *before, last = observation
    content = (
        last.content + MARK if isinstance(last.content, str) else (*last.content, MessagePart("text", MARK))
    )
    return (*before, replace(last, content=content))
