"""A policy learns facts by heart, so that there is something that self-search can find (and IKEA's policies can know).

What it imitates is the expert of `SelfSearch`: thought, query, what is known about it, answer.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch

from agentenv.core.chat import InlineFormat
from agentenv.core.types import Task
from agentenv.envs.self_search import SelfSearch
from agentenv.errors import ConfigurationError
from agentenv.policies.card import EpisodeCard, write_card
from agentenv.policies.hf import HFPolicy
from agentenv.trainers.demonstrations import Piece, to_tokens
from agentenv.trainers.denormals import flushed_denormals
from agentenv.trainers.supervised import Display, Lesson, drawn, fit, write_folder
from agentenv.trainers.warmstart import WarmstartConfig


@flushed_denormals()
def memorise(
    policy: HFPolicy,
    tasks: Sequence[Task],
    out: Path,
    display: Display,
    *,
    steps: int,
    episodes: int = 32,
    rate: float = 0.25,
    seed: int = 0,
) -> int:
    """Trains ``policy`` in place on what is to be known for ``tasks``, asked with the bare question, and saves it.

    Args:
        policy: Who learns.
        tasks: Questions that carry their path.
        out: Folder to write.
        display: Told of every tenth step.
        steps: Optimiser steps.
        episodes: Texts a step.
        rate: Share of the warm start's peak step sizes.
        seed: Of the order.

    Returns:
        The number of tokens seen.

    Raises:
        ConfigurationError: no tasks, or one without a path.
    """
    if not tasks or any("path" not in task.data for task in tasks):
        raise ConfigurationError("what is to be memorised are tasks that carry their path, and one at least")
    torch.manual_seed(seed)
    lessons = [to_lesson(InlineFormat(policy.tokenizer), task) for task in tasks]
    display.phase("memory", steps)
    asked = drawn(lessons, episodes, 0.0, Random(seed))
    tokens = fit(policy, asked, steps, rate, WarmstartConfig(), display)
    card = EpisodeCard(prompt="{question}", turn_tokens=128, context_tokens=policy.context_tokens)
    write_folder(policy, out, lambda part: write_card(part, card))
    return tokens


def to_lesson(chat: InlineFormat, task: Task) -> Lesson:
    """The question, and all that the expert of self-search writes, as ids; the latter are the policy's own."""
    env = SelfSearch(tasks=[task], retriever="simulated:grammar", max_turns=len(task.data["path"]))
    env.reset(seed=0, options={"task": task})
    written = "".join(env.expert() or ())
    env.close()
    return to_tokens(chat, [Piece("question", task.question), Piece("own", written)])
