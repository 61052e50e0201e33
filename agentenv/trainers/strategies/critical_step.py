"""Learning from failures (EvoCUA): forks find the step that lost an episode, and pair it with better actions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.rollout import EpisodeSpec
from agentenv.core.trajectory import Origin, Trajectory
from agentenv.errors import ConfigurationError, SnapshotRefused
from agentenv.trainers.credit.preference_pairs import preference
from agentenv.trainers.strategies.guidance import is_guided, play_guided, reopened, unguided
from agentenv.trainers.strategies.retry import play_marked
from agentenv.trainers.strategies.rewind import Rewinder
from agentenv.trainers.strategies.rollout_context import RolloutContext

REFLECT = (
    "The last action was a mistake, and the task cannot be done by going on as before. Say what went wrong, and take the "
    "action that puts it right."
)
"""What a policy is told from whose recovery a pair is made; it is in no trained context."""


@dataclass(frozen=True, kw_only=True)
class CriticalStepStrategy:
    """Plays every episode once, and makes pairs of a better and a worse action from those that failed.

    EvoCUA, Xue et al. 2026, arXiv:2601.15876. The critical step of a failure is the last one from whose state a try of the
    policy still succeeds. (The published rule compares texts with a successful reference, which is wrong where two routes
    lead to the goal.) Pair I sets the first action of that try against the action that lost the episode. Pair II, one step
    later, sets an action that recovers, written under a hint, against going on. Pairs have the origin ``demonstration`` and
    groups of their own, so that no estimator credits them. The learner makes a step of its own on them, for which it needs a
    reference (``loss.kl_coefficient``).
    """

    tries: int = 2
    """Tries from a state before it counts as lost."""
    recover: bool = True
    """Whether pair II is made."""

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ConfigurationError(f"critical steps need tries of at least 1, not {self.tries}")

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """The episodes in their group, and the pairs in groups of their own."""
        slots = await gather_all(self._slot(place, spec, context) for place, spec in enumerate(specs))
        return [trajectory for slot in slots for trajectory in slot]

    async def _slot(self, place: int, spec: EpisodeSpec, context: RolloutContext) -> list[Trajectory]:
        episode = context.episode(place)
        rewinder = Rewinder(spec, context.config)
        async with context.slot(place):
            try:
                base = await play_marked(spec, rewinder, context, episode)
                if not base.valid or not base.turns or base.reward >= spec.env.reward_ceiling:
                    return [_counted(base, 0, 0, 0)]
                return await _Search(self, spec, base, rewinder, context).pairs()
            finally:
                context.policy.release(episode)
                await rewinder.release()


@dataclass
class _Search:
    """The search for the critical step of one failure."""

    strategy: CriticalStepStrategy
    spec: EpisodeSpec
    base: Trajectory
    rewinder: Rewinder
    context: RolloutContext
    sampled: int = 0
    """Tokens that tries have sampled."""
    tried: int = 0

    async def pairs(self) -> list[Trajectory]:
        """The failure, and both trajectories of each pair that it gives."""
        found: list[Trajectory] = []
        turn, better = await self._critical()
        if better is not None and _action(better, turn) != _action(self.base, turn):
            found += self._pair(better, turn, 1)
        if better is not None and self.strategy.recover and turn + 1 < len(self.base.turns):
            recovered = await self._succeeds(turn + 1, REFLECT)
            if recovered is not None and _action(recovered, turn + 1) != _action(self.base, turn + 1):
                found += self._pair(recovered, turn + 1, 2)
        return [_counted(self.base, self.tried, self.sampled, len(found) // 2), *found]

    async def _critical(self) -> tuple[int, Trajectory | None]:
        """The last turn from whose beginning a try succeeds, and that try; None where none does from the start.

        By bisection: a state from which nothing succeeds is taken to stay lost.
        """
        first = await self._succeeds(0)
        if first is None:
            return 0, None
        alive, lost, best = 0, len(self.base.turns), first
        while lost - alive > 1:
            middle = (alive + lost) // 2
            found = await self._succeeds(middle)
            if found is None:
                lost = middle
            else:
                alive, best = middle, found
        return alive, best

    async def _succeeds(self, turn: int, hint: str = "") -> Trajectory | None:
        """A try from the beginning of ``turn`` that succeeds, recorded without the hint; None where none does."""
        for _ in range(self.strategy.tries):
            self.tried += 1
            again = replace(self.spec, seed=self.spec.seed + 7919 * self.tried)
            state = reopened(self.base, turn, again)
            try:
                await self.rewinder.back_to(state)
            except SnapshotRefused:
                return None
            played = await play_guided(state, self.context, hint or None)
            self.sampled += played.response_tokens - self.base.cut(turn).response_tokens
            acted = len(played.turns) > turn  # a refusal of the policy's service may end the try before
            if acted and played.valid and played.reward >= self.spec.env.reward_ceiling:
                return _up_to(played, turn) if is_guided(played) else played
        return None

    def _pair(self, better: Trajectory, turn: int, number: int) -> list[Trajectory]:
        """Both trajectories of a pair, up to the turn that they are about."""
        name = f"{self.base.id}-pair-{number}"
        return [
            replace(
                one.cut(turn + 1),
                id=f"{name}-{said}",
                parent_id=self.base.id,
                fork_turn=turn,
                group_id=f"{self.base.group_id}/{name}-{said}",
                origin=Origin.DEMONSTRATION,
                info={**preference(name, turn, better=said == "better"), "strategy": {"sampled_tokens": 0}},
            )
            for said, one in (("better", better), ("worse", self.base))
        ]


def _up_to(guided: Trajectory, turn: int) -> Trajectory:
    """``guided`` up to its turn ``turn``, with which a pair ends, without the guidance before that turn.

    Environments that show their whole context anew open a row after every turn, out of which nothing has to be cut.
    """
    kept = [segment for segment in guided.segments if segment.turn <= turn]
    return unguided(guided.with_segments(kept, turns=guided.turns[: turn + 1]))


def _action(trajectory: Trajectory, turn: int) -> str:
    return trajectory.turns[turn].action


def _counted(base: Trajectory, tried: int, sampled: int, pairs: int) -> Trajectory:
    """``base`` with the metrics of what was done for it."""
    counts: dict[str, Any] = {"critical_tries": tried, "critical_pairs": pairs}
    return replace(
        base, info=base.info | {"strategy": counts | {"sampled_tokens": base.response_tokens + sampled}}
    )
