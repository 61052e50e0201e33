"""ReSeek's JUDGE action: an observation that the policy finds useless leaves its context, or is marked there."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentenv.core.grammar import earliest_block
from agentenv.core.rollout import EpisodeSpec, EpisodeState, RolloutConfig, act, observe, sample
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory, Turn
from agentenv.core.types import Completion, FinishReason, Message, MessagePart, Observation
from agentenv.errors import ConfigurationError, check_known
from agentenv.trainers.strategies.rollout_context import RolloutContext, gather_slots

NOTE = "\n[The last result was of no use and is left out.]\n"
MARK = "\n[This result was of no use.]\n"
DROPS = ("note", "mark")


@dataclass(frozen=True, kw_only=True)
class JudgeStrategy:
    """Replaces an observation that the policy judges useless by a short note, or marks it.

    ReSeek, 2025, arXiv:2510.00568. The observation changes in the record when the next turn of the policy contains the
    verdict and the turn before it searched; what follows another turn, such as a correction, stays. What was sampled while
    the observation was in the context as it was carries ``context_mismatch``: the later turn, or its verdict alone where
    ``split``. The state of the environment does not change.
    """

    verdict: str = "<judge>no</judge>"
    """What the policy writes, beside its action, to have the page of its last search dropped; see `says`."""

    drop: str = "note"
    """What happens to such an observation: ``note`` puts a note in its place, ``mark`` keeps it with a mark (version 3
    of the paper)."""

    split: bool = False
    """Whether a turn is sampled in two parts, up to its verdict and on from there. The action after the verdict then follows
    from a context without the page, as published: C_t = tau_{t-1} + [j_t is not bad] o_t. Otherwise the policy writes both
    at once, while it still sees the page."""

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
            completion = await sample(state, context.policy, self._up_to_verdict(context.config))
            if completion is None:
                continue
            if state.turns and has_searched(state.turns[-1]) and says(completion.text, self.verdict):
                before = state
                state = self._judged(unseen, state, context)
                dropped += state is not before
            action = await self._whole_turn(completion, state, context)
            if action is None:
                continue
            observation = await act(state, action, context.config)
            unseen = state.copy()
            if observation is not None:
                observe(state, context.chat, observation, context.config.context_tokens)
        metrics = {"judge_dropped": dropped}
        origin = Origin.SPLICE if dropped else state.ended.origin
        return replace(state.ended, origin=origin, info=state.ended.info | {"strategy": metrics})

    def _up_to_verdict(self, config: RolloutConfig) -> RolloutConfig:
        """``config``, with a verdict of any kind ending what is sampled where turns are split."""
        ending = self.verdict[self.verdict.rfind("</") :] if tags_of(self.verdict) else self.verdict
        return config.model_copy(update={"stop": (*config.stop, ending)}) if self.split else config

    async def _whole_turn(
        self, begun: Completion, state: EpisodeState, context: RolloutContext
    ) -> str | None:
        """The text of the turn that ``begun`` begins, whose rest is sampled where it ends with a verdict.

        None if the episode has ended by that.
        """
        config, seconds = context.config, state.policy_seconds
        room = config.turn_tokens - len(begun.ids)
        acts = any(stop in begun.text for stop in config.stop)
        if not self.split or begun.finish is not FinishReason.STOP or acts or room < 1:
            return begun.text
        rest = await sample(state, context.policy, config.model_copy(update={"turn_tokens": room}), attempt=1)
        state.policy_seconds += seconds
        return None if rest is None else begun.text + rest.text

    def _judged(self, unseen: EpisodeState, state: EpisodeState, context: RolloutContext) -> EpisodeState:
        """``unseen`` with the note or the marked observation, then the turn that was just sampled in ``state``.

        Where the context has no room for that, the episode stays as it is.
        """
        shown = (Message("tool", NOTE),) if self.drop == "note" else marked(unseen.turns[-1].observation)
        limit = context.config.context_tokens
        judged = unseen.copy()
        judged.policy_seconds, judged.finish = state.policy_seconds, state.finish
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
    tag = tags_of(verdict)
    if tag is None:
        return verdict in text
    said, wanted = (earliest_block(written, (tag,)) for written in (text, verdict))
    return said is not None and wanted is not None and said.content.lower() == wanted.content.lower()


def tags_of(verdict: str) -> str | None:
    """The name of the tags that ``verdict`` stands in; None where it is in none."""
    tags = re.fullmatch(r"<(\w+)>.*</\1>", verdict, re.DOTALL)
    return tags[1] if tags else None


def marked(observation: Observation) -> Observation:
    """``observation`` with ``MARK`` behind its last message."""
    if not observation:
        return (Message("tool", MARK),)
    *before, last = observation
    content = (
        last.content + MARK if isinstance(last.content, str) else (*last.content, MessagePart("text", MARK))
    )
    return (*before, replace(last, content=content))
