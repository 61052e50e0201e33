"""The learner: trajectories with advantages in, one optimiser step out. It knows nothing of environments or strategies.

Shapes: B rows of one micro-batch, T tokens, N trained tokens of the micro-batch, V vocabulary. A token at position t is
predicted from position t - 1.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentenv.errors import ConfigurationError, Diverged
from agentenv.policies.attention import for_any_shape
from agentenv.policies.forward import autocast
from agentenv.policies.fused_decoder import fused_decoder
from agentenv.policies.lora import load_weights, trained_state, without_adapters
from agentenv.policies.side_by_side import MOST_PARTS, parts_at_once, side_by_side
from agentenv.policies.vision import PixelReader
from agentenv.trainers.learner.clipping import clip_gradients
from agentenv.trainers.learner.logprobs import layout_of, token_logprobs
from agentenv.trainers.learner.losses import (
    Tokens,
    asymmetric_penalty,
    denominator,
    get_objective,
    kl_penalty,
    mastered_tokens,
    token_weights,
)
from agentenv.trainers.learner.objective import Objective
from agentenv.trainers.learner.off_policy import (
    effective_sample_ratio,
    importance_weights,
    interpolated,
    learning_rate_scale,
    log_weights,
    off_context_weights,
    rejected,
)
from agentenv.trainers.learner.offloading import offloaded_activations
from agentenv.trainers.learner.optimizers import make_optimizer
from agentenv.trainers.learner.packing import Packed, TrainingRow, micro_batches, rows_of
from agentenv.trainers.learner.step_parts import Counted, Part, Shares, step_metrics


class Learner:
    """Trains ``model`` with its own optimiser. A model with adapters may be its own reference, which leaves them out."""

    def __init__(
        self,
        model: Any,
        objective: Objective,
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        reference: Any | None = None,
        optimizer: Any | None = None,
        image_reader: PixelReader | None = None,
    ) -> None:
        """Settings that ``objective`` leaves open (None) are resolved as for a sampler that computes as the learner does.

        Args:
            model: What is trained.
            objective: What is minimised, and with which memory.
            learning_rate: Step size.
            weight_decay: Decoupled weight decay.
            max_grad_norm: The gradient is scaled down to this norm.
            reference: The model that penalties compare with.
            optimizer: Moves the weights; None makes one as the section ``memory`` says.
            image_reader: Of the images that the model reads; None where it reads text alone.

        Raises:
            ConfigurationError: a correction compares the sampler's log-probs with themselves.
            UnknownName: no such objective, or no such option of it.
            MissingExtra: bitsandbytes is not installed, and an optimizer in 8 bits is asked for.
        """
        self.model = model
        self.objective = objective.resolved(mismatch=False)
        if self.objective.correction.weighs and self.objective.proximal == "sampler":
            raise ConfigurationError(
                "a correction compares the sampler's log-probs with the learner's own: set proximal to 'recompute' or "
                "'interpolate', not 'sampler'"
            )
        self.max_grad_norm = max_grad_norm
        self.reference = reference
        self.image_reader = image_reader
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer: Any = optimizer or make_optimizer(
            self._trained, objective, learning_rate=learning_rate, weight_decay=weight_decay
        )
        self.compute_seconds = 0.0
        """Seconds spent in forward and backward passes and the optimiser so far."""
        self._surrogate = get_objective(objective.objective, objective.surrogate_options)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def weights(self) -> Mapping[str, Tensor]:
        """What is trained, whole tensors by name."""
        return trained_state(self.model)

    def optimizer_state(self) -> dict[str, Any]:
        """The state of the optimiser, which ``load`` takes."""
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def load(self, weights: Mapping[str, Tensor], optimizer_state: Mapping[str, Any]) -> list[str]:
        """Takes over weights and the optimiser's state.

        Returns:
            Names that are missing or unexpected among the weights.

        Raises:
            RuntimeError: a weight is of another shape.
            ValueError: the optimiser's state is of other parameters.
        """
        odd = load_weights(self.model, weights)
        self.optimizer.load_state_dict(dict(optimizer_state))
        return odd

    def set_learning_rate(self, rate: float) -> None:
        """Step size of the steps to come."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def reads_proximal(self, rows: Sequence[TrainingRow]) -> bool:
        """Whether a loss of ``rows`` reads what ``with_proximal`` computes, which costs a forward pass."""
        if self.objective.proximal == "recompute":
            return True
        # Tokens of another context have no other log-probs, unless their recorded ones are asked for.
        replaces = self.objective.correction.off_context != "ratio"
        return replaces and any(bool((row.mismatch & row.mask).any()) for row in rows)

    def with_proximal(self, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
        """The rows with log-probs of the present weights, for several steps on one batch."""
        return self._scored(rows, self.model)

    def with_log_ratios(self, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
        """The rows with log pi - log ref of their trained tokens in place of ``proximal``.

        Raises:
            ConfigurationError: there is no reference.
        """
        if self.reference is None:
            raise ConfigurationError("log-probs are compared with a reference, and this learner has none")
        ours = self._scored(rows, self.model)
        with without_adapters(self.reference):
            theirs = self._scored(rows, self.reference)
        return [
            replace(mine, proximal=mine.proximal - its.proximal)
            for mine, its in zip(ours, theirs, strict=True)
            if mine.proximal is not None and its.proximal is not None
        ]

    def _scored(self, rows: Sequence[TrainingRow], model: Any) -> list[TrainingRow]:
        """The rows with log-probs of ``model``."""
        began = time.perf_counter()
        batches = list(self._micro_batches(rows))

        def score(dealt: tuple[Packed, bool]) -> NDArray[Any] | None:
            batch, counts = dealt
            with torch.no_grad(), self._precision():
                logprobs = self._logprobs(model, batch.to(self.device))[0].cpu().numpy()
            return logprobs if counts else None

        scores = side_by_side(score, self._dealt(batches), self.batches_at_once)
        with self._kernels(rows), closing(scores) as every:
            found = [logprobs for logprobs in every if logprobs is not None]
        scored = []
        for batch, logprobs in zip(batches, self._in_turn(found), strict=True):
            cuts = np.cumsum([len(row.trained) for row in batch.members])[:-1]
            parts = zip(batch.members, np.split(logprobs, cuts), strict=True)
            scored += [replace(row, proximal=part) for row, part in parts]
        self.compute_seconds += time.perf_counter() - began
        return scored

    def measure(self, rows: Sequence[TrainingRow]) -> tuple[float, float]:
        """Importance weight and gradient norm of the trajectory that ``rows`` are of; the gradients are dropped.

        The weight is exp(sum (log p - recorded log p)) over its trained tokens, the norm that of the gradient of sum log p
        (VCPO). Tokens of another context have weight 1.
        """
        began = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        logs = 0.0
        for batch in (packed.to(self.device) for packed in self._micro_batches(rows)):
            with self._precision(), self._kept(), for_any_shape(self.device):
                logprobs = self._logprobs(self.model, batch)[0]
            if logprobs.requires_grad:
                logprobs.sum().backward()  # type: ignore[no-untyped-call]
            detached = logprobs.detach()
            logs += log_weights(detached, batch.old.to(detached.dtype), batch.mismatch).sum().item()
        squares = [p.grad.double().square().sum() for p in self.model.parameters() if p.grad is not None]
        norms = torch.stack(squares).tolist() if squares else []
        self.optimizer.zero_grad(set_to_none=True)
        self.compute_seconds += time.perf_counter() - began
        return math.exp(min(max(logs, -20.0), 20.0)), math.sqrt(sum(norms))

    def step(
        self,
        rows: Sequence[TrainingRow],
        *,
        tokens: int | None = None,
        sequences: int | None = None,
        update: float = 0.0,
    ) -> dict[str, float]:
        """One optimiser step.

        Args:
            rows: The rows of the whole step; micro-batches are cut from them.
            tokens: Trained tokens of the step; None counts those of ``rows``. Give the count of the whole batch to
                keep the tokens of dropped zero-advantage rows in the mean.
            sequences: Trajectories of the step; None counts ``rows``. Likewise.
            update: Versions by which the weights have moved since the steps on this batch began: k / n after k of n steps.

        Returns:
            Metrics of the step: loss, grad_norm, clip_fraction, approx_kl, trained_tokens, padding_share (of the tokens that
            forward passes read), and those of the correction and of the terms that are on. ``reference_kl`` is the mean of
            the penalty's estimates, ``ace_penalty`` what ACE takes from the credit of a token on the mean.

        Raises:
            Diverged: a log-prob, the loss or the norm of the gradient is not finite; the weights stay as they are.
        """
        self.optimizer.zero_grad(set_to_none=True)
        metrics = self.accumulate(rows, tokens, sequences, update=update)
        began = time.perf_counter()
        found: Any = clip_gradients(self.model.parameters(), self.max_grad_norm)
        norm: float = (found.full_tensor() if hasattr(found, "full_tensor") else found).item()
        if not math.isfinite(norm):
            raise Diverged(f"the norm of the gradient is {norm}")
        how = self.objective.correction
        base = how.ess_base
        scale = (
            1.0
            if base is None
            else learning_rate_scale(metrics["effective_sample"], base=base, rule=how.ess_rule)
        )
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.set_learning_rate(rates[0] * scale)
        self.optimizer.step()
        self.set_learning_rate(rates[0])
        self.compute_seconds += time.perf_counter() - began
        return metrics | {"grad_norm": norm}

    def accumulate(
        self,
        rows: Sequence[TrainingRow],
        tokens: int | None = None,
        sequences: int | None = None,
        *,
        update: float = 0.0,
    ) -> dict[str, float]:
        """Adds the gradient of the loss of ``rows`` to the parameters; the denominator is global over micro-batches.

        Raises:
            Diverged: a log-prob or the loss is not finite; in every process, whichever had it.
        """
        goal = self.objective
        trained = sum(int(row.mask.sum()) for row in rows)
        below = denominator(
            goal.averaging,
            tokens=trained if tokens is None else tokens,
            sequences=len(rows) if sequences is None else sequences,
            length=goal.length,
        )
        empty = dict.fromkeys(("loss", "clip_fraction", "approx_kl", "padding", "passed", "not_finite"), 0.0)
        sums: dict[str, float] = dict(empty)
        ratios: list[Tensor] = []
        counted: list[Counted] = []
        shares = Shares(update, below, max(trained, 1))
        at_once = self.batches_at_once

        def part(dealt: tuple[Packed, bool]) -> Part:
            return self._part(*dealt, shares, apart=at_once > 1)

        parts = side_by_side(part, self._dealt(self._micro_batches(rows)), at_once)
        with self._kernels(rows), closing(parts):
            for found in parts:
                began = time.perf_counter()
                self._add(found.gradients)
                ratios += found.ratios
                counted += [found.counted] if found.counted else []
                self.compute_seconds += found.seconds / at_once + time.perf_counter() - began
        began = time.perf_counter()
        sums |= step_metrics(counted, shares)
        self.compute_seconds += time.perf_counter() - began
        sums, ratios = self._together(sums, ratios)
        if sums.pop("not_finite"):
            raise Diverged("the model's log-probs of trained tokens are not finite")
        if not math.isfinite(sums["loss"]):
            raise Diverged(f"the loss is {sums['loss']}")
        if goal.correction.ess_base is not None:
            sums["effective_sample"] = effective_sample_ratio(torch.cat(ratios) if ratios else torch.empty(0))
        share = sums.pop("padding") / max(sums.pop("passed"), 1.0)
        return dict(sums) | {"trained_tokens": float(trained), "padding_share": share}

    def _part(self, batch: Packed, counts: bool, shares: Shares, *, apart: bool) -> Part:
        """What one micro-batch adds to a step; its gradients are kept where they come ``apart``, and else added."""
        began = time.perf_counter()
        batch = batch.to(self.device)
        ratios: list[Tensor] = []
        with self._precision(), self._kept():
            losses, metrics = self._losses(batch, shares.update, ratios)
        weights = token_weights(self.objective.averaging, batch.sequence_tokens.to(losses.dtype))
        loss = (losses if weights is None else losses * weights).sum()
        goal = loss / shares.below if counts else loss * 0.0
        gradients = None
        if not goal.requires_grad:
            pass  # text alone was read, and of the weights those of a vision tower alone learn
        elif apart:
            gradients = self._gradients(goal)
        else:
            goal.backward()  # type: ignore[no-untyped-call]
        counted = None
        if counts:  # read when the whole step has been asked for
            metrics["loss"] = loss.detach()
            counted = Counted(metrics, batch.padding, batch.ids.numel())
        return Part(counted, ratios if counts else [], gradients, time.perf_counter() - began)

    def _gradients(self, goal: Tensor) -> list[Tensor | None]:
        """The gradients of the trained parameters; None for frozen ones, and for those that the goal does not depend on."""
        moved = [parameter for parameter in self._trained if parameter.requires_grad]
        found = iter(torch.autograd.grad(goal, moved, allow_unused=True))
        return [next(found) if parameter.requires_grad else None for parameter in self._trained]

    def _add(self, gradients: Sequence[Tensor | None] | None) -> None:
        """Adds what ``_part`` kept apart to the gradients of the trained parameters, as ``backward`` does."""
        for parameter, gradient in zip(self._trained, gradients or [None] * len(self._trained), strict=True):
            if gradient is not None and parameter.grad is not None:
                parameter.grad.add_(gradient)
            elif gradient is not None:
                parameter.grad = gradient

    @property
    def batches_at_once(self) -> int:
        """Micro-batches that are computed at once: one for each of torch's threads where several may be, four at most."""
        return parts_at_once() if self._several_at_once else 1

    @property
    def _several_at_once(self) -> bool:
        """Whether the fused pass reads micro-batches, whose operations are too short for several threads.

        Not where a hook watches the gradients that are added, because only ``backward`` calls hooks.
        """
        watched = any(parameter._post_accumulate_grad_hooks for parameter in self._trained)
        alone = self.image_reader is not None or self.objective.offload_activations or watched
        models = [model for model in (self.model, self.reference) if model is not None]
        return not alone and all(fused_decoder(model) is not None for model in models)

    def _precision(self) -> torch.autocast:
        return autocast(self.device, enabled=self.objective.precision == "bfloat16")

    def _micro_batches(self, rows: Sequence[TrainingRow]) -> Iterable[Packed]:
        goal = self.objective
        # Not the present number of threads: what a run computes must not depend on it.
        multiple = MOST_PARTS if self._several_at_once else 1
        return micro_batches(rows, goal.micro_tokens, goal.padding, layout_of(self.model, rows), multiple)

    def _kernels(self, rows: Sequence[TrainingRow]) -> AbstractContextManager[None]:
        """Where rows have many lengths, micro-batches hardly ever have one shape twice, and no kernel is prepared for it."""
        alike = len({len(row.ids) for row in rows}) <= 1
        return nullcontext() if alike else for_any_shape(self.device)

    def _kept(self) -> AbstractContextManager[None]:
        return offloaded_activations() if self.objective.offload_activations else nullcontext()

    def _dealt(self, batches: Iterable[Packed]) -> Iterable[tuple[Packed, bool]]:
        """The batches of this process, and whether each counts."""
        return ((batch, True) for batch in batches)

    def _in_turn(self, found: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """What all processes found for the batches that ``_dealt`` gave them, in the order of the batches."""
        return found

    def _together(
        self, sums: dict[str, float], ratios: list[Tensor]
    ) -> tuple[dict[str, float], list[Tensor]]:
        """Metrics and ratios of all processes."""
        return sums, ratios

    def _losses(
        self, packed: Packed, update: float, ratios: list[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of each trained token [N], and sums of metrics over them; ``ratios`` gets each row's weight."""
        goal = self.objective
        masks = goal.mastered_probability is not None
        logprobs, entropy = self._logprobs(self.model, packed, entropy=goal.entropy_coefficient > 0 or masks)
        detached = logprobs.detach()
        proximal = self._proximal(packed, detached, update)
        advantages = given = packed.advantages.to(logprobs.dtype)
        reference = None
        if goal.compares_tokens:
            with torch.no_grad(), without_adapters(self.reference):
                reference = self._logprobs(self.reference, packed)[0]
        if goal.ace_alpha and reference is not None:
            how: dict[str, Any] = {"alpha": goal.ace_alpha, "cap": goal.ace_cap, "scale": goal.ace_scale}
            advantages = asymmetric_penalty(advantages, logprobs, reference, packed.rows, **how)
        tokens = Tokens(
            logprobs, proximal, advantages, packed.rows, packed.mismatch, clip_margin=packed.clip_margin
        )
        losses, clipped = self._surrogate(tokens)
        metrics = {
            "clip_fraction": clipped.sum(),
            "approx_kl": (proximal - detached).sum(),
            "not_finite": (~detached.isfinite()).sum(),  # a bounded ratio would hide an infinite one
        }
        if goal.ace_alpha:
            metrics["ace_penalty"] = (given - advantages).sum().detach()
        if goal.mastered_probability is not None and entropy is not None:
            limits = {"probability": goal.mastered_probability, "entropy": goal.mastered_entropy}
            mastered = mastered_tokens(logprobs, entropy, advantages, packed.rows, **limits)
            losses = losses * ~mastered
            metrics["mastered_share"] = mastered.sum()
        if goal.correction.weighs or goal.correction.off_context == "weight":
            weights = self._weights(packed, proximal, ratios)
            losses = losses * weights
            metrics["behaviour_weight"] = weights.sum()
        if goal.kl_coefficient and reference is not None:
            distance = kl_penalty(logprobs, reference, goal.kl, tokens.ratio)
            losses = losses + goal.kl_coefficient * distance
            metrics["reference_kl"] = distance.sum().detach()
        if entropy is not None:
            losses = losses - goal.entropy_coefficient * entropy
            metrics["policy_entropy"] = entropy.sum().detach()
        return losses, metrics

    def _proximal(self, packed: Packed, detached: Tensor, update: float) -> Tensor:
        """Log-probs [N] that ratios are formed with; recorded ones of another context only where that is asked for."""
        own = detached if packed.proximal is None else packed.proximal.to(detached.dtype)
        recorded = packed.old.to(detached.dtype)
        usual = own if self.objective.proximal == "recompute" else recorded
        if self.objective.proximal == "interpolate":
            usual = interpolated(recorded, detached, packed.age, update)
        return torch.where(
            packed.mismatch, recorded if self.objective.correction.off_context == "ratio" else own, usual
        )

    def _weights(self, packed: Packed, proximal: Tensor, ratios: list[Tensor]) -> Tensor:
        """What each token's loss is multiplied by [N]."""
        how, behaviour = self.objective.correction, packed.old.to(proximal.dtype)
        weights = torch.ones_like(proximal)
        if how.off_context == "weight":
            weights = off_context_weights(proximal, behaviour, packed.mismatch, cap=how.high)
        elif how.weighs and (foreign := sum(int((row.mismatch & row.mask).sum()) for row in packed.members)):
            raise ConfigurationError(
                f"{foreign} trained tokens were sampled under another context than they stand in, and a "
                "correction would compare their log-probs: set correction.off_context to 'rescore' or 'weight'"
            )
        logs = log_weights(proximal, behaviour, packed.mismatch)
        if how.mode in ("truncate", "mask"):
            weights = weights * importance_weights(
                logs, packed.rows, level=how.level, mode=how.mode, low=how.low, high=how.high
            )
        if how.reject_above is not None:
            refused = rejected(
                logs, packed.rows, divergence=how.divergence, reduce=how.reduce, cap=how.reject_above
            )
            weights = weights * ~refused
        sums = logs.new_zeros(len(packed.members)).index_add(0, packed.rows, logs)
        ratios.append(sums.clamp(-20.0, 20.0).exp())
        return weights

    def _logprobs(self, model: Any, packed: Packed, *, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        return token_logprobs(
            model, packed, self.objective.temperature, entropy=entropy, image_reader=self.image_reader
        )


__all__ = [
    "Learner",
    "Objective",
    "TrainingRow",
    "rows_of",
]
