"""Supervised learning of small policies: examples in batches, steps with Muon and AdamW, the folder that comes out.

Matrices are trained by Muon (Jordan et al. 2024), the rest by AdamW: copying then begins after 0.8 M tokens, where AdamW
alone had not begun after 3 M.

Shapes: B episodes, T tokens.
"""

import copy
import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from agentenv.core.io.files import new_folder
from agentenv.core.io.weight_digests import write_weight_digests
from agentenv.errors import Diverged
from agentenv.policies.card import EpisodeCard, write_card
from agentenv.policies.compute import multiplies_bfloat16
from agentenv.policies.forward import autocast, logits_at
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import write_model
from agentenv.policies.policy_spec import WARMSTART_RECORD
from agentenv.policies.soundness import refuse_diverged
from agentenv.progress import Display
from agentenv.trainers.learner.clipping import clip_gradients
from agentenv.trainers.learner.optimizers import make_optimizer
from agentenv.trainers.learner.schedules import learning_rate_share
from agentenv.trainers.learner.settings import MemorySettings
from agentenv.trainers.warmstart.muon import Muon

Batch = tuple[Tensor, Tensor]
TrainingExample = tuple[list[int], list[bool]]
"""Token ids, and which of them are the model's own."""
Metrics = dict[str, Any]

_CHUNKS = 3
_MATRIX_RATE = 0.02
"""Peak step size of Muon, for the matrices of the layers."""
_VECTOR_RATE = 3e-3
"""Peak step size of AdamW, for embeddings, norms and biases."""


def in_batches(examples: Sequence[TrainingExample], page_weight: float) -> list[Batch]:
    """One optimiser step, cut by length into ``_CHUNKS`` batches so that little is padded."""
    rows = sorted(examples, key=lambda row: len(row[0]))
    size = -(-len(rows) // _CHUNKS)
    return [_pad(rows[i : i + size], page_weight) for i in range(0, len(rows), size)]


def sample_batches(
    examples: Sequence[TrainingExample], episodes: int, page_weight: float, rng: Random
) -> Iterator[list[Batch]]:
    """Optimiser steps without end, each on ``episodes`` examples drawn anew, or on all where there are fewer."""
    while True:
        yield in_batches(rng.sample(examples, min(episodes, len(examples))), page_weight)


def in_micro_batches(examples: Sequence[TrainingExample], most: int) -> list[Batch]:
    """One optimiser step, cut by length into parts of at most ``most`` padded tokens each.

    A longer row is a part of its own. Tokens that are not the model's own weigh nothing.
    """
    parts: list[list[TrainingExample]] = [[]]
    for row in sorted(examples, key=lambda row: len(row[0])):
        if parts[-1] and len(row[0]) * (len(parts[-1]) + 1) > most:
            parts.append([])
        parts[-1].append(row)
    return [_pad(part, 0.0) for part in parts]


def _pad(rows: Sequence[TrainingExample], page_weight: float) -> Batch:
    """Ids [B, T] and loss weights [B, T]; the first token of a row, which nothing predicts, weighs 0."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.stack([pad(torch.tensor(i), (0, width - len(i))) for i, _ in rows])
    weights = torch.stack(
        [pad(torch.where(torch.tensor(own), 1.0, page_weight), (0, width - len(own))) for _, own in rows]
    )
    weights[:, 0] = 0
    return ids, weights


def fit(
    policy: HFPolicy,
    examples: Iterator[list[Batch]],
    steps: int,
    scale: float,
    display: Display,
) -> int:
    """Supervised steps of Muon and AdamW with warm-up and cosine decay; returns the number of tokens seen.

    Args:
        policy: Whose weights move.
        examples: The batches of each step.
        steps: How many are made.
        scale: Share of the usual peak step sizes.
        display: Gets the progress.

    Raises:
        Diverged: the loss or the norm of a gradient is not finite; the weights are those before that step.
    """
    optimizers = [(optimizer, peak * scale) for optimizer, peak in _optimizers(policy.model)]
    return _take_steps(policy, examples, steps, optimizers, _schedule, display)


def fine_tune(
    policy: HFPolicy,
    examples: Iterator[list[Batch]],
    steps: int,
    rate: float,
    memory: MemorySettings,
    display: Display,
) -> int:
    """Supervised steps of AdamW on all trained weights, at a peak step size of ``rate``; returns the number of tokens seen.

    The step size warms up over a twentieth of the steps, then falls to nothing along half a cosine, as that of
    HybridDeepSearcher does (Ko et al. 2025, arXiv:2508.19113).

    Raises:
        Diverged: as `fit`.
        MissingExtra: bitsandbytes is not installed, and ``memory`` asks for 8 bits.
    """
    trained = [weight for weight in policy.model.parameters() if weight.requires_grad]
    optimizer = make_optimizer(trained, memory, learning_rate=rate, weight_decay=0.0)

    def share(step: int, steps: int) -> float:
        warmup = math.ceil(steps / 20)
        return learning_rate_share(step + 1, steps=steps, warmup=warmup, schedule="cosine")

    return _take_steps(policy, examples, steps, [(optimizer, rate)], share, display)


def _take_steps(
    policy: HFPolicy,
    examples: Iterator[list[Batch]],
    steps: int,
    optimizers: Sequence[tuple[Any, float]],
    share: Callable[[int, int], float],
    display: Display,
) -> int:
    """Steps of ``optimizers``, each with its peak step size, of which ``share`` says how much is taken in a step of all."""
    model = policy.model.train()
    seen = 0
    for step, chunks in enumerate(islice(examples, steps)):
        for optimizer, peak in optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = peak * share(step, steps)
        chunks = [(ids.to(model.device), weights.to(model.device)) for ids, weights in chunks]
        total = sum(weights.sum() for _, weights in chunks)
        loss = sum(_weighted_loss(model, ids, weights, total) for ids, weights in chunks)
        norm = clip_gradients(model.parameters(), 1.0)
        if not math.isfinite(loss) or not math.isfinite(norm.item()):
            raise Diverged(
                f"in supervised step {step + 1} the loss is {loss} and the norm of the gradient {norm.item()}: nothing is "
                "written; lower the step sizes"
            )
        for optimizer, _ in optimizers:
            optimizer.step()
        seen += sum(int((weights > 0).sum()) for _, weights in chunks)
        if step % 10 == 9:
            display.advance(step + 1, {"loss": loss})
    model.eval()
    policy.set_weights()
    return seen


def _optimizers(model: Any) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the matrices of the layers and AdamW for everything else, each with its peak step size."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
    muon: torch.optim.Optimizer
    if multiplies_bfloat16(str(model.device)):
        muon = torch.optim.Muon(matrices, lr=_MATRIX_RATE, weight_decay=0.0)
    else:
        muon = Muon(matrices, lr=_MATRIX_RATE)
    adam = torch.optim.AdamW(rest, lr=_VECTOR_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    return [(muon, _MATRIX_RATE), (adam, _VECTOR_RATE)]


def _weighted_loss(model: Any, ids: Tensor, weights: Tensor, total: Tensor | int) -> float:
    """Adds the gradient of the weighted cross-entropy over ``total`` and returns its value.

    Only positions that weigh something are turned into logits. Products are in bfloat16 where the device has them.
    """
    counted = weights[:, 1:] > 0
    own = ids.device.type not in ("cpu", "cuda") or multiplies_bfloat16(str(ids.device))
    with autocast(ids.device, enabled=own):
        logits = logits_at(model, ids, *counted.nonzero(as_tuple=True), use_cache=False)
    losses = cross_entropy(logits.float(), ids[:, 1:][counted], reduction="none")
    loss = (losses * weights[:, 1:][counted]).sum() / total
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def _schedule(step: int, steps: int, warmup: int = 50) -> float:
    """Linear warm-up, then cosine decay to a twentieth."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


def write_policy(policy: HFPolicy, metrics: Metrics, episodes: EpisodeCard, card: str, out: Path) -> None:
    """Writes the folder of a policy that plays episodes of the form ``episodes``."""

    def cards(part: Path) -> None:
        write_card(part, episodes)
        (part / "README.md").write_text(card, encoding="utf-8")
        (part / WARMSTART_RECORD).write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")

    write_folder(policy, out, cards)


def write_folder(policy: HFPolicy, out: Path, cards: Callable[[Path], None]) -> None:
    """Writes model (bfloat16), tokenizer and whatever ``cards`` adds to the folder, which appears when it is complete.

    Raises:
        Diverged: the weights, or the logits that they give, are not finite.
    """
    held = copy.deepcopy(policy.model).to(torch.bfloat16)
    refuse_diverged(held, "the trained weights, of which nothing is written,")
    with new_folder(out) as part:
        write_model(held, part)
        write_weight_digests(part)
        policy.tokenizer.save_pretrained(part)
        cards(part)
