"""``agentenv warmstart --distil RUN``: a policy learns from the best of its own episodes, which it played after examples.

ConvSearch-R1 (Zhu et al. 2025, arXiv:2505.15776) begins so. The policy that a run names is shown a few examples and plays
every training task several times; of each task the best episode is kept if it earns enough. Supervised learning then
teaches it to do the same without the examples, so that reinforcement learning starts from a policy that knows the form. No
expert and no stronger model is needed.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import torch

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.env_lifecycle import open_envs
from agentenv.core.rollout import EpisodeSpec
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.evaluation.task_env import TaskEnv
from agentenv.policies.hf import HFPolicy
from agentenv.progress import Display
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import episode_card
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.loop.parts import (
    make_chat_format,
    open_questions,
    rollout_config,
    trained_policy,
    with_declared_scorers,
)
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import PlainStrategy, play_groups
from agentenv.trainers.task_sampling.tiered import TieredBudget, enough_at
from agentenv.trainers.warmstart.expert_warmstart import training_examples
from agentenv.trainers.warmstart.learning import USUAL, LearningSettings, learn
from agentenv.trainers.warmstart.supervised import Metrics, write_policy


@dataclass(frozen=True)
class DistillationConfig:
    """How episodes are played, and which of them are learned.

    Raises:
        ConfigurationError: a number is out of range.
    """

    samples: int = 8
    """Episodes of each task, where there are no tiers."""
    least: float = 1.0
    """Reward that the best of them has to earn; for rewriting, 1 is the tenth place of the passage."""
    shots: str | None = None
    """Text before the first turn: examples, or how to act. None shows what the expert does on the first three tasks."""
    mask_redundant: bool = False
    """Whether turns that lead back to an earlier state are not learned (EvoCUA)."""
    learning: LearningSettings = USUAL
    """How they are learned."""
    tiers: tuple[int, ...] = ()
    """Episodes of a task after each tier, rising: a further tier is played where the task is solved too rarely (EvoCUA)."""
    thresholds: tuple[float, ...] = ()
    """Share of solved episodes after each tier but the last from which no further one is played."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigurationError(f"samples={self.samples} must be at least 1")
        if self.tiers:
            TieredBudget(tiers=self.tiers, thresholds=self.thresholds)  # refuses what are no tiers
        elif self.thresholds:
            raise ConfigurationError(f"thresholds={self.thresholds} are of no tiers: name the tiers as well")


SHOTS = 3


@flushed_denormals()
def self_distillation(run: TrainConfig, settings: DistillationConfig, display: Display, out: Path) -> Metrics:
    """Makes the policy, from the one that ``run`` names, and writes it to ``out``.

    Returns:
        The metrics of its card: tasks, tasks with an episode that was learned, their mean reward, tokens, minutes.

    Raises:
        ConfigurationError: no episode earns enough, the environment has no examples, or the run cannot be configured so.
    """
    began = time.perf_counter()
    run = with_declared_scorers(run)
    torch.set_num_threads(run.threads)
    torch.manual_seed(run.seed)
    display.phase("questions", 0)
    policy = trained_policy(run.policy, run.lora, run.compute.precise(), seed=run.seed)
    task_env = open_questions(run.train, run.search, run.env, policy)
    tasks = list(task_env.source.tasks)
    shots = settings.shots
    if shots is None:
        tasks = tasks[SHOTS:]
        seconds = rollout_config(run.rollout, run.env, temperature=0.0).deadline_s
        shots = run_to_completion(expert_shots(task_env, seconds))
    kept = own_best(run, task_env, policy, tasks, shots, settings, display)
    if not kept:
        raise ConfigurationError(
            f"none of {len(tasks)} tasks of {run.name} has an episode that earns {settings.least:g}: show other examples, "
            "play more of them, or ask for less"
        )
    examples = training_examples(kept, mask_redundant=settings.mask_redundant)
    steps = settings.learning.steps_on(len(examples))
    display.phase("imitation", steps)
    learned = learn(policy, examples, settings.learning, run.memory, Random(run.seed), display)
    metrics: Metrics = {
        "tasks": len(tasks),
        "demonstrations": len(kept),
        "reward": sum(trajectory.reward for trajectory in kept) / len(kept),
        **learned,
        "minutes": (time.perf_counter() - began) / 60,
    }
    text = _CARD.format_map({"policy": run.policy, "env": run.env.id, "steps": steps, **metrics})
    write_policy(policy, metrics, episode_card(run), text, out)
    return metrics


def own_best(
    run: TrainConfig,
    task_env: TaskEnv,
    policy: HFPolicy,
    tasks: Sequence[Task],
    shots: str,
    settings: DistillationConfig,
    display: Display,
) -> list[Trajectory]:
    """The best of the policy's episodes of each task after ``shots``, recorded without these, where it earns enough."""
    chat = make_chat_format(run.format, run.chat, policy)
    config = rollout_config(run.rollout, run.env, temperature=run.rollout.temperature)
    display.phase("own episodes", len(tasks))
    kept: list[Trajectory] = []
    for start in range(0, len(tasks), run.rollout.questions):
        some = tasks[start : start + run.rollout.questions]
        context = RolloutContext(policy, chat, config, policy.tokenizer.decode, name=f"distil-{start}")
        play = partial(_play_tier, task_env, some, shots, run.seed + start, context)
        groups = in_tiers(len(some), settings, play)
        kept += [best for played in groups if (best := best_of(played, settings.least)) is not None]
        display.advance(start + len(some), {})
    return kept


def in_tiers(
    tasks: int,
    settings: DistillationConfig,
    play: Callable[[Sequence[int], range, int], Sequence[Sequence[Trajectory]]],
) -> list[list[Trajectory]]:
    """The episodes of each of so many tasks, in tiers where there are some.

    The dynamic budget K* of EvoCUA's rejection sampling, Xue et al. 2026, arXiv:2601.15876.

    Args:
        tasks: How many.
        settings: Tiers, thresholds, and the reward of an episode that counts as solved.
        play: Plays the tasks at some places, with the numbers of the episodes, in the tier of a number.
    """
    groups: list[list[Trajectory]] = [[] for _ in range(tasks)]
    tiers = settings.tiers or (settings.samples,)
    left = list(range(tasks))
    for tier, (before, size) in enumerate(pairwise((0, *tiers))):
        for place, played in zip(left, play(left, range(before, size), tier), strict=True):
            groups[place] += played
        rates = {
            place: [solve_rate(groups[place][:k], settings.least) for k in tiers[: tier + 1]]
            for place in left
        }
        left = [place for place in left if enough_at(rates[place], settings.thresholds) is None]
        if not left:
            break
    return groups


def solve_rate(played: Sequence[Trajectory], least: float) -> float:
    """The share of the valid episodes that earn ``least``; 0 where there is none."""
    valid = [trajectory for trajectory in played if trajectory.valid]
    return sum(trajectory.reward >= least for trajectory in valid) / max(1, len(valid))


def best_of(played: Sequence[Trajectory], least: float) -> Trajectory | None:
    """The episode with the greatest reward, the first of equals; None where it does not earn ``least``."""
    valid = [trajectory for trajectory in played if trajectory.valid]
    best = max(valid, key=lambda trajectory: trajectory.reward, default=None)
    return best if best is not None and best.reward >= least else None


def _play_tier(
    task_env: TaskEnv,
    tasks: Sequence[Task],
    shots: str,
    seed: int,
    context: RolloutContext,
    places: Sequence[int],
    slots: range,
    tier: int,
) -> list[list[Trajectory]]:
    """The episodes with the numbers ``slots`` of the tasks at ``places``."""
    named = replace(context, name=f"{context.name}-tier-{tier}") if tier else context
    posed = [(tasks[place], seed + place, f"task-{place}") for place in places]
    return run_to_completion(_play(task_env, posed, shots, slots, named))


async def _play(
    task_env: TaskEnv,
    posed: Sequence[tuple[Task, int, str]],
    shots: str,
    slots: range,
    context: RolloutContext,
) -> list[list[Trajectory]]:
    """The episodes with the numbers ``slots`` of each task, which has a seed and the id of its group."""
    makes = [task_env.make_env] * (len(posed) * len(slots))
    async with open_envs(makes, context.config.deadline_s) as envs:
        free = iter(envs)
        groups = [
            [EpisodeSpec(next(free), task, 1000 * seed + slot, group, guidance=shots) for slot in slots]
            for task, seed, group in posed
        ]
        return await play_groups(groups, PlainStrategy(), context)


async def expert_shots(task_env: TaskEnv, seconds: float) -> str:
    """What the expert does on the first tasks, as examples: the opening message of each and the action after it.

    Raises:
        ConfigurationError: there is no expert, or it needs more than one action.
    """
    shown: list[str] = []
    async with open_envs([task_env.make_env], seconds) as (env,):
        for task in task_env.source.tasks[:SHOTS]:
            opening, _ = env.reset(seed=0, options={"task": task})
            actions: Sequence[Any] | None = env.expert()
            if actions is None or len(actions) != 1:
                raise ConfigurationError(
                    f"{task_env.env.id} shows no example of one action; give a file of examples with --shots"
                )
            shown.append("".join(message.text for message in opening).strip() + "\n" + str(actions[0]))
    return "Here are examples.\n\n" + "\n\n".join(shown) + "\n\nNow do the same for this one.\n"


_CARD = """\
# A policy that learned from its own episodes

From `{policy}` by {steps} supervised steps on its own best episodes in `{env}`: {demonstrations} of {tasks} tasks have
one, with a mean reward of {reward:.3f} (`agentenv warmstart --distil`): {tokens:,} tokens in {minutes:.1f} minutes.
"""
