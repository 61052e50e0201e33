"""``agentenv warmstart --imitate RUN --arena FOLDS``: supervised learning on what is hard, with which DRIVE begins.

DRIVE (2025, arXiv:2511.06307) chooses its supervised data by arena learning: the tasks are cut into five folds, a policy
learns the first, and of each further fold those tasks are kept that the policy fails. The hard ones count twice, and three
epochs are made on what was kept. So much is published. It is this project's reading that the policy of the arena goes on
with what was kept, that a task is hard where this policy fails it at the end, and that the policy which comes out learns
from the start anew. In the paper another model answers; here the expert of the environment does.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TypeVar

import torch

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.env_lifecycle import open_envs
from agentenv.core.rollout import EpisodeSpec
from agentenv.core.trajectory import Trajectory
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
from agentenv.trainers.warmstart.expert_warmstart import demonstrations, training_examples
from agentenv.trainers.warmstart.learning import LearningSettings, learn
from agentenv.trainers.warmstart.supervised import Metrics, write_policy

T = TypeVar("T")


@dataclass(frozen=True)
class ArenaConfig:
    """How tasks are chosen, and how they are learned.

    Raises:
        ConfigurationError: a number is out of range.
    """

    folds: int = 5
    """Parts that the tasks are cut into."""
    mask_redundant: bool = False
    """Whether turns that lead back to an earlier state are not learned (EvoCUA)."""
    learning: LearningSettings = field(default=LearningSettings(epochs=3))
    """How what is kept is learned, in epochs; a step is on 512 episodes in the paper."""

    def __post_init__(self) -> None:
        if self.folds < 2 or self.learning.epochs is None:
            raise ConfigurationError(
                f"an arena needs folds of at least 2, not {self.folds}, and to know how many epochs are learned"
            )


def folds_of(items: Sequence[T], count: int, rng: Random) -> list[list[T]]:
    """``items``, shuffled, in ``count`` parts of nearly equal size."""
    shuffled = rng.sample(items, len(items))
    edges = [len(shuffled) * place // count for place in range(count + 1)]
    return [shuffled[a:b] for a, b in pairwise(edges)]


def arena(
    folds: Sequence[Sequence[T]],
    learn: Callable[[Sequence[T]], None],
    failed: Callable[[Sequence[T]], Sequence[T]],
) -> tuple[list[T], list[T]]:
    """What is kept of all folds, and which of that is hard.

    Args:
        folds: The first is kept as a whole.
        learn: Lets the policy of the arena learn what was kept last.
        failed: Those of some items that this policy fails now.
    """
    kept = list(folds[0])
    learn(kept)
    for fold in folds[1:]:
        added = list(failed(fold))
        kept += added
        if added:
            learn(added)
    return kept, list(failed(kept))


@flushed_denormals()
def arena_warmstart(run: TrainConfig, settings: ArenaConfig, display: Display, out: Path) -> Metrics:
    """Makes the policy, from the one that ``run`` names, and writes it to ``out``.

    Returns:
        The metrics of its card: episodes of the expert, how many of them were kept and were hard, tokens seen at the end,
        minutes.

    Raises:
        ConfigurationError: the environment has no expert, it succeeds on fewer tasks than there are folds, or the run
            cannot be configured so.
    """
    began = time.perf_counter()
    run = with_declared_scorers(run)
    torch.set_num_threads(run.threads)
    torch.manual_seed(run.seed)
    display.phase("demonstrations", 0)
    taught = demonstrations(run)
    if len(taught) < settings.folds:
        raise ConfigurationError(
            f"the expert succeeds on {len(taught)} tasks of {run.name}, too few for {settings.folds} folds"
        )
    challenger = _start(run)
    task_env = open_questions(run.train, run.search, run.env, challenger)
    rng = Random(run.seed)
    display.phase("arena", settings.folds)

    def learn(some: Sequence[Trajectory]) -> None:
        _learn(run, challenger, some, settings, rng, display)

    def failed(some: Sequence[Trajectory]) -> list[Trajectory]:
        return failures(run, task_env, challenger, some)

    kept, hard = arena(folds_of(taught, settings.folds, rng), learn, failed)
    display.phase("imitation", settings.learning.epochs or 0)
    policy = _start(run)
    learned = _learn(run, policy, [*kept, *hard], settings, rng, display)
    metrics: Metrics = {
        "demonstrations": len(taught),
        "kept": len(kept),
        "hard": len(hard),
        **learned,
        "minutes": (time.perf_counter() - began) / 60,
    }
    text = _CARD.format(
        policy=run.policy, env=run.env.id, folds=settings.folds, epochs=settings.learning.epochs, **metrics
    )
    write_policy(policy, metrics, episode_card(run), text, out)
    return metrics


def _start(run: TrainConfig) -> HFPolicy:
    return trained_policy(run.policy, run.lora, run.compute.precise(), seed=run.seed)


def _learn(
    run: TrainConfig,
    policy: HFPolicy,
    taught: Sequence[Trajectory],
    settings: ArenaConfig,
    rng: Random,
    display: Display,
) -> Metrics:
    """All epochs on ``taught``; the metrics of `learn`."""
    examples = training_examples(taught, mask_redundant=settings.mask_redundant)
    return learn(policy, examples, settings.learning, run.memory, rng, display)


def failures(
    run: TrainConfig, task_env: TaskEnv, policy: HFPolicy, taught: Sequence[Trajectory]
) -> list[Trajectory]:
    """The episodes of ``taught`` whose tasks the policy does not solve when it decides greedily.

    An episode that fails through the environment says nothing of the policy: what was to be checked is kept, since one
    episode too many does less harm than one too few.
    """
    chat = make_chat_format(run.format, run.chat, policy)
    config = rollout_config(run.rollout, run.env, temperature=0.0)
    context = RolloutContext(policy, chat, config, policy.tokenizer.decode, name="arena")
    size, left = run.rollout.questions * run.rollout.group_size, []
    for start in range(0, len(taught), size):
        some = taught[start : start + size]
        played = run_to_completion(_play(task_env, some, context))
        left += [
            one
            for one, (episode,) in zip(some, played, strict=True)
            if not episode.valid or episode.reward < one.reward
        ]
    return left


async def _play(
    task_env: TaskEnv, taught: Sequence[Trajectory], context: RolloutContext
) -> list[list[Trajectory]]:
    async with open_envs([task_env.make_env] * len(taught), context.config.deadline_s) as envs:
        groups = [
            [EpisodeSpec(env, one.task, seed=place, group_id=f"task-{place}")]
            for place, (env, one) in enumerate(zip(envs, taught, strict=True))
        ]
        return await play_groups(groups, PlainStrategy(), context)


_CARD = """\
# A policy that imitated an expert where it was hard

From `{policy}` by {epochs} epochs on {kept} of {demonstrations} episodes of the expert of `{env}`, which an arena of
{folds} folds chose; {hard} of them are hard and count twice (`agentenv warmstart --imitate ... --arena {folds}`): {tokens:,}
tokens in {minutes:.1f} minutes.
"""
