"""The rollout strategies by name: from the starts of one task to the trajectories of its group.

A strategy is a frozen data class whose fields are its options, with one coroutine ``play``. The number of starts is the
group's budget; the group that comes back may be larger or smaller. The learner knows nothing of strategies: what it must
know stands in the trajectories (lineage, ``context_mismatch``, ``trained``). ``docs/rollouts.md`` says what each one does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.env import Env
from agentenv.core.options import bind_options, load_part, made_part
from agentenv.core.rollout import EpisodeSpec
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.strategies.hinted_episodes import play_hinted
from agentenv.trainers.strategies.prefixes import play_from
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.step_verifiers import ChecksTasks


class RolloutStrategy(Protocol):
    """Makes the group of one task."""

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """The group of one task.

        Args:
            specs: Its n starts: equal task and group id, each with an environment and a seed of its own. Whoever made
                them closes their environments; forks of them are the strategy's to close.
            context: Policy, chat format, budgets and the n slots of the group.

        Returns:
            The trajectories that credit is assigned over, with ids of their own. Those of another group id are groups of
            their own.

        Raises:
            ConfigurationError: the task cannot be posed or rendered, or the environment cannot do what the strategy needs.
        """


@dataclass(frozen=True, kw_only=True)
class PlainStrategy:
    """Plays every episode of the group once, independently of the others.

    GRPO, Shao et al. 2024, arXiv:2402.03300.
    """

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """One trajectory for each start, in their order; none where guidance leaves no room for a turn."""
        slots = await gather_all(self._episode(place, spec, context) for place, spec in enumerate(specs))
        return [trajectory for played in slots for trajectory in played]

    async def _episode(self, place: int, spec: EpisodeSpec, context: RolloutContext) -> list[Trajectory]:
        episode = context.episode(place)
        async with context.slot(place):
            if spec.prefix is not None:
                return [await play_from(spec, context, episode)]
            if spec.guidance:
                return await play_hinted(spec, context, episode, "seeded", lambda _: spec.guidance)
            return [await context.run(spec, episode)]


STRATEGIES: Mapping[str, str] = {
    "plain": "agentenv.trainers.strategies.strategies:PlainStrategy",
    "rollback": "agentenv.trainers.strategies.rollback:RollbackStrategy",
    "tree": "agentenv.trainers.strategies.tree:TreeStrategy",
    "tree_decode": "agentenv.trainers.strategies.tree_decode:TreeDecodeStrategy",
    "vm_mcts": "agentenv.trainers.strategies.value_search:ValueSearchStrategy",
    "judge": "agentenv.trainers.strategies.judge_action:JudgeStrategy",
    "self_search": "agentenv.trainers.strategies.self_search:SelfSearchStrategy",
    "paraphrase": "agentenv.trainers.strategies.paraphrases:ParaphraseStrategy",
    "reflect_retry": "agentenv.trainers.strategies.retry:ReflectRetryStrategy",
    "critical_step": "agentenv.trainers.strategies.critical_step:CriticalStepStrategy",
    "guide": "agentenv.trainers.strategies.guided_strategies:GuideStrategy",
    "adaptive_hint": "agentenv.trainers.strategies.guided_strategies:AdaptiveHintStrategy",
    "critique": "agentenv.trainers.strategies.guided_strategies:CritiqueStrategy",
    "demonstrate": "agentenv.trainers.strategies.guided_strategies:DemonstrateStrategy",
    "self_play": "agentenv.trainers.selfplay.strategy:SelfPlayStrategy",
}
_KIND = "rollout strategy"

IN_CONTEXT = (
    "plain",
    "tree",
    "tree_decode",
    "vm_mcts",
    "self_search",
    "paraphrase",
    "demonstrate",
    "self_play",
    "critical_step",
)
"""Strategies whose trained tokens all stand in the context that they were sampled in; of others that is not known."""

NATIVE = ("plain", "tree", "tree_decode", "vm_mcts", "demonstrate")
"""Strategies that play in the chat format ``native``: they put nothing between the turns of an episode."""

ONE_EACH = ("plain", "rollback", "judge", "self_search", "paraphrase", "tree_decode", "vm_mcts")
"""Strategies that give one trajectory for each start, whatever the others do, and so can play an evaluation."""

KEPT = ("judge", "self_search")
"""Strategies without which a policy that was trained with one of them plays episodes of another form: it writes verdicts
that nobody heeds, or queries of which nobody tells how certain they were. An evaluation of such a policy keeps them."""


def get_strategy(name: str, options: Mapping[str, Any] | None = None) -> RolloutStrategy:
    """The strategy registered under ``name``, or of the class ``module:Class``, with ``options`` filled in.

    Raises:
        UnknownName: no such strategy, or no such option of it.
        ConfigurationError: an option's value is of another type or out of range, or a class of that name is no strategy.
    """
    strategy: Callable[..., RolloutStrategy] = load_part(_KIND, name, STRATEGIES)
    return made_part(_KIND, name, bind_options(_KIND, name, strategy, options or {}), ("play",))


def evaluation_conflict(name: str, options: Mapping[str, Any]) -> str:
    """Why no evaluation plays the strategy ``name``, as a sentence; empty where one may.

    Raises:
        UnknownName: no such strategy, or no such option of it.
        ConfigurationError: a wrong value of an option.
    """
    strategy = get_strategy(name, options)
    if name in STRATEGIES and name not in ONE_EACH:
        return (
            f"the strategy {name!r} makes a group of trajectories, and an evaluation is one for each question: take one "
            f"of {', '.join(ONE_EACH)}"
        )
    if getattr(strategy, "reads_rewards", False):
        return (
            f"the strategy {name!r} with {dict(options)} keeps an episode by its reward, which an evaluation must not look "
            "at: take another strategy, or a value model"
        )
    return ""


@runtime_checkable
class ShowsExpert(Protocol):
    """A strategy that shows the policy what the expert of an environment does."""

    def needs_expert(self, task: Task) -> bool:
        """Whether it asks the expert when ``task`` is failed."""


def check_tasks(strategy: RolloutStrategy, tasks: Sequence[Task]) -> None:
    """Refuses tasks that ``strategy`` cannot play, before a run begins.

    Raises:
        ConfigurationError: there is one.
    """
    if isinstance(strategy, ChecksTasks):
        strategy.check_tasks(tasks)


def check_expert(strategy: RolloutStrategy, env: type[Env[Any]], tasks: Sequence[Task]) -> None:
    """Refuses an environment that declares no expert where ``strategy`` shows what one does, before a run begins.

    Raises:
        ConfigurationError: it declares none.
    """
    if isinstance(strategy, ShowsExpert) and env.expert is Env.expert:
        for task in tasks:
            if strategy.needs_expert(
                task
            ):  # the first failed group would end the run otherwise, however late
                raise ConfigurationError(
                    f"{type(strategy).__name__} shows what the expert does, and {env.__name__} has none for task "
                    f"{task.id!r}: {env.no_expert}"
                )


async def play_groups(
    groups: Sequence[Sequence[EpisodeSpec]], strategy: RolloutStrategy, context: RolloutContext
) -> list[list[Trajectory]]:
    """The groups of one step, played concurrently under one deterministic batcher; in the order of ``groups``.

    Raises:
        ConfigurationError: what a strategy raises for one of its groups.
    """
    deterministic_batcher = DeterministicBatcher() if context.config.deterministic else None
    firsts = accumulate((len(specs) for specs in groups), initial=context.first)
    contexts = (
        replace(context, first=first, deterministic_batcher=deterministic_batcher) for first in firsts
    )
    return await gather_all(strategy.play(specs, own) for specs, own in zip(groups, contexts, strict=False))


def by_group(played: Iterable[Trajectory]) -> list[list[Trajectory]]:
    """The trajectories of each group id, groups and members in the order in which they come."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in played:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return list(groups.values())


__all__ = [
    "IN_CONTEXT",
    "KEPT",
    "NATIVE",
    "ONE_EACH",
    "STRATEGIES",
    "PlainStrategy",
    "RolloutContext",
    "RolloutStrategy",
    "by_group",
    "check_expert",
    "check_tasks",
    "evaluation_conflict",
    "get_strategy",
    "play_groups",
]
