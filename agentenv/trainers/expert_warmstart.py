"""``agentenv warmstart --imitate RUN``: a policy learns to do as an environment's expert, so that it can be trained there.

It is supervised learning on what the expert does on the training tasks of a run, wherever it succeeds, spelt in the policy's
tokens and seen as the policy will see it. Few steps leave a policy that knows how to act and errs often.
"""

import time
from itertools import groupby
from pathlib import Path
from random import Random

import torch

from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.errors import ConfigurationError
from agentenv.trainers.config import TrainConfig
from agentenv.trainers.denormals import flushed_denormals
from agentenv.trainers.expert_pool import expert_episodes
from agentenv.trainers.grpo import episode_card
from agentenv.trainers.run import as_declared
from agentenv.trainers.supervised import Display, Figures, Lesson, drawn, fit, write_policy
from agentenv.trainers.warmstart import WarmstartConfig


@flushed_denormals()
def expert_warmstart(
    config: TrainConfig, display: Display, out: Path, *, steps: int, episodes: int = 32, rate: float = 0.25
) -> Figures:
    """Makes the policy, from the one that ``config`` names, and writes it to ``out``.

    Args:
        config: The run whose training tasks are shown, and whose policy, environment and budgets count.
        display: Who is told how far it is.
        out: Folder to write.
        steps: Optimiser steps.
        episodes: Episodes a step.
        rate: Share of the tiny policy's peak step sizes.

    Returns:
        The figures of its card: episodes shown, tokens seen, minutes.

    Raises:
        ConfigurationError: the environment has no expert, it succeeds nowhere, or the run cannot be configured so.
    """
    began = time.perf_counter()
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    display.phase("demonstrations", 0)
    played, policy = expert_episodes(config)
    shown = [trajectory for trajectory in played if found_its_sources(trajectory)]
    lessons = [lesson for trajectory in shown for lesson in lessons_of(trajectory)]
    if not lessons:
        raise ConfigurationError(f"the expert of {config.env.id} succeeds on no training task of this run")
    display.phase("imitation", steps)
    asked = drawn(lessons, episodes, 0.0, Random(config.seed))
    tokens = fit(policy, asked, steps, rate, WarmstartConfig(), display)
    minutes = (time.perf_counter() - began) / 60
    figures: Figures = {"demonstrations": len(shown), "tokens": tokens, "minutes": minutes}
    text = _CARD.format(config=config, steps=steps, **figures)
    write_policy(policy, figures, episode_card(as_declared(config)), text, out)
    return figures


def found_its_sources(trajectory: Trajectory) -> bool:
    """Whether an episode that searched found every document that its answer stands on, as far as the task names them.

    The expert knows the answer anyway; who imitates that learns to answer what it did not read.
    """
    searches = [
        result.data["ids"]
        for turn in trajectory.turns
        for result in turn.tool_results
        if "ids" in result.data
    ]
    found = {one for rankings in searches for ids in rankings for one in ids}
    return not searches or found.issuperset(trajectory.task.data.get("supporting_ids", ()))


def lessons_of(trajectory: Trajectory) -> list[Lesson]:
    """Each row of an episode as ids and which of them the policy is to write."""
    return [
        (
            [id for segment in row for id in segment.ids],
            [segment.kind is SegmentKind.POLICY for segment in row for _ in segment.ids],
        )
        for row in (list(segments) for _, segments in groupby(trajectory.segments, key=lambda s: s.row))
    ]


_CARD = """\
# A policy that imitated an expert

From `{config.policy}` by {steps} supervised steps on {demonstrations} episodes of the expert of `{config.env.id}`
(`agentenv warmstart --imitate`): {tokens:,} tokens in {minutes:.1f} minutes.
"""
