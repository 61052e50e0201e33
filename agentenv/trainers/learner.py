"""The learner: trajectories with advantages in, one optimiser step out. It knows nothing of environments or strategies.

Shapes: B rows of one micro-batch, T tokens, N trained tokens of the micro-batch, V vocabulary. A token at position t is
predicted from position t - 1.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentenv.core.trajectory import Trajectory
from agentenv.trainers.objective import clipped_surrogate, kl_k3
from agentenv.trainers.packing import Packed, Row, micro_batches


@dataclass(frozen=True)
class Objective:
    """What is minimised."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 10.0
    temperature: float = 1.0
    """Logits are divided by it, as they were in sampling."""
    kl_coefficient: float = 0.0
    """Weight of the k3 penalty towards the reference model; 0 needs none."""
    micro_tokens: int = 8192
    """Padded tokens of one forward pass; bounds memory and changes no result but float order."""


def rows_of(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[NDArray[np.float64]],
    *,
    keep_flat: bool = False,
) -> list[Row]:
    """The rows that carry a gradient: some trained token with an advantage other than 0.

    Args:
        trajectories: Valid ones.
        advantages: float64[T] for each.
        keep_flat: Keep rows whose advantages are all 0; a penalty towards a reference acts on them too.
    """
    rows = []
    for trajectory, values in zip(trajectories, advantages, strict=True):
        for part in trajectory.row_slices:
            mask = trajectory.loss_mask[part]
            if (mask & (keep_flat | (values[part] != 0))).any():
                rows.append(
                    Row(
                        trajectory.ids[part],
                        mask,
                        trajectory.logprobs[part],
                        trajectory.context_mismatch[part],
                        values[part],
                    )
                )
    return rows


class Learner:
    """Owns the optimiser of ``model``."""

    def __init__(
        self,
        model: Any,
        objective: Objective,
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        reference: Any | None = None,
    ) -> None:
        self.model = model
        self.objective = objective
        self.max_grad_norm = max_grad_norm
        self.reference = reference
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
        self.compute_seconds = 0.0
        """Seconds spent in forward and backward passes and the optimiser so far."""

    def set_learning_rate(self, rate: float) -> None:
        """Step size of the steps to come."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def step(self, rows: Sequence[Row], *, tokens: int | None = None) -> dict[str, float]:
        """One optimiser step on the token mean of the loss.

        Args:
            rows: The rows of the whole step; micro-batches are cut from them.
            tokens: The denominator; None counts the trained tokens of ``rows``. Give the count of the whole batch to
                keep the tokens of dropped zero-advantage rows in the mean.

        Returns:
            Figures of the step: loss, grad_norm, clip_fraction, approx_kl, trained_tokens.
        """
        self.optimizer.zero_grad(set_to_none=True)
        figures = self.accumulate(rows, tokens)
        began = time.perf_counter()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.compute_seconds += time.perf_counter() - began
        return figures | {"grad_norm": norm.item()}

    def accumulate(self, rows: Sequence[Row], tokens: int | None = None) -> dict[str, float]:
        """Adds the gradient of the loss of ``rows`` to the parameters; the denominator is global over micro-batches."""
        trained = sum(int(row.mask.sum()) for row in rows)
        denominator = max(tokens if tokens is not None else trained, 1)
        sums: dict[str, float] = {"loss": 0.0, "clip_fraction": 0.0, "approx_kl": 0.0}
        for batch in micro_batches(rows, self.objective.micro_tokens):
            began = time.perf_counter()
            losses, figures = self._losses(batch)
            (losses.sum() / denominator).backward()  # type: ignore[no-untyped-call]
            sums["loss"] += losses.sum().item() / denominator
            for name, value in figures.items():
                sums[name] += value / max(trained, 1)
            self.compute_seconds += time.perf_counter() - began
        return sums | {"trained_tokens": float(trained)}

    def _losses(self, packed: Packed) -> tuple[Tensor, dict[str, float]]:
        """Loss of each trained token [N], and sums of figures over them."""
        logprobs = self._logprobs(self.model, packed)
        detached = logprobs.detach()
        old = torch.where(packed.mismatch, detached, packed.old.to(detached.dtype))
        goal = self.objective
        losses = clipped_surrogate(
            logprobs,
            old,
            packed.advantages.to(logprobs.dtype),
            clip_low=goal.clip_low,
            clip_high=goal.clip_high,
            dual_clip=goal.dual_clip,
        )
        if goal.kl_coefficient:
            with torch.no_grad():
                reference = self._logprobs(self.reference, packed)
            losses = losses + goal.kl_coefficient * kl_k3(logprobs, reference)
        with torch.no_grad():
            ratio = (detached - old).exp()
            clipped = (ratio < 1 - goal.clip_low) | (ratio > 1 + goal.clip_high)
            figures = {
                "clip_fraction": clipped.sum().item(),
                "approx_kl": (old - detached).sum().item(),
            }
        return losses, figures

    def _logprobs(self, model: Any, packed: Packed) -> Tensor:
        """Log-probs [N] of the trained tokens."""
        shared = (
            {}
            if packed.attends is None
            else {"attention_mask": packed.attends, "position_ids": packed.positions}
        )
        hidden = model.get_decoder()(input_ids=packed.ids, use_cache=False, **shared).last_hidden_state
        logits = model.get_output_embeddings()(hidden[packed.strips, packed.before])
        scores = logits if logits.dtype == torch.float64 else logits.float()
        logprobs_NV = torch.log_softmax(scores / self.objective.temperature, dim=-1)
        return logprobs_NV.gather(-1, packed.targets[:, None])[:, 0]


__all__ = ["Learner", "Objective", "Row", "rows_of"]
