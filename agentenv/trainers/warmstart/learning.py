"""How a policy learns from episodes that are shown to it: how many steps, on how many episodes each, and how large they are.

A small model, such as the one that comes with the package, learns with Muon and AdamW as it was made. A larger one, or any
with a step size of its own, is fine-tuned as language models are: AdamW moves all trained weights, the step size warms up
over a twentieth of the steps and falls along half a cosine, and a step is cut into forward passes that fit into memory.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from agentenv.errors import ConfigurationError
from agentenv.policies.hf import HFPolicy
from agentenv.progress import Display
from agentenv.trainers.learner.logprobs import checkpoint_layers
from agentenv.trainers.learner.settings import MemorySettings
from agentenv.trainers.warmstart.supervised import (
    Metrics,
    TrainingExample,
    fine_tune,
    fit,
    in_batches,
    in_micro_batches,
)

SMALL = 2**25
"""Weights of the largest model that learns as the tiny policy does unless a step size is named."""

_STEPS, _RATE = 100, 1e-5


@dataclass(frozen=True)
class LearningSettings:
    """How examples are learned.

    Raises:
        ConfigurationError: a number is out of range, or steps and epochs are both named.
    """

    steps: int | None = None
    """Optimiser steps on examples that are drawn anew for each; None makes 100 where no epochs are named."""
    epochs: int | None = None
    """How often all examples are gone through, each time in another order; None makes ``steps``."""
    batch: int = 32
    """Examples of a step."""
    rate: float | None = None
    """Peak step size of AdamW. None is 1e-5 for a large model; a small one then learns with Muon and AdamW."""
    scale: float = 0.25
    """Share of the tiny policy's peak step sizes, where a small model learns without ``rate``."""

    def __post_init__(self) -> None:
        counts = {"steps": self.steps, "epochs": self.epochs, "batch": self.batch}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise ConfigurationError(f"{name}={count} must be at least 1")
        if self.steps is not None and self.epochs is not None:
            raise ConfigurationError(
                f"steps={self.steps} and epochs={self.epochs} both say how long is learned: leave one of them out"
            )
        if self.rate is not None and not (self.rate > 0 and math.isfinite(self.rate)):
            raise ConfigurationError(f"rate={self.rate:g} must be a number above 0")

    def steps_on(self, examples: int) -> int:
        """Optimiser steps on so many examples."""
        if self.epochs is None:
            return _STEPS if self.steps is None else self.steps
        return self.epochs * math.ceil(examples / self.batch)

    def passes_over(self, examples: int) -> float:
        """How often each of so many examples is learned on average."""
        return self.epochs or self.steps_on(examples) * min(self.batch, examples) / examples

    def rate_of(self, model: Any) -> float | None:
        """The peak step size of AdamW over all trained weights of ``model``; None where it learns as the tiny policy."""
        if self.rate is not None:
            return self.rate
        return _RATE if sum(weight.numel() for weight in model.parameters()) > SMALL else None


USUAL = LearningSettings()
"""How examples are learned where nothing is said about it."""


def draws(
    examples: Sequence[TrainingExample], settings: LearningSettings, rng: Random
) -> Iterator[list[TrainingExample]]:
    """The examples of each optimiser step: without end where no epochs are named."""
    if settings.epochs is None:
        while True:
            yield rng.sample(examples, min(settings.batch, len(examples)))
    for _ in range(settings.epochs or 0):
        order = rng.sample(examples, len(examples))
        for start in range(0, len(order), settings.batch):
            yield order[start : start + settings.batch]


def learn(
    policy: HFPolicy,
    examples: Sequence[TrainingExample],
    settings: LearningSettings,
    memory: MemorySettings,
    rng: Random,
    display: Display,
) -> Metrics:
    """Teaches ``policy`` the own tokens of ``examples``.

    Args:
        policy: Whose weights move.
        examples: What is learned.
        settings: How.
        memory: Of the run; bounds a forward pass of a fine-tuned model, and says how its optimiser is kept.
        rng: Draws the examples of each step.
        display: Gets the progress.

    Returns:
        ``tokens`` that were seen, and ``passes``, how often each example was on average; of a fine-tuned model also
        ``rate``, ``batch`` and ``steps``.

    Raises:
        Diverged: the loss or the norm of a gradient is not finite.
    """
    steps, rate = settings.steps_on(len(examples)), settings.rate_of(policy.model)
    passes = settings.passes_over(len(examples))
    display.note(f"{len(examples)} examples, each learned {passes:.1f} times on average")
    drawn = draws(examples, settings, rng)
    if rate is None:
        cut = (in_batches(rows, 0.0) for rows in drawn)
        return {"tokens": fit(policy, cut, steps, settings.scale, display), "passes": passes}
    if memory.gradient_checkpointing:
        checkpoint_layers(policy.model)
    parts = (in_micro_batches(rows, memory.micro_tokens) for rows in drawn)
    tokens = fine_tune(policy, parts, steps, rate, memory, display)
    return {"tokens": tokens, "passes": passes, "rate": rate, "batch": settings.batch, "steps": steps}
