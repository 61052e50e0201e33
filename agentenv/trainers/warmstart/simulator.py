"""``agentenv simulator train``: a language model learns to play the search engine, from pages of a real one.

It is asked in four lines (mode, question, answer, query) and imitates the page that belongs to the mode. The steps are those
of the warm start, whose tiny policy can copy names that it has never seen and is therefore a good place to begin.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from agentenv.core.chat import InlineFormat
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError
from agentenv.policies.hf import HFPolicy
from agentenv.progress import Display
from agentenv.retrievers.simulation.simulated import SimulationConfig
from agentenv.retrievers.simulation.simulation_data import Example, Page, measure_quality
from agentenv.retrievers.simulation.simulators import FORM_FILE, LocalSimulator, SamplingOptions, ask
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.warmstart.supervised import Batch, fit, in_batches, write_folder

HELD_OUT = 100
"""Most examples that are kept for the quality report; a tenth of them where there are few."""


@dataclass(frozen=True)
class SimulatorConfig:
    """How a simulator is fine-tuned."""

    seed: int = 0
    """Seeds the order of the examples."""
    steps: int = 400
    """Optimiser steps."""
    episodes: int = 32
    """Examples an optimiser step, each in one of its two modes."""
    rate: float = 0.25
    """Share of the warm start's peak step sizes; large models want a hundredth of that."""
    held_out: int = HELD_OUT
    """Examples at the end that are kept for the quality report, a tenth of all at most."""


@flushed_denormals()
def train_simulator(
    policy: HFPolicy, examples: Sequence[Example], config: SimulatorConfig, display: Display, out: Path
) -> dict[str, Any]:
    """Fine-tunes ``policy`` in place and writes it to ``out``, with its form and metrics in ``simulator.json``.

    Args:
        policy: Where it begins.
        examples: What it imitates.
        config: Dials.
        display: Told of every tenth step.
        out: Folder to write.

    Returns:
        ``tokens``, ``steps``, ``examples`` and the quality on examples that were held out.

    Raises:
        ConfigurationError: fewer than ten examples, or one that does not fit the model's context.
    """
    held = min(config.held_out, len(examples) // 10)
    if not held:
        raise ConfigurationError(
            f"{len(examples)} examples are too few to train on and to test with; give 10 or more."
        )
    train_examples, tests = examples[:-held], examples[-held:]
    torch.manual_seed(config.seed)
    display.phase("simulator", config.steps)
    tokens = fit(policy, _batches(policy, train_examples, config), config.steps, config.rate, display)
    display.phase("quality", 0)
    draw = SamplingOptions(SimulationConfig().tokens, temperature=0.0)
    simulator = LocalSimulator(policy, draw, "compact", "trained")
    metrics = {"tokens": tokens, "steps": config.steps, "examples": len(train_examples)}
    metrics |= measure_quality(simulator, tests, train_examples)
    _save(policy, metrics, out)
    return metrics


def _batches(policy: HFPolicy, examples: Sequence[Example], config: SimulatorConfig) -> Iterator[list[Batch]]:
    """Endless steps over the examples in fresh orders, useful and noisy by turns."""
    chat, rng = InlineFormat(policy.tokenizer), Random(config.seed)
    stock: list[tuple[Example, bool]] = []
    while True:
        while len(stock) < config.episodes:
            more = [(example, useful) for example in examples for useful in (True, False)]
            rng.shuffle(more)
            stock += more
        taken, stock = stock[: config.episodes], stock[config.episodes :]
        yield in_batches(
            [to_training_example(policy, chat, example, useful=useful) for example, useful in taken], 0.0
        )


def to_training_example(
    policy: HFPolicy, chat: InlineFormat, example: Example, *, useful: bool
) -> tuple[list[int], list[bool]]:
    """Token ids of one example in one mode, and which of them are the simulator's own.

    Raises:
        ConfigurationError: they do not fit the model's context.
    """
    prompt = chat.prompt((Message("user", ask(example.brief(useful=useful), "compact")),))
    page = policy.tokenizer.encode(
        as_text(example.useful if useful else example.noisy), add_special_tokens=False
    )
    ids = [*prompt, *page, policy.tokenizer.eos_token_id]
    if len(ids) > policy.context_tokens:
        raise ConfigurationError(
            f"the page for {example.query[:40]!r} takes {len(ids)} tokens and the model reads {policy.context_tokens}"
        )
    return ids, [False] * len(prompt) + [True] * (len(ids) - len(prompt))


def as_text(page: Page) -> str:
    """A page as a simulator writes it."""
    return "\n".join(f"Doc {n}(Title: {title}) {text}" for n, (title, text) in enumerate(page, start=1))


def _save(policy: HFPolicy, metrics: dict[str, Any], out: Path) -> None:
    def card(part: Path) -> None:
        text = json.dumps({"form": "compact"} | metrics, indent=1) + "\n"
        (part / FORM_FILE).write_text(text, encoding="utf-8")

    write_folder(policy, out, card)
