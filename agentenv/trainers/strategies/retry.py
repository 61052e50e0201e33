"""Reflect and retry (R3L, Shi et al. 2026): half of the budget on episodes, half on second tries from where they went wrong.

What is done otherwise than in the published code, and why:

1. The environment goes back by snapshot; actions are replayed only where memory cannot be copied, and every observation of
   a replay is compared with the record.
2. Ids are never encoded again: the retry is recorded as it was sampled and the guidance is cut out of the record.
3. Pivot masks come from the segments, not from runs of ones in a mask.
4. A retry may be as long as an episode without guidance, so that cutting the guidance out changes no budget.
5. Bases and retries meet the same environment, which ends no episode early for an action of bad form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.rollout import (
    EpisodeSpec,
    EpisodeState,
    never_fitted,
    take_turn,
)
from agentenv.core.trajectory import Origin, Trajectory
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError, SnapshotRefused
from agentenv.trainers.credit.step_selection import without_turns
from agentenv.trainers.strategies.guidance import is_guided, play_guided, reopened, unguided
from agentenv.trainers.strategies.reflection import Reflector, failed_reflection, pivot_of, validate_report
from agentenv.trainers.strategies.reflectors import check_reflected_tasks, check_reflector, make_reflector
from agentenv.trainers.strategies.rewind import Rewinder
from agentenv.trainers.strategies.rollout_context import RolloutContext, play_alone

_REFLECTION_TURN = 1_000_002  # seeds the reflection apart from every turn of its episode

# What was sampled for a retry or a reflection stands in the metrics of its base.
_COUNTED = {"strategy": {"sampled_tokens": 0}}


@dataclass(frozen=True, kw_only=True)
class ReflectRetryStrategy:
    """Plays half of the episodes, reflects on each, and retries it from the turn that went wrong, the pivot.

    R3L, Shi et al. 2026, arXiv:2601.03715. The retry is guided by the lessons of the reflection. The group contains the
    episodes and the retries without their guidance; turns before the pivot are not in the loss. If a retry succeeds and is
    better or shorter, the reflection (with reward 1) and the retry with its guidance are trained as well, each in a group of
    its own. Of an odd number of starts the last one is played without a retry.
    """

    reflector: str = "self"
    """Who reflects: ``self`` (the trained policy), a verifier (SCOPE) such as ``rule`` or ``evidence``, or another policy
    such as ``hf:PATH`` or ``openai:MODEL@URL``, whose reflections are not trained on."""
    reflection_tokens: int = 4096
    """Tokens that one reflection may take."""
    guidance: bool = True
    """Whether a retry is shown the lessons of the reflection; False retries from the pivot without them."""
    pivotal: bool = True
    """False leaves the turns before the pivot in the loss. What they are credited with is the estimator's: ``pivotal`` gives
    them 0 unless its option ``from_pivot`` is false."""
    min_progress: float = 0.0
    """Smallest share of the turns of an episode that are right, those before the pivot, for which it is retried (SCOPE
    corrects failures that are mostly right)."""

    def __post_init__(self) -> None:
        check_reflector(self.reflector, self.reflection_tokens)
        if not 0 <= self.min_progress < 1:
            raise ConfigurationError(
                f"option 'min_progress' of the strategy 'reflect_retry' must be within [0, 1), not {self.min_progress}"
            )

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Refuses tasks on which the reflector cannot reflect.

        Raises:
            ConfigurationError: there is one.
        """
        check_reflected_tasks(self.reflector, tasks)

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """Episodes and retries in their group; reflections and guided retries in groups of their own."""
        reflector = make_reflector(self.reflector, self.reflection_tokens, context)
        half = len(specs) // 2
        pairs = zip(specs[:half], specs[half : 2 * half], strict=True)
        retried = (
            self._slot(place, spec, replace(spec, seed=again.seed), context, reflector)
            for place, (spec, again) in enumerate(pairs)
        )
        single = (play_alone(specs[place], context, place) for place in range(2 * half, len(specs)))
        slots = await gather_all([*retried, *single])
        return [trajectory for slot in slots for trajectory in slot]

    async def _slot(
        self, place: int, spec: EpisodeSpec, again: EpisodeSpec, context: RolloutContext, reflector: Reflector
    ) -> list[Trajectory]:
        """One episode and what follows from it; snapshots and the policy's cache are freed in any case."""
        episode = context.episode(place)
        rewinder = Rewinder(spec, context.config)
        async with context.slot(place):
            try:
                base = await play_marked(spec, rewinder, context, episode)
                if not base.valid:
                    return [base]
                return await self._improve(base, again, rewinder, context, reflector)
            finally:
                context.policy.release(episode)
                await rewinder.release()

    async def _improve(
        self,
        base: Trajectory,
        again: EpisodeSpec,
        rewinder: Rewinder,
        context: RolloutContext,
        reflector: Reflector,
    ) -> list[Trajectory]:
        ceiling = again.env.reward_ceiling
        episode = f"{base.id}-reflection"
        seed = again.seed * 1_000_003 + _REFLECTION_TURN
        try:
            reflection = await reflector.reflect(base, ceiling, episode=episode, seed=seed)
        except ConfigurationError:
            raise
        except Exception as error:
            return [base, failed_reflection(again, episode, error)]
        verdict = validate_report(reflection.report, len(base.turns))
        counts = {"reflections": 1, "reflections_valid": int(verdict.valid)}
        counts["reflection_tokens"] = reflection.tokens
        if not verdict.valid or verdict.perfect:
            learned = verdict.perfect and base.reward >= ceiling
            return [_counted(base, counts), *_own_group(reflection.dialogue, learned, base)]
        assert reflection.report is not None
        pivot = pivot_of(reflection.report) or 0
        if pivot < self.min_progress * len(base.turns):
            return [_counted(base, counts)]
        state = reopened(base, pivot, again)
        try:
            await rewinder.back_to(state)
        except SnapshotRefused:
            return [_counted(base, counts | {"retries_refused": 1})]
        guided = await self._go_on(state, reflection.guidance, context)
        if guided is None:
            return [_counted(base, counts)]
        masked = pivot if self.pivotal else 0
        return _with_retry(base, guided, pivot, masked, reflection.dialogue, counts, ceiling)

    async def _go_on(self, state: EpisodeState, guidance: str, context: RolloutContext) -> Trajectory | None:
        """The retry to its end, guidance and all; None where the guidance leaves no room for a turn."""
        guided = await play_guided(state, context, guidance if self.guidance else None)
        return None if never_fitted(guided) else guided


def improved(before: Trajectory, after: Trajectory, ceiling: float) -> bool:
    """Whether a retry succeeded, and with more reward or in fewer turns than what it retried."""
    better = after.reward > before.reward or len(after.turns) < len(before.turns)
    return after.reward >= ceiling and better


async def play_marked(
    spec: EpisodeSpec, rewinder: Rewinder, context: RolloutContext, episode: str
) -> Trajectory:
    """One episode with the state of each turn kept."""
    state = await context.open(spec, episode)
    while state.ended is None:
        await rewinder.mark(state)
        if state.ended is None:
            await take_turn(state, context.policy, context.chat, context.config)
    return state.ended


def _with_retry(
    base: Trajectory,
    guided: Trajectory,
    pivot: int,
    masked: int,
    dialogue: Trajectory | None,
    counts: dict[str, int],
    ceiling: float,
) -> list[Trajectory]:
    """What is learned from a base and its retry; of both, nothing of the first ``masked`` turns."""
    lineage: dict[str, Any] = {"parent_id": base.id, "fork_turn": pivot, "origin": Origin.RETRY}
    twin = replace(without_turns(guided, range(masked)), id=f"{base.id}-guided", **lineage)
    retry = replace(unguided(twin), id=f"{base.id}-retry", info=guided.info | _COUNTED)
    good = retry.valid and improved(base, retry, ceiling)
    sampled = guided.response_tokens - base.cut(pivot).response_tokens
    counts |= {"retries": 1, "retries_improved": int(good), "retry_tokens": sampled}
    if not retry.valid:
        return [_counted(base, counts), retry]
    return [
        _counted(without_turns(base, range(masked)), counts),
        retry,
        *_own_group(dialogue, good, base),
        *_own_group(twin, good and is_guided(twin), base),
    ]


def _own_group(trajectory: Trajectory | None, wanted: bool, base: Trajectory) -> list[Trajectory]:
    """``trajectory`` as the only member of its group, where there is one and it is wanted."""
    if trajectory is None or not wanted:
        return []
    group_id = f"{base.group_id}/{trajectory.id}"
    return [replace(trajectory, group_id=group_id, info=trajectory.info | _COUNTED)]


def _counted(base: Trajectory, counts: dict[str, int]) -> Trajectory:
    """``base`` with the metrics of all that was done and sampled for it, itself included."""
    sampled = base.response_tokens + counts["reflection_tokens"] + counts.get("retry_tokens", 0)
    return replace(base, info=base.info | {"strategy": counts | {"sampled_tokens": sampled}})
