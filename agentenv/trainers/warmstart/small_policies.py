"""What the warm starts of small policies share: a model and a tokenizer of their own, imitating demonstrations."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch

from agentenv.core.chat import InlineFormat
from agentenv.policies.compute import process_compute
from agentenv.policies.hf import HFPolicy
from agentenv.policies.loading import moved
from agentenv.policies.tiny import build_model, build_tokenizer
from agentenv.progress import Display
from agentenv.trainers.warmstart.demonstrations import Piece, to_tokens
from agentenv.trainers.warmstart.supervised import TrainingExample, fit, sample_batches

_PAGE_WEIGHT = 0.05
"""Loss weight of what the policy reads against 1 for what it writes."""


@dataclass(frozen=True)
class SmallPolicyConfig:
    """How a small policy is made from nothing."""

    seed: int = 0
    """Seeds the weights, the tasks and the demonstrators."""
    tasks: int = 1200
    """Demonstrated tasks of the training split; they are gone through again and again."""
    steps: int = 900
    """Optimiser steps."""
    episodes: int = 32
    """Demonstrations an optimiser step."""
    layers: int = 3
    """Layers of the model."""
    heads: int = 3
    """Heads of 32 a layer."""
    judged: int = 100
    """Tasks of the dev split on which it is judged at the end."""


def untrained_policy(texts: Sequence[str], tags: Sequence[str], config: SmallPolicyConfig) -> HFPolicy:
    """A policy with random weights and a tokenizer of its own.

    Args:
        texts: What the tokenizer is learned from.
        tags: Names of tags that are one token each.
        config: Sizes and the seed.
    """
    torch.manual_seed(config.seed)
    tokenizer = build_tokenizer(texts, tags)
    model = build_model(tokenizer, layers=config.layers, heads=config.heads, inner=256)
    return HFPolicy(moved(model, process_compute().resolved().device), tokenizer)


def imitating_policy(
    demos: Sequence[list[Piece]], tags: Sequence[str], config: SmallPolicyConfig, display: Display
) -> tuple[HFPolicy, int]:
    """A policy that has imitated ``demos``, and the number of tokens that it has seen; arguments as below."""
    texts = ["\n".join(["user", *(piece.text for piece in demo), "assistant"]) for demo in demos]
    policy = untrained_policy(texts, tags, config)
    chat = InlineFormat(policy.tokenizer)
    display.phase("imitation", config.steps)
    return policy, imitate(policy, [to_tokens(chat, demo) for demo in demos], config.steps, config, display)


def imitate(
    policy: HFPolicy,
    examples: Sequence[TrainingExample],
    steps: int,
    config: SmallPolicyConfig,
    display: Display,
    *,
    rate: float = 1.0,
) -> int:
    """Supervised steps on demonstrations, gone through again and again; returns the number of tokens seen.

    Args:
        policy: The policy that learns.
        examples: What is shown.
        steps: Optimiser steps.
        config: Examples of a step and the seed.
        display: Gets the progress.
        rate: Share of the peak step sizes.
    """
    batches = sample_batches(examples, config.episodes, _PAGE_WEIGHT, Random(config.seed + 1))
    return fit(policy, batches, steps, rate, display)
