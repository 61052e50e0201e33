"""A reader of passages from MiniLM and labelled questions, by supervised learning.

The loss of a lesson is minus the logarithm of the probability of all accepted actions together (Clark and Gardner 2018,
equation 2), among the spans of gold passages and of others.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from agentenv.core.io.files import new_folder
from agentenv.errors import Diverged
from agentenv.policies.card import EpisodeCard, write_card
from agentenv.policies.export import write_readers, write_weights
from agentenv.policies.reader import ReaderPolicy, new_reader
from agentenv.policies.reader_model import Choices, EncoderInput, PassageReader
from agentenv.progress import Display
from agentenv.trainers.warmstart.reader_lessons import Lesson, ReaderWarmstartConfig, curriculum
from agentenv.trainers.warmstart.supervised import METRICS, Metrics

EPISODES = EpisodeCard(k=5, max_turns=2, observation_tokens=12_000, turn_tokens=400, context_tokens=40_000)
"""The form of a reader's episodes; its tokens are bytes."""


def reader_warmstart(config: ReaderWarmstartConfig, display: Display, out: Path) -> Metrics:
    """Makes the folder ``out`` of a reader that was taught, for ``hf:OUT``.

    Raises:
        DatasetError: a set is not there.
        Diverged: the loss is not finite; nothing is written.
    """
    torch.manual_seed(config.seed)
    policy = new_reader()
    metrics = fit_reader(policy, config, display)
    with new_folder(out) as part:
        write_weights(policy.model, part)
        write_readers(policy, part)
        write_card(part, replace(EPISODES, k=config.k))
        (part / METRICS).write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
    return metrics


def fit_reader(policy: ReaderPolicy, config: ReaderWarmstartConfig, display: Display) -> Metrics:
    """Teaches ``policy`` every lesson of the sets that the configuration names.

    Returns:
        ``lessons``, ``tokens`` that were read, ``loss`` (mean of the last fifth) and ``minutes``.

    Raises:
        DatasetError: a set is not there.
        Diverged: the loss is not finite.
    """
    began = time.perf_counter()
    rng = Random(config.seed)
    display.phase("preparing lessons", 0)
    taught = curriculum(config, rng)
    steps = -(-len(taught) // config.batch)
    display.phase("teaching the reader", steps)
    losses = fit_lessons(policy, taught, config, steps, display)
    last = losses[-max(len(losses) // 5, 1) :]
    return {
        "lessons": len(taught),
        "tokens": sum(len(s.ids) for lesson in taught for s in policy.model.segments(lesson.known)),
        "loss": sum(last) / len(last),
        "minutes": (time.perf_counter() - began) / 60,
    }


def loss_of(choices: Choices, lesson: Lesson) -> Tensor | None:
    """Minus the log-probability of the accepted actions together; None where there is none among the choices."""
    titles = [found.title for found in lesson.known.found]
    accepted = [
        text.lower() in lesson.accepted and (not lesson.gold or source < 0 or titles[source] in lesson.gold)
        for text, source in zip(choices.candidates.actions.tolist(), choices.sources, strict=True)
    ]
    if not any(accepted):
        return None
    logprobs = torch.log_softmax(choices.scores_C, 0)
    return -torch.logsumexp(logprobs[torch.tensor(accepted)], 0)


def fit_lessons(
    policy: ReaderPolicy,
    taught: Sequence[Lesson],
    config: ReaderWarmstartConfig,
    steps: int,
    display: Display,
) -> list[float]:
    """One pass over the lessons with warm-up and linear decay; the losses of the steps.

    Raises:
        Diverged: a loss is not finite.
    """
    model = policy.model
    optimizer = torch.optim.AdamW(_groups(model, config), betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.06 * steps + 1), (steps - step) / steps)
    )
    losses: list[float] = []
    for step in range(steps):
        batch = taught[step * config.batch : (step + 1) * config.batch]
        loss = _step(model, batch)
        if loss is not None:
            if not torch.isfinite(loss):
                raise Diverged(f"in lesson step {step + 1} the loss is {loss.item()}: lower the step sizes")
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        schedule.step()
        display.advance(step + 1, {"loss": sum(losses[-20:]) / max(len(losses[-20:]), 1)})
    policy.set_weights()
    return losses


def _step(model: PassageReader, batch: Sequence[Lesson]) -> Tensor | None:
    """The mean loss of ``batch``; all its passages are read in batches of like length."""
    held: dict[EncoderInput, Tensor] = {}
    model.read([segment for lesson in batch for segment in model.segments(lesson.known)], held)
    found = [loss_of(model.choices(lesson.known, held), lesson) for lesson in batch]
    losses = [loss for loss in found if loss is not None]
    return torch.stack(losses).mean() if losses else None


def _groups(model: PassageReader, config: ReaderWarmstartConfig) -> list[dict[str, object]]:
    encoder = [p for p in model.encoder.parameters() if p.requires_grad]
    heads = [*model.spans.parameters(), *model.page.parameters(), model.stage]
    return [{"params": encoder, "lr": config.encoder_rate}, {"params": heads, "lr": config.head_rate}]
