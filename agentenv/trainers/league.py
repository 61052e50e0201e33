"""A league: past versions of the policy are kept, and every version's questions are put to every version as solver.

One version poses once; all solvers get the same accepted questions, so a row compares solvers on equal terms and a column
shows how the questions grew harder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.env_lifecycle import open_envs
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.evaluation.runner import play
from agentenv.evaluation.task_env import TaskEnv
from agentenv.policies.policy_spec import make_policy
from agentenv.trainers.loop.parts import rollout_config
from agentenv.trainers.loop.run import Run
from agentenv.trainers.selfplay.game_state import outcomes
from agentenv.trainers.selfplay.strategy import SelfPlayStrategy
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups


@dataclass(frozen=True)
class Version:
    """One set of weights."""

    name: str
    policy: Policy
    chat: ChatFormat
    decode: Callable[[Sequence[int]], str]
    """Text of a run of its token ids."""


@dataclass(frozen=True)
class League:
    """Which version solved whose questions.

    Attributes:
        versions: names, in order.
        questions: how many of each version's were accepted.
        solved: share of the questions of the row's version that the column's version solved; None where there are none or
            every episode met an infrastructure failure.
    """

    versions: tuple[str, ...]
    questions: tuple[int, ...]
    solved: tuple[tuple[float | None, ...], ...]

    def as_json(self) -> dict[str, Any]:
        """The league as plain values for ``results.json``."""
        return {
            "versions": list(self.versions),
            "questions": list(self.questions),
            "solved": [list(row) for row in self.solved],
        }


def play_league(
    versions: Sequence[Version],
    task_env: TaskEnv,
    strategy: SelfPlayStrategy,
    config: RolloutConfig,
    *,
    games: int,
    seed: int,
) -> League:
    """Every version poses ``games`` questions about the same topics; every version answers those that are accepted.

    Args:
        versions: The weights that take part.
        task_env: Topics, corpus and environment.
        strategy: How questions are accepted.
        config: Budgets; proposers sample as it says, solvers are greedy.
        games: Topics, the first ones.
        seed: Seeds the episodes.
    """
    asked = [
        play_proposers(version, task_env, strategy, config, games=games, seed=seed) for version in versions
    ]
    rows = [
        tuple(_play_solver(version, task_env, tasks, config, seed) for version in versions) for tasks in asked
    ]
    return League(tuple(version.name for version in versions), tuple(map(len, asked)), tuple(rows))


def play_proposers(
    version: Version,
    task_env: TaskEnv,
    strategy: SelfPlayStrategy,
    config: RolloutConfig,
    *,
    games: int,
    seed: int,
) -> list[Task]:
    """The questions of ``version`` that pass every check, one game a topic."""
    slots = strategy.votes
    topics = task_env.source.tasks[:games]
    context = RolloutContext(
        version.policy, version.chat, config, version.decode, name=f"league-{version.name}"
    )

    async def games_of() -> list[list[Trajectory]]:
        async with open_envs([task_env.make_env] * (slots * len(topics)), config.deadline_s) as envs:
            starts = [
                [
                    EpisodeSpec(envs[place], topic, seed + place, f"game-{number}")
                    for place in range(slots * number, slots * (number + 1))
                ]
                for number, topic in enumerate(topics)
            ]
            return await play_groups(starts, strategy, context)

    played = run_to_completion(games_of())
    return [outcome["task"] for outcome in outcomes(played) if outcome["admitted"]]


def _play_solver(
    version: Version, task_env: TaskEnv, tasks: Sequence[Task], config: RolloutConfig, seed: int
) -> float | None:
    greedy = config.model_copy(update={"temperature": 0.0})
    played = play(
        version.policy, version.chat, task_env.make_env, tasks, greedy, seed=seed, name=version.name
    )
    valid = [trajectory for trajectory in played if trajectory.valid]
    return sum(bool(t.info.get("success")) for t in valid) / len(valid) if valid else None


def league_of(run: Run) -> League:
    """The league of a training run: the policy that it started from, and every version that it has kept.

    Raises:
        ConfigurationError: the run plays no game.
    """
    settings = run.config.rollout
    strategy = get_strategy(settings.strategy, settings.strategy_options)
    if not isinstance(strategy, SelfPlayStrategy):
        raise ConfigurationError(f"a league needs rollout.strategy = 'self_play', not {settings.strategy!r}")
    folders = {"start": run.config.policy} | {path.name: f"hf:{path}" for path in run.folder.versions()}
    run.display.phase("league", len(folders))
    versions = []
    for name, spec in folders.items():
        policy = make_policy(spec, run.config.compute)
        versions.append(Version(name, policy, run.chat, policy.tokenizer.decode))
    config = rollout_config(settings, run.config.env, temperature=settings.temperature)
    games = run.config.league.games
    return play_league(versions, run.own.train, strategy, config, games=games, seed=run.config.seed)
