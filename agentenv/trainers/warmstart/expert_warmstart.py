"""``agentenv warmstart --imitate RUN ...``: a policy learns to do as the experts of environments, to be trained there.

It is supervised learning on what the expert does on the training tasks of a run, wherever it succeeds, spelt in the policy's
tokens and seen as the policy will see it. Few steps leave a policy that knows how to act and errs often.
"""

import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from random import Random

import torch

from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.errors import ConfigurationError
from agentenv.progress import Display
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.credit.redundancy import redundant_in
from agentenv.trainers.grpo import episode_card
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.loop.parts import trained_policy, with_declared_scorers
from agentenv.trainers.warmstart.advised_episodes import advised_episodes
from agentenv.trainers.warmstart.expert_pool import (
    expert_attempts,
    found_its_sources,
    why_none_is_shown,
)
from agentenv.trainers.warmstart.learning import USUAL, LearningSettings, learn
from agentenv.trainers.warmstart.supervised import Metrics, TrainingExample, write_policy


@flushed_denormals()
def expert_warmstart(
    runs: Sequence[TrainConfig],
    display: Display,
    out: Path,
    *,
    learning: LearningSettings = USUAL,
    mask_redundant: bool = False,
    advisor: str = "",
) -> Metrics:
    """Makes the policy, from the one that the first run names, and writes it to ``out``.

    Args:
        runs: Whose training tasks are shown; policy, environment and budgets of the first are those of the card.
        display: Gets the progress.
        out: Folder to write.
        learning: How the episodes of all runs are learned.
        mask_redundant: Whether turns that lead back to an earlier state are not imitated (EvoCUA).
        advisor: A verifier on whose advice the expert mends failures of the policy, which is shown besides; see
            `advised_episodes`. Empty shows none.

    Returns:
        The metrics of its card: episodes shown, those after advice among them, tokens seen, minutes.

    Raises:
        ConfigurationError: an environment has no expert, one succeeds nowhere, or a run cannot be configured so.
    """
    began = time.perf_counter()
    first = runs[0]
    if advisor and (native := [run.name for run in runs if run.format == "native"]):
        raise ConfigurationError(
            f"advice is put between the turns of an episode, which format='native' of {native[0]} cannot: leave --advisor "
            "out, or take format='template'"
        )
    torch.set_num_threads(first.threads)
    torch.manual_seed(first.seed)
    display.phase("demonstrations", 0)
    policy = trained_policy(first.policy, first.lora, first.compute.precise(), seed=first.seed)
    runs = [config.model_copy(update={"policy": first.policy}) for config in runs]
    advised = [episode for config in runs for episode in advised_episodes(config, advisor)] if advisor else []
    shown = [*(episode for config in runs for episode in demonstrations(config)), *advised]
    examples = training_examples(shown, mask_redundant=mask_redundant)
    steps = learning.steps_on(len(examples))
    display.phase("imitation", steps)
    learned = learn(policy, examples, learning, first.memory, Random(first.seed), display)
    minutes = (time.perf_counter() - began) / 60
    metrics: Metrics = {"demonstrations": len(shown), **learned, "minutes": minutes}
    metrics |= {"advised": len(advised)} if advisor else {}
    names = ", ".join(f"`{config.env.id}`" for config in runs)
    text = _CARD.format_map({"policy": first.policy, "names": names, "steps": steps, **metrics})
    write_policy(policy, metrics, episode_card(with_declared_scorers(first)), text, out)
    return metrics


def demonstrations(config: TrainConfig) -> list[Trajectory]:
    """The episodes of a run's expert that are worth imitating.

    Raises:
        ConfigurationError: there is none, or no expert, or they show images.
    """
    attempts = expert_attempts(config)
    if any(segment.images for one in attempts for segment in one.trajectory.segments):
        raise ConfigurationError(
            f"the episodes of {config.env.id} show images, which are not learned by imitation: let it show texts, or train "
            "with rollout.strategy='demonstrate', which learns from its expert with the images"
        )
    shown = [one.trajectory for one in attempts if one.solved and found_its_sources(one.trajectory)]
    if not shown:
        raise ConfigurationError(
            f"no episode of the expert of {config.env.id} on the training tasks of {config.name} can be imitated: "
            f"{why_none_is_shown(attempts, config.rollout.turn_tokens)}"
        )
    return shown


def training_examples(shown: Sequence[Trajectory], *, mask_redundant: bool = False) -> list[TrainingExample]:
    """Each row of the episodes as ids and which of them the policy is to write.

    Args:
        shown: The episodes.
        mask_redundant: Whether it is not to write turns that lead back to an earlier state.
    """
    return [example for trajectory in shown for example in _rows_of(trajectory, mask_redundant)]


def _rows_of(trajectory: Trajectory, mask_redundant: bool) -> list[TrainingExample]:
    looped = redundant_in(trajectory) if mask_redundant else []
    left_out = {turn for turn, redundant in enumerate(looped) if redundant}
    return [
        (
            [id for segment in row for id in segment.ids],
            [
                segment.kind is SegmentKind.POLICY and segment.trained and segment.turn not in left_out
                for segment in row
                for _ in segment.ids
            ],
        )
        for row in (list(segments) for _, segments in groupby(trajectory.segments, key=lambda s: s.row))
    ]


_CARD = """\
# A policy that imitated an expert

From `{policy}` by {steps} supervised steps on {demonstrations} episodes of the expert of {names}
(`agentenv warmstart --imitate`): {tokens:,} tokens in {minutes:.1f} minutes. Each episode was learned {passes:.1f} times on
average.
"""
