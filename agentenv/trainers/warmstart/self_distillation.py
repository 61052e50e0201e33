"""``agentenv warmstart --distil RUN``: a policy learns from the best of its own episodes, which it played after examples.

ConvSearch-R1 (Zhu et al. 2025, arXiv:2505.15776) begins so. The policy that a run names is shown a few examples and plays
every training task several times; of each task the best episode is kept if it earns enough. Supervised learning then
teaches it to do the same without the examples, so that reinforcement learning starts from a policy that knows the form. No
expert and no stronger model is needed.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from agentenv.core.env_lifecycle import close_quickly, make_envs
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
from agentenv.trainers.warmstart.expert_warmstart import training_examples
from agentenv.trainers.warmstart.search_warmstart import WarmstartConfig
from agentenv.trainers.warmstart.supervised import Metrics, fit, sample_batches, write_policy


@dataclass(frozen=True)
class DistillationConfig:
    """How episodes are played, and which of them are learned.

    Raises:
        ConfigurationError: a number is out of range.
    """

    samples: int = 8
    """Episodes of each task."""
    least: float = 1.0
    """Reward that the best of them has to earn; for rewriting, 1 is the tenth place of the passage."""
    shots: str | None = None
    """Text before the first turn: examples, or how to act. None shows what the expert does on the first three tasks."""
    steps: int = 100
    """Optimiser steps."""
    episodes: int = 32
    """Episodes a step."""
    rate: float = 0.25
    """Share of the tiny policy's peak step sizes."""
    mask_redundant: bool = False
    """Whether turns that lead back to an earlier state are not learned (EvoCUA)."""

    def __post_init__(self) -> None:
        if min(self.samples, self.steps, self.episodes) < 1:
            raise ConfigurationError(
                f"samples={self.samples}, steps={self.steps} and episodes={self.episodes} must be at least 1"
            )


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
        shots = asyncio.run(expert_shots(task_env, seconds))
    kept = own_best(run, task_env, policy, tasks, shots, settings, display)
    if not kept:
        raise ConfigurationError(
            f"none of {len(tasks)} tasks of {run.name} has an episode that earns {settings.least:g}: show other examples, "
            "play more of them, or ask for less"
        )
    display.phase("imitation", settings.steps)
    examples = [
        example
        for trajectory in kept
        for example in training_examples(trajectory, mask_redundant=settings.mask_redundant)
    ]
    asked = sample_batches(examples, settings.episodes, 0.0, Random(run.seed))
    tokens = fit(policy, asked, settings.steps, settings.rate, WarmstartConfig(), display)
    metrics: Metrics = {
        "tasks": len(tasks),
        "demonstrations": len(kept),
        "reward": sum(trajectory.reward for trajectory in kept) / len(kept),
        "tokens": tokens,
        "minutes": (time.perf_counter() - began) / 60,
    }
    text = _CARD.format(policy=run.policy, env=run.env.id, steps=settings.steps, **metrics)
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
    """Of each task the best of the policy's episodes after ``shots``, without them, where it earns enough."""
    chat = make_chat_format(run.format, run.chat, policy)
    config = rollout_config(run.rollout, run.env, temperature=run.rollout.temperature)
    display.phase("own episodes", len(tasks))
    kept: list[Trajectory] = []
    for start in range(0, len(tasks), run.rollout.questions):
        some = tasks[start : start + run.rollout.questions]
        context = RolloutContext(policy, chat, config, policy.tokenizer.decode, name=f"distil-{start}")
        groups = asyncio.run(_play(task_env, some, shots, settings.samples, run.seed + start, context))
        kept += [best for played in groups if (best := best_of(played, settings.least)) is not None]
        display.advance(start + len(some), {})
    return kept


def best_of(played: Sequence[Trajectory], least: float) -> Trajectory | None:
    """The episode with the greatest reward, the first of equals; None where it does not earn ``least``."""
    valid = [trajectory for trajectory in played if trajectory.valid]
    best = max(valid, key=lambda trajectory: trajectory.reward, default=None)
    return best if best is not None and best.reward >= least else None


async def _play(
    task_env: TaskEnv, tasks: Sequence[Task], shots: str, samples: int, seed: int, context: RolloutContext
) -> list[list[Trajectory]]:
    seconds = context.config.deadline_s
    envs = await make_envs([task_env.make_env] * (len(tasks) * samples), seconds)
    try:
        groups = [
            [
                EpisodeSpec(env, task, 1000 * (seed + place) + slot, f"task-{place}", guidance=shots)
                for slot, env in enumerate(envs[place * samples : (place + 1) * samples])
            ]
            for place, task in enumerate(tasks)
        ]
        return await play_groups(groups, PlainStrategy(), context)
    finally:
        await close_quickly(envs, seconds)


async def expert_shots(task_env: TaskEnv, seconds: float) -> str:
    """What the expert does on the first tasks, as examples: the opening message of each and the action after it.

    Raises:
        ConfigurationError: there is no expert, or it needs more than one action.
    """
    shown: list[str] = []
    (env,) = await make_envs([task_env.make_env], seconds)
    try:
        for task in task_env.source.tasks[:SHOTS]:
            opening, _ = env.reset(seed=0, options={"task": task})
            actions: Sequence[Any] | None = env.expert()
            if actions is None or len(actions) != 1:
                raise ConfigurationError(
                    f"{task_env.env.id} shows no example of one action; give a file of examples with --shots"
                )
            shown.append("".join(message.text for message in opening).strip() + "\n" + str(actions[0]))
    finally:
        await close_quickly([env], seconds)
    return "Here are examples.\n\n" + "\n\n".join(shown) + "\n\nNow do the same for this one.\n"


_CARD = """\
# A policy that learned from its own episodes

From `{policy}` by {steps} supervised steps on its own best episodes in `{env}`: {demonstrations} of {tasks} tasks have
one, with a mean reward of {reward:.3f} (`agentenv warmstart --distil`): {tokens:,} tokens in {minutes:.1f} minutes.
"""
