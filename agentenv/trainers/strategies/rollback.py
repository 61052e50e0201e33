"""CLEANER: a failed tool call is taken back and replaced by its correction (SAAR, arXiv:2601.15141)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from agentenv.core.rollout import (
    EpisodeSpec,
    EpisodeState,
    RolloutConfig,
    act,
    capture,
    observe,
    release,
    rewind,
    sample,
)
from agentenv.core.snapshot import Snapshot
from agentenv.core.trajectory import Origin, Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import Completion, EndReason, Message, MessagePart, Observation, ToolStatus
from agentenv.errors import ConfigurationError
from agentenv.trainers.strategies.rollout_context import RolloutContext, gather_slots
from agentenv.trainers.strategies.splicing import Comparison, SampledTurn, is_call, splice

ERRORS = frozenset({ToolStatus.ERROR, ToolStatus.TIMEOUT, ToolStatus.FORMAT_ERROR})
"""Statuses that are the policy's doing; an infrastructure failure is never taken back as if it were."""
HINT = "\nThis way has failed {failures} times. Try a different method.\n"

_UNLIMITED = 1 << 40  # tokens
_DRAW = 0x5AA2  # keeps the draw that switches an episode on apart from other uses of its seed


@dataclass(frozen=True, kw_only=True)
class RollbackStrategy:
    """Takes failed calls back and puts their corrections in their place.

    SAAR of CLEANER, 2026, arXiv:2601.15141. The policy sees the error of a failed call and calls again. The failed call and
    its error are then removed from the record, and the environment returns to its snapshot, so that the failure costs
    neither turns nor tokens of the budget. A turn without a call is not taken back, whatever it was answered. A later retry
    of the same turn sees the latest failure only. After the last retry the error stays in the record, from three failures
    on with a hint, and the episode is not rolled back again.
    """

    retries: int = 3
    """Corrections of one turn; 0 never rolls back."""
    threshold: float = 0.5
    """Similarity of old and new call from which on the old reasoning is kept."""
    similarity: Comparison = "recommended"
    """``recommended`` compares what is passed to the tool; ``parity`` is the published code."""
    roll_probability: float = 1.0
    """Share of the episodes that roll back at all, decided by the episode's seed."""
    max_phases: int = 30
    """Once more calls of an episode than this were executed, retries included, no further one is rolled back."""
    commit: Literal["eager", "on_success"] = "eager"
    """What stands there after the last retry has failed: the latest attempt (the published code) or the first."""
    without_call: bool = False
    """Whether a turn that could not be acted on is taken back also where it has no call, as with a misspelt tag; the
    published code looks at turns with calls alone."""

    def __post_init__(self) -> None:
        if self.retries < 0 or self.max_phases < 0 or not 0 <= self.roll_probability <= 1:
            raise ConfigurationError(
                "rollback needs retries and max_phases of at least 0 and roll_probability within 0 and 1, not "
                f"{self.retries}, {self.max_phases} and {self.roll_probability}"
            )

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """One purified trajectory for each start, in their order; failed attempts are not in the group."""
        return await gather_slots(specs, context, lambda state: _Episode(self, context, state).play())


@dataclass
class _Episode:
    """One episode under way."""

    strategy: RollbackStrategy
    context: RolloutContext
    record: EpisodeState
    enabled: bool = False
    phases: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    similarities: list[float] = field(default_factory=list)

    async def play(self) -> Trajectory:
        draw = np.random.default_rng([self.record.spec.seed, _DRAW]).random()
        self.enabled = self.strategy.retries > 0 and draw < self.strategy.roll_probability
        while self.record.ended is None:
            await self._turn()
        return self._labelled(self.record.ended)

    async def _turn(self) -> None:
        config, clean = self.context.config, self.record.copy()
        completion = await self._sample(self.record, config)
        snapshot = await capture(self.record, config.deadline_s) if completion and self.enabled else None
        if completion is None or self.record.ended is not None:
            return
        try:
            observation = await act(self.record, completion.text, config)
            if observation is None:
                return
            if self._is_taken_back() and snapshot is not None:
                await self._take_back(clean, snapshot)
            else:
                self._observe(self.record, observation)
        finally:
            if snapshot is not None:
                await release(snapshot, config.deadline_s)

    def _is_taken_back(self) -> bool:
        turn, markers = self.record.turns[-1], self.record.spec.env.call_markers
        counts = bool(turn.tool_results) and (self.strategy.without_call or is_call(turn.action, markers))
        self.phases += counts
        self.enabled = self.enabled and self.phases <= self.strategy.max_phases
        return self.enabled and counts and has_failed(turn)

    async def _take_back(self, clean: EpisodeState, snapshot: Snapshot) -> None:
        """Tries the failed turn again from ``clean`` and ``snapshot``, which are of the moment before it."""
        self.counts["triggered"] += 1
        first, config = self.record, self.context.config
        kept = await capture(first, config.deadline_s) if self.strategy.commit == "on_success" else None
        try:
            failures = 1
            while failures <= self.strategy.retries and self.phases <= self.strategy.max_phases:
                if self.record.ended is not None or await self._try_again(clean, snapshot, failures):
                    return
                failures += 1
            self.counts["failed"] += 1
            self.enabled = False
            if kept is not None:
                await rewind(first, kept, config.deadline_s)
                self.record = first
            self._observe(self.record, error_of(self.record.turns[-1], failures=failures))
        finally:
            if kept is not None:
                await release(kept, config.deadline_s)

    async def _try_again(self, clean: EpisodeState, snapshot: Snapshot, attempt: int) -> bool:
        """One correction of the failed turn; whether the turn is settled."""
        config, noisy = self.context.config, self.record.copy()
        self._observe(noisy, error_of(noisy.turns[-1]), limit=_UNLIMITED)
        room = config.context_tokens - len(clean.ids)
        # what is taken back costs nothing
        roomy = config.model_copy(update={"context_tokens": len(noisy.ids) + room})
        completion = await self._sample(noisy, roomy, attempt)
        if completion is not None:
            self.counts["retry_tokens"] += len(completion.ids)
        if completion is None or not is_call(completion.text, self.record.spec.env.call_markers):
            await self._follow(noisy, completion)
            return True
        await rewind(self.record, snapshot, config.deadline_s)
        if self.record.ended is not None:
            return True
        self.record, action = self._spliced(clean, noisy, completion.text)
        observation = await act(self.record, action, config)
        self.phases += 1
        if self.record.ended is not None and not self.record.ended.valid:
            return True
        failed = has_failed(self.record.turns[-1])
        self.counts["recovered"] += not failed
        if observation is not None and not failed:
            self._observe(self.record, observation)
        return observation is None or not failed

    async def _follow(self, noisy: EpisodeState, completion: Completion | None) -> None:
        """Without another call the error stays, and what the policy wrote in view of it is the next turn."""
        self.enabled = False
        config = self.context.config
        if noisy.ended is not None and not noisy.ended.valid:
            self.record = noisy
        elif completion is None or len(noisy.ids) > config.context_tokens:
            self.record.cut(EndReason.TOKEN_LIMIT, {})
        else:
            self.record = noisy
            observation = await act(noisy, completion.text, config)
            if observation is not None:
                self._observe(noisy, observation)

    def _spliced(self, clean: EpisodeState, noisy: EpisodeState, text: str) -> tuple[EpisodeState, str]:
        """The episode with the correction that ends ``noisy`` in the place of the failed turn, and its action."""
        turn = len(clean.turns)
        old = SampledTurn(_sampled(self.record, turn), self.record.turns[turn].action)
        new = tuple(replace(s, turn=turn, row=clean.row) for s in _sampled(noisy, turn + 1))
        done = splice(
            old,
            SampledTurn(new, text),
            self.context.decode,
            clean.spec.env.call_markers,
            threshold=self.strategy.threshold,
            how=self.strategy.similarity,
            limit=self.context.config.context_tokens - len(clean.ids),
        )
        self.counts["shallow" if done.shallow else "deep"] += 1
        if done.similarity is not None:
            self.similarities.append(done.similarity)
        state = clean.copy()
        state.policy_seconds, state.finish = noisy.policy_seconds, noisy.finish
        state.segments += done.turn.segments
        state.ids += done.turn.ids
        return state, done.turn.text

    async def _sample(
        self, state: EpisodeState, config: RolloutConfig, attempt: int = 0
    ) -> Completion | None:
        completion = await sample(state, self.context.policy, config, attempt=attempt)
        self.counts["sampled_tokens"] += len(completion.ids) if completion else 0
        return completion

    def _observe(self, state: EpisodeState, observation: Observation, *, limit: int | None = None) -> None:
        state.turns[-1] = replace(state.turns[-1], observation=observation)
        observe(state, self.context.chat, observation, limit or self.context.config.context_tokens)

    def _labelled(self, trajectory: Trajectory) -> Trajectory:
        """``trajectory`` with its origin and the metrics of its rollbacks."""
        spliced = any(segment.context_mismatch for segment in trajectory.segments)
        names = ("triggered", "recovered", "failed", "shallow", "deep", "retry_tokens")
        metrics: dict[str, int | list[float]] = {f"rollback_{name}": self.counts[name] for name in names}
        metrics |= {"rollback_similarity": self.similarities, "sampled_tokens": self.counts["sampled_tokens"]}
        return replace(
            trajectory,
            origin=Origin.SPLICE if spliced else trajectory.origin,
            info=trajectory.info | {"strategy": metrics},
        )


def has_failed(turn: Turn) -> bool:
    """Whether some call of ``turn`` failed, and none through an infrastructure failure."""
    statuses = {result.status for result in turn.tool_results}
    return bool(statuses & ERRORS) and ToolStatus.ENV_FAULT not in statuses


def error_of(turn: Turn, *, failures: int = 0) -> Observation:
    """What the policy gets to see of a failed turn: of several calls the last error alone, as in the published code.

    Args:
        turn: A turn in which a call failed.
        failures: How often it has failed; from 3 on a hint says so.
    """
    messages = turn.observation
    if len(messages) == len(turn.tool_results) > 1:
        pairs = zip(messages, turn.tool_results, strict=True)
        messages = tuple(message for message, result in pairs if result.status in ERRORS)[-1:]
    return (*messages[:-1], _hinted(messages[-1], failures)) if messages and failures > 2 else messages


def _hinted(message: Message, failures: int) -> Message:
    hint, content = HINT.format(failures=failures), message.content
    return replace(
        message, content=content + hint if isinstance(content, str) else (*content, MessagePart("text", hint))
    )


def _sampled(state: EpisodeState, turn: int) -> tuple[Segment, ...]:
    """The policy's segments of a turn."""
    return tuple(s for s in state.segments if s.kind is SegmentKind.POLICY and s.turn == turn)
