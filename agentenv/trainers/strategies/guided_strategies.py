"""Guided rescue: what is done with questions that the policy cannot answer by itself, or not yet.

Hints and critiques stand in the context while the policy samples and are cut out of the record; what was sampled after them
then carries ``context_mismatch``. What such tokens are worth is the objective's choice: ``correction.off_context = "ratio"``
is Guide's, ``guided_clip`` that of Critique-GRPO.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.rollout import (
    EpisodeSpec,
)
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.strategies.demonstrations import expert_actions, play_demonstration
from agentenv.trainers.strategies.hinted_episodes import play_hinted
from agentenv.trainers.strategies.item_response import fitted_response
from agentenv.trainers.strategies.reflection import episode_log, failed_reflection, validate_report
from agentenv.trainers.strategies.reflectors import check_reflected_tasks, check_reflector, make_reflector
from agentenv.trainers.strategies.rollout_context import RolloutContext, Round, play_alone, run_rounds

Played = list[Trajectory]
OUTCOME = "outcome"


@dataclass(frozen=True, kw_only=True)
class GuideStrategy:
    """Plays a group, and if all of its episodes fail, plays it again with a hint, which the record leaves out.

    Guide, 2025, arXiv:2506.13923. The hint is ``Task.data["hint"]``, or what the environment's expert does before its last
    action.
    """

    fail: float | None = None
    """Largest outcome of an episode that failed; None takes the environment's ``reward_floor``."""

    def needs_expert(self, task: Task) -> bool:
        """Whether a hint for ``task`` is what the expert does: the task has none of its own."""
        return not task.data.get("hint")

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> Played:
        """The episodes, and the hinted ones where they were needed."""

        def then(rounds: list[list[Played]]) -> Round[Played] | None:
            return hinted if len(rounds) == 1 and is_lost(_flat(rounds), specs[0], self.fail) else None

        async def hinted(place: int) -> Played:
            return await play_hinted(specs[place], context, context.episode(place), "hinted", hint_of)

        return _flat(await run_rounds(context, len(specs), partial(_plain, specs, context), then))


@dataclass(frozen=True, kw_only=True)
class AdaptiveHintStrategy:
    """Plays several rounds of episodes and adapts the length of the hint to the success rate of the rounds before.

    SEELE, Li et al. 2025, arXiv:2509.06923. A hint is the first part of the expert's actions; the first round has none.
    After each round an item response model of the question is fitted to all rounds so far (``item_response.py``), and the
    next round shows the share of the expert's actions under which the model expects ``target`` of the episodes to succeed.
    """

    rounds: int = 4
    """Rounds that a group is played in, at most n; each has n / rounds episodes."""
    target: float = 0.5
    """Share of the episodes of a round that should succeed."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 < self.target <= 1:
            raise ConfigurationError(
                f"adaptive hints need rounds of at least 1 and a target above 0 and at most 1, not {self.rounds} and "
                f"{self.target}"
            )

    def needs_expert(self, task: Task) -> bool:
        """True: whatever is shown is what the expert does."""
        return True

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> Played:
        """The episodes of all rounds, recorded without their hints."""
        last = min(self.rounds, len(specs))
        slots = len(specs) // last
        shares = [0.0]

        def then(rounds: list[list[Played]]) -> Round[Played] | None:
            if len(rounds) == last:
                return None
            successes, played = zip(*(success_count(_flat([one]), specs[0]) for one in rounds), strict=True)
            shares.append(fitted_response(shares, successes, played).share(self.target))
            return partial(hinted, len(rounds), shares[-1])

        async def hinted(number: int, share: float, place: int) -> Played:
            spec, first, name = specs[number * slots + place], context.episode(place), f"round-{number}"
            if share:
                return await play_hinted(spec, context, first, name, partial(leading_hint, share=share))
            return [await context.run(spec, f"{first}-{name}")]

        return _flat(await run_rounds(context, slots, partial(_plain, specs, context), then))


@dataclass(frozen=True, kw_only=True)
class CritiqueStrategy:
    """Plays all but one of the episodes, and one more that refines the first of them under a critique.

    Critique-GRPO, Zhang et al. 2025, arXiv:2506.03106.
    """

    critic: str = OUTCOME
    """Who criticises: ``outcome`` says how the episode ended and no more; ``self``, a verifier such as ``rule`` or another
    policy, as in ``reflect_retry``."""
    reflection_tokens: int = 4096
    """Tokens that one critique may take."""

    def __post_init__(self) -> None:
        if self.critic != OUTCOME:
            check_reflector(self.critic, self.reflection_tokens)

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Refuses tasks on which the critic cannot reflect.

        Raises:
            ConfigurationError: there is one.
        """
        check_reflected_tasks(self.critic, tasks)

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> Played:
        """The episodes, the refinement last; none of a single start, or where an infrastructure failure ended the first."""
        if len(specs) == 1:
            return await play_alone(specs[0], context, 0)
        first = self._refine(specs[0], specs[-1], context)
        plain = (play_alone(specs[place], context, place) for place in range(1, len(specs) - 1))
        (base, *refined), *others = await gather_all([first, *plain])
        return [base, *_flat([others]), *refined]

    async def _refine(self, spec: EpisodeSpec, again: EpisodeSpec, context: RolloutContext) -> Played:
        """The first episode and its refinement, one after the other in one slot."""
        async with context.slot(0):
            (base,) = await _plain([spec], context, 0)
            if not base.valid:
                return [base]
            try:
                critique, tokens = await self._critique(base, again, context)
            except ConfigurationError:
                raise
            except Exception as error:
                return [base, failed_reflection(again, f"{base.id}-critique", error)]
            refined = await play_hinted(again, context, base.id, "refined", lambda _: critique)
            spent = {"reflection_tokens": tokens, "sampled_tokens": base.response_tokens + tokens}
            base = replace(base, info=base.info | {"strategy": spent})
            return [base, *refined]

    async def _critique(
        self, base: Trajectory, again: EpisodeSpec, context: RolloutContext
    ) -> tuple[str, int]:
        """What the refinement is told, and the tokens that were sampled for it."""
        ceiling, said, tokens = again.env.reward_ceiling, "", 0
        if self.critic != OUTCOME:
            critic = make_reflector(self.critic, self.reflection_tokens, context)
            found = await critic.reflect(base, ceiling, episode=f"{base.id}-critique", seed=again.seed)
            tokens = found.tokens
            if validate_report(found.report, len(base.turns)).valid:
                said = f"\nCritique: {found.guidance}" if found.guidance else ""
        return f"An earlier try:\n{episode_log(base, ceiling)}{said}\nDo better this time.", tokens


@dataclass(frozen=True, kw_only=True)
class DemonstrateStrategy:
    """Plays a group, and if all of its episodes fail, adds the expert's episode for a supervised step.

    ReLIFT, Ma et al. 2025, arXiv:2506.07527. The demonstration has the origin ``demonstration`` and is in a group of its
    own, so that it gets no credit from an estimator.
    """

    fail: float | None = None
    """Largest outcome of an episode that failed; None takes the environment's ``reward_floor``."""

    def needs_expert(self, task: Task) -> bool:
        """True: whatever is shown is what the expert does."""
        return True

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> Played:
        """The episodes, and the demonstration where it was needed and succeeds."""

        def then(rounds: list[list[Played]]) -> Round[Played] | None:
            return demonstrate if len(rounds) == 1 and is_lost(_flat(rounds), specs[0], self.fail) else None

        async def demonstrate(place: int) -> Played:
            return await play_demonstration(specs[0], context) if place == 0 else []

        return _flat(await run_rounds(context, len(specs), partial(_plain, specs, context), then))


async def _plain(specs: Sequence[EpisodeSpec], context: RolloutContext, place: int) -> Played:
    """One episode, inside its slot."""
    return [await context.run(specs[place], context.episode(place))]


def _flat(rounds: Sequence[Sequence[Played]]) -> Played:
    return [trajectory for slots in rounds for played in slots for trajectory in played]


def is_lost(played: Played, spec: EpisodeSpec, fail: float | None = None) -> bool:
    """Whether all episodes failed, those that an infrastructure failure ended left out; False where none is left.

    Args:
        played: The episodes of a group.
        spec: One of their starts.
        fail: Largest outcome of a failure; None takes the environment's ``reward_floor``. A group of partly right answers
            is then not lost, whose differences teach something already.
    """
    most = spec.env.reward_floor if fail is None else fail
    valid = [trajectory for trajectory in played if trajectory.valid]
    return bool(valid) and all(trajectory.reward <= most for trajectory in valid)


def success_count(played: Played, spec: EpisodeSpec) -> tuple[int, int]:
    """How many of the valid episodes have the full reward, and how many valid ones there are."""
    valid = [trajectory for trajectory in played if trajectory.valid]
    return sum(t.reward >= spec.env.reward_ceiling for t in valid), len(valid)


def hint_of(spec: EpisodeSpec) -> str:
    """The task's own hint, or all that the expert does before its last action; empty where that is nothing."""
    own = spec.task.data.get("hint")
    return str(own) if own else _begins(expert_actions(spec)[:-1])


def leading_hint(spec: EpisodeSpec, *, share: float) -> str:
    """The first ``share`` of the expert's actions, rounded up to whole ones."""
    actions = expert_actions(spec)
    return _begins(actions[: math.ceil(share * len(actions))])


def _begins(actions: Sequence[str]) -> str:
    return "A solution begins like this:\n" + "\n".join(actions) if actions else ""
