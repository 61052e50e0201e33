"""A reader of passages from MiniLM and labelled questions, by supervised learning.

The loss of a lesson is minus the logarithm of the probability of all accepted actions together (Clark and Gardner 2018,
equation 2), among the spans of gold passages and of others.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from agentenv.core.io.files import new_folder
from agentenv.core.io.weight_digests import write_weight_digests
from agentenv.errors import Diverged
from agentenv.policies.card import EpisodeCard, write_card
from agentenv.policies.compute import process_compute
from agentenv.policies.export import write_readers, write_weights
from agentenv.policies.policy_spec import WARMSTART_RECORD
from agentenv.policies.reader import ReaderPolicy, new_reader
from agentenv.policies.reader_adapter import (
    ADAPTER,
    apply_adapter,
    low_rank_changes,
    shipped_adapter,
    write_adapter,
)
from agentenv.policies.reader_model import Choices, PassageReader
from agentenv.policies.reader_segments import EncoderInput
from agentenv.policies.reading import lowered
from agentenv.progress import Display
from agentenv.trainers.learner.clipping import clip_gradients
from agentenv.trainers.warmstart.reader_lessons import (
    Lesson,
    ReaderWarmstartConfig,
    crowded_lessons,
    endless_lessons,
)
from agentenv.trainers.warmstart.supervised import Metrics

EPISODES = EpisodeCard(k=5, max_turns=3, observation_tokens=12_000, turn_tokens=400, context_tokens=40_000)
"""The form of a reader's episodes; its tokens are bytes."""


def reader_warmstart(config: ReaderWarmstartConfig, display: Display, out: Path) -> Metrics:
    """Makes the folder ``out`` of a reader that was taught, for ``hf:OUT``.

    The folder holds the adapter beside the weights, which are those that the adapter gives to a new reader.

    Raises:
        DatasetError: a set is not there.
        Diverged: the loss is not finite; nothing is written.
    """
    torch.manual_seed(config.seed)
    policy = _untaught(config)
    base = {name: value.detach().cpu().clone() for name, value in policy.model.encoder.named_parameters()}
    metrics = fit_reader(policy, base, config, display)
    with new_folder(out) as part:
        write_adapter(policy.model, base, part / ADAPTER, config.rank)
        policy.model.encoder.load_state_dict(base)
        apply_adapter(policy.model, part / ADAPTER)
        _write(policy, metrics, config, part)
    return metrics


def shipped_reader(config: ReaderWarmstartConfig, out: Path) -> Metrics:
    """Makes the folder ``out`` of the reader that comes with the package, for ``hf:OUT``."""
    policy = _untaught(config)
    apply_adapter(policy.model, shipped_adapter())
    metrics: Metrics = {}
    with new_folder(out) as part:
        _write(policy, metrics, config, part)
    return metrics


def _untaught(config: ReaderWarmstartConfig) -> ReaderPolicy:
    return new_reader(segment_tokens=config.segment_tokens, frozen_layers=config.frozen_layers)


def _write(policy: ReaderPolicy, metrics: Metrics, config: ReaderWarmstartConfig, folder: Path) -> None:
    write_weights(policy.model, folder)
    write_weight_digests(folder)
    write_readers(policy, folder)
    write_card(folder, replace(EPISODES, k=config.k))
    (folder / WARMSTART_RECORD).write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")


def fit_reader(
    policy: ReaderPolicy, base: Mapping[str, Tensor], config: ReaderWarmstartConfig, display: Display
) -> Metrics:
    """Teaches ``policy`` lessons of all sets, first all of its weights and then changes of low rank.

    Args:
        policy: The reader.
        base: The parameters of its encoder, by their names there; what is learned is of low rank beside them.
        config: Says how many lessons.
        display: Shows the steps.

    Returns:
        ``lessons``, ``loss`` (mean of the last fifth of the steps) and ``minutes``.

    Raises:
        DatasetError: a set is not there.
        Diverged: the loss is not finite.
    """
    began = time.perf_counter()
    display.phase("preparing lessons", 0)
    rng = Random(config.seed)
    whole, narrow = (-(-count // config.batch) for count in (config.lessons, config.crowded_lessons))
    display.phase("teaching the reader", whole)
    lessons = endless_lessons(config, rng)
    losses = fit_lessons(policy, lessons, _groups(policy.model, config), config.batch, whole, display)
    with low_rank_changes(policy.model, base, config.rank):
        display.phase("teaching changes of low rank", narrow)
        lessons = crowded_lessons(config, rng)
        learned = [{"params": _learned(policy.model), "lr": config.factor_rate}]
        losses += fit_lessons(policy, lessons, learned, config.batch, narrow, display)
    policy.set_weights()
    last = losses[-max(len(losses) // 5, 1) :]
    return {
        "lessons": config.lessons + config.crowded_lessons,
        "loss": sum(last) / len(last),
        "minutes": (time.perf_counter() - began) / 60,
    }


def loss_of(choices: Choices, lesson: Lesson) -> Tensor | None:
    """Minus the log-probability of the accepted actions together; None where there is none among the choices."""
    titles = [found.title for found in lesson.known.found]
    accepted = [
        lowered(text) in lesson.accepted and (not lesson.gold or source < 0 or titles[source] in lesson.gold)
        for text, source in zip(choices.candidates.actions.tolist(), choices.sources, strict=True)
    ]
    if not any(accepted):
        return None
    logprobs = torch.log_softmax(choices.scores_C, 0)
    return -torch.logsumexp(logprobs[torch.tensor(accepted)], 0)


def fit_lessons(
    policy: ReaderPolicy,
    lessons: Iterator[Lesson],
    groups: list[dict[str, Any]],
    batch: int,
    steps: int,
    display: Display,
) -> list[float]:
    """``steps`` on the next lessons, ``batch`` in each, with warm-up and linear decay of the step sizes of ``groups``.

    Returns:
        The losses of the steps.

    Raises:
        Diverged: a loss is not finite.
    """
    model = policy.model
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.06 * steps + 1), (steps - step) / steps)
    )
    losses: list[float] = []
    for step in range(steps):
        loss = _step(model, list(islice(lessons, batch)))
        if loss is not None:
            if not torch.isfinite(loss):
                raise Diverged(f"in lesson step {step + 1} the loss is {loss.item()}: lower the step sizes")
            loss.backward()  # type: ignore[no-untyped-call]
            clip_gradients(_learned(model), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        schedule.step()
        display.advance(step + 1, {"loss": sum(losses[-20:]) / max(len(losses[-20:]), 1)})
    return losses


def _step(model: PassageReader, batch: Sequence[Lesson]) -> Tensor | None:
    """The mean loss of ``batch``; all its passages are read in batches of like length."""
    held: dict[EncoderInput, Tensor] = {}
    # The weights and their steps stay in float32; bfloat16 halves the time of the products on a processor that has it.
    with torch.autocast(model.device.type, torch.bfloat16, enabled=process_compute().rounds):
        model.read([segment for lesson in batch for segment in model.segments(lesson.known)], held)
    found = [loss_of(model.choices(lesson.known, held), lesson) for lesson in batch]
    losses = [loss for loss in found if loss is not None]
    return torch.stack(losses).mean() if losses else None


def _learned(model: PassageReader) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _groups(model: PassageReader, config: ReaderWarmstartConfig) -> list[dict[str, Any]]:
    """All parameters that are learned, with the peaks of their step sizes."""
    encoder = [p for p in model.encoder.parameters() if p.requires_grad]
    encoded = {id(p) for p in encoder}
    heads = [p for p in _learned(model) if id(p) not in encoded]
    return [{"params": encoder, "lr": config.encoder_rate}, {"params": heads, "lr": config.head_rate}]
