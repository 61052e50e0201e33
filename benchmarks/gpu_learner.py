"""The sections of ``gpu.py`` about the learner: its speed on rows of one length, and with each attention."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from gpu_models import (
    Figures,
    Plan,
    attention_of,
    describe_card,
    ids_of,
    measured,
    peak_memory,
    random_weights,
    seconds_of,
    training_row,
)
from model_flops import ModelShape, training_flops

RANK = 16
STEP_TOKENS = 32_768
MICRO_TOKENS = (32_768, 16_384, 8_192)
SMALL_CARD = 16.0 * 2**30


def training(plan: Plan) -> Figures:
    """Tokens a second and utilisation of the learner, for each size, kind of training and context.

    Short rows are measured with compiled layers too, and QLoRA of the largest model once more where it may take 16 GiB. With
    the tiny shapes only the smallest model is compiled, because a compiler on a CPU takes longer than all else.
    """
    short, long = (64, 128) if plan.tiny else (2048, 16384)
    usual = attention_of(plan, "auto")
    cells = [
        Setup(size, shape, kind, context, usual, memory=memory_of(plan))
        for size, shape in plan.shapes.items()
        for kind in ("full", "lora", "qlora")
        for context in (short, long)
    ]
    first, last = cells[0].size, cells[-1].size
    cells.append(replace(cells[0], size=last, shape=plan.shapes[last], kind="qlora", memory=SMALL_CARD))
    cells += [
        replace(cell, compiled=True)
        for kind in ("full", "lora")  # adapters last: they take a minute and more to compile
        for cell in cells
        if (cell.kind, cell.context, cell.memory) == (kind, short, memory_of(plan))
        and (cell.size == first or not plan.tiny)
    ]
    return measured(plan, {cell.name: partial(training_cell, plan, cell) for cell in cells})


def attention(plan: Plan) -> Figures:
    """Tokens a second of the learner with each attention, on rows of four kinds.

    Rows of one length; rows whose lengths are drawn anew for each step, as those of a run are; and groups of eight rows with
    one first half, which some layouts read once. Rows of a run are measured with compiled layers as well.
    """
    short, long = (64, 128) if plan.tiny else (2048, 16384)
    kinds = {"rows of one length": (short, 1, False), "long rows": (long, 1, False)}
    kinds |= {"rows of any length": (short, 1, True), "groups of eight": (short // 2, 8, False)}
    compiled = ("rows of any length",)
    cells: dict[str, Callable[[], Figures]] = {
        f"{kind}, {name}{', compiled' * way}": partial(attention_cell, plan, kind, *kinds[name], way)
        for kind in ("sdpa", "varlen", "flex", "flash_attention_2", "flash_attention_3")
        for way in (False, True)
        for name in (compiled if way else kinds)
        if not way or (kind == "varlen" and not plan.tiny)
    }
    return measured(plan, cells)


def training_cell(plan: Plan, setup: "Setup") -> Figures:
    """Steps of the learner on rows of one length, the second half of each trained.

    Such rows need no padding and stand side by side; what other lengths cost is a matter of ``attention``.
    """
    context, shape = setup.context, setup.shape
    row_count = (256 if plan.tiny else STEP_TOKENS) // context
    rows = [training_row(ids_of(seed, context, shape.vocabulary), context // 2) for seed in range(row_count)]
    return {
        **steps(plan, setup, lambda: rows),
        "micro_tokens": setup.micro_tokens,
        "gradient_checkpointing": setup.checkpointed,
    }


def rates(plan: Plan, setup: "Setup", rows: list[Any], seconds: float) -> Figures:
    """Tokens a second of steps on ``rows``, which took so many seconds, and the utilisation."""
    rank = RANK if setup.kind != "full" else 0
    flops = sum(training_flops(setup.shape, len(row.ids), len(row.trained), rank=rank) for row in rows)
    rate = describe_card(plan.device).get("peak_bfloat16_tflops")
    return {
        "tokens_per_second": round(sum(len(row.ids) for row in rows) / seconds, 1),
        "model_tflops": round(flops / seconds / 1e12, 3),
        "mfu": round(flops / seconds / (rate * 1e12), 4) if rate else None,
    }


def attention_cell(plan: Plan, kind: str, context: int, group: int, ragged: bool, compiled: bool) -> Figures:
    """Steps of the smallest shape with one attention; rows of a group share the tokens that are not trained."""
    size, shape = next(iter(plan.shapes.items()))
    count = max(group, (256 if plan.tiny else STEP_TOKENS) // context)
    rng = np.random.default_rng(0)

    def rows() -> list[Any]:
        lengths = rng.integers(context // 2, context * 3 // 2, count) if ragged else [context] * count
        parts = [(int(length) // 2, int(length) - int(length) // 2) for length in lengths]
        return [
            training_row(
                ids_of(10_000 + place // group, head, shape.vocabulary)
                + ids_of(place, tail, shape.vocabulary),
                head,
            )
            for place, (head, tail) in enumerate(parts)
        ]

    longest = context * 3 // 2 if ragged else context
    setup = Setup(
        size, shape, "full", longest, attention_of(plan, kind), compiled=compiled, memory=memory_of(plan)
    )
    read = cycle([rows() for _ in range(2 if plan.tiny else 20)])
    found = steps(plan, setup, lambda: next(read))
    if group > 1:  # a layout that reads what they share once needs less arithmetic than the rows apart
        del found["model_tflops"], found["mfu"]
    return found


def steps(plan: Plan, setup: "Setup", rows: Callable[[], list[Any]]) -> Figures:
    """Rates of steps on ``rows()`` of the learner that ``setup`` makes, and the most memory it took in GiB."""
    given: list[list[Any]] = []
    warmup = 1 if plan.tiny else 2

    def step() -> None:
        given.append(rows())
        learner.step(given[-1])

    with peak_memory(plan.device) as peak:
        learner = prepared_learner(plan, setup)
        spent = seconds_of(plan.device, step, warmup=warmup, least_s=0.0 if plan.tiny else 2.0)
        # Of the steps that were measured, whose rows may have more tokens than those of others, or fewer.
        measured = [row for one in given[warmup:] for row in one]
        seconds = spent * len(given[warmup:])
        return {**rates(plan, setup, measured, seconds), "peak_gib": peak()}


def memory_of(plan: Plan) -> float | None:
    """Bytes of the card; None on a CPU."""
    gib = describe_card(plan.device).get("memory_gib")
    return None if gib is None else gib * 2**30


BYTES_A_PARAMETER = {"full": 16.0, "lora": 2.0, "qlora": 0.6}
"""Weights, gradients, float32 copies and two moments; a frozen base in bfloat16; one in 4 bits with its scales."""


@dataclass(frozen=True)
class Setup:
    """What a learner is made of, and how much of a step it computes at once."""

    size: str
    """The name of the shape."""
    shape: ModelShape
    kind: str
    """``full``, ``lora`` or ``qlora``."""
    context: int
    attention: str
    compiled: bool = False
    memory: float | None = None
    """Bytes that the learner may take; None is as many as it wants."""

    @property
    def name(self) -> str:
        """Of its row in the table."""
        within = ", within 16 GiB" if self.memory == SMALL_CARD else ""
        return f"{self.size} {self.kind} {self.context}{', compiled' * self.compiled}{within}"

    @property
    def micro_tokens(self) -> int:
        """The largest micro-batch whose layers can be kept; one row, or the smallest size, where none can."""
        least = max(self.context, MICRO_TOKENS[-1])
        fitting = [tokens for tokens in MICRO_TOKENS if tokens >= least and self.fits(tokens)]
        return max(fitting, default=least)

    @property
    def checkpointed(self) -> bool:
        """Whether layers keep their inputs alone, because what all of them would keep does not fit."""
        return not self.fits(self.micro_tokens)

    def fits(self, tokens: int) -> bool:
        """Whether the card holds what all layers keep of so many tokens beside the weights.

        A layer keeps about 12 values of the hidden size and 5 of the feed-forward part for each token, in two bytes each;
        with adapters, half as many more.
        """
        if self.memory is None:
            return True
        shape = self.shape
        values = shape.layers * (12 * shape.hidden + 5 * shape.inner) * tokens
        kept = 2 * values * (1.0 if self.kind == "full" else 1.5)
        return kept + BYTES_A_PARAMETER[self.kind] * shape.parameters <= 0.85 * self.memory


def prepared_learner(plan: Plan, setup: "Setup") -> Any:
    """A learner of the whole model, of adapters, or of adapters over a base in 4 bits."""
    import torch

    from agentenv.policies.loading import compile_layers
    from agentenv.policies.lora import adapt
    from agentenv.policies.quantized import quantize
    from agentenv.trainers.learner.learner import Learner, Objective
    from agentenv.trainers.learner.logprobs import checkpoint_layers

    torch.compiler.reset()  # torch keeps eight versions of a layer's code, whatever the model, and compiles no more
    model = random_weights(setup.shape, setup.context, plan.device, plan.dtype, setup.attention)
    if setup.kind == "qlora":
        model = quantize(model)
    if setup.kind != "full":
        model = adapt(model, rank=RANK, alpha=32)
    if setup.compiled:
        compile_layers(model)
    if setup.checkpointed:
        checkpoint_layers(model)
    goal = Objective(proximal="recompute", micro_tokens=setup.micro_tokens)
    return Learner(model, goal, learning_rate=1e-6)
