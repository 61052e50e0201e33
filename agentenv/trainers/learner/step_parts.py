"""What the micro-batches of a step add to it, and their metrics, which are read from the device once a step.

Shapes: M metrics of one micro-batch.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shares:
    """What a micro-batch must know of its step."""

    update: float
    """Versions by which the weights have moved since the steps on this batch began."""
    below: float
    """The denominator of the loss."""
    trained: int
    """Denominator of the metrics: trained tokens, at least 1."""


@dataclass(frozen=True)
class Counted:
    """What the metrics of a step are made of: those of one micro-batch."""

    sums: Mapping[str, Tensor]
    """Of each metric over its trained tokens, without a dimension, on the device."""
    padding: int
    """Tokens that fill strips up."""
    passed: int
    """Tokens that were fed, these included."""


@dataclass(frozen=True)
class Part:
    """What one micro-batch adds to a step."""

    counted: Counted | None
    """None where the batch does not count."""
    ratios: list[Tensor]
    gradients: Sequence[Tensor | None] | None
    """Gradients of the trained parameters, to be added to theirs; None where they have been."""
    seconds: float


def step_metrics(batches: Sequence[Counted], shares: Shares) -> dict[str, float]:
    """Sums over the micro-batches of a step: of the loss over its denominator, of other metrics over the trained tokens."""
    found: dict[str, float] = defaultdict(float)
    for batch, sums in zip(batches, _on_host([batch.sums for batch in batches]), strict=True):
        for name, value in sums.items():
            found[name] += value / (shares.below if name == "loss" else shares.trained)
        found["padding"] += batch.padding
        found["passed"] += batch.passed
    return found


def _on_host(metrics: Sequence[Mapping[str, Tensor]]) -> list[dict[str, float]]:
    """The metrics as numbers, in one transfer: each look at a number lets a card wait for the next orders."""
    every = [value.double() for one in metrics for value in one.values()]
    numbers = iter(torch.stack(every).tolist() if every else [])
    return [{name: next(numbers) for name in one} for one in metrics]
