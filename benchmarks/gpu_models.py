"""What the sections of ``gpu.py`` are made of: the plan, models with random weights, made-up tokens, and clocks.

Shapes: T tokens of one row.
"""

import asyncio
import gc
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from model_flops import QWEN, TINY, ModelShape, peak_of

from agentenv.core.types import Sampling
from agentenv.errors import MissingExtra

Figures = dict[str, Any]


class Skipped(Exception):
    """Why a section has nothing to measure on this machine."""


def tried(work: Callable[[], Figures]) -> Figures:
    """What ``work`` measures, or why it was skipped or failed: what follows is measured in any case."""
    try:
        return work()
    except (Skipped, MissingExtra) as reason:
        return {"skipped": str(reason)}
    except ModuleNotFoundError as error:
        return {"skipped": f"{error.name} is not installed"}
    except Exception as error:  # out of memory, no such kernel: each library fails in a way of its own
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}".partition("\n")[0][:300]}
    finally:
        gc.collect()  # what failed may hold the memory of the card in a circle


@dataclass(frozen=True)
class Plan:
    """Where and how large a section measures."""

    device: str
    """What torch calls it."""
    tiny: bool
    keep: Callable[[Figures], None]
    """Told the figures so far whenever a part is complete, so that a deadline loses only what came after."""
    cells: str = ""
    """A regular expression: of sections with rows by name, only rows in whose names it is found are measured."""
    held: frozenset[str] = frozenset()
    """Names of rows that an earlier call has measured, which are left out."""

    @classmethod
    def of(
        cls,
        device: str,
        *,
        tiny: bool,
        threads: int,
        keep: Callable[[Figures], None],
        cells: str,
        held: frozenset[str],
    ) -> "Plan":
        """The plan for ``--device``; threads of the CPU are set here, once."""
        import torch

        torch.set_num_threads(threads)
        return cls(resolved_device(device), tiny, keep, cells, held)

    def wants(self, name: str) -> bool:
        """Whether the row of that name is measured."""
        return name not in self.held and re.search(self.cells, name) is not None

    @property
    def dtype(self) -> Any:
        """What models are computed in: on a card and, so that the test goes the same way, on the CPU."""
        import torch

        return torch.bfloat16

    @property
    def compute(self) -> dict[str, str]:
        """The section ``[compute]`` of a run, whose number format ``auto`` would be another on the CPU than on a card."""
        dtype = {"compute.dtype": "bfloat16"} if self.device == "cpu" else {}
        return {"compute.device": self.device} | dtype

    @property
    def shapes(self) -> Mapping[str, ModelShape]:
        """The models that are measured, by name."""
        return TINY if self.tiny else QWEN

    def smallest(self) -> ModelShape:
        """The first of them."""
        return next(iter(self.shapes.values()))

    def largest(self) -> ModelShape:
        """The last of them."""
        return list(self.shapes.values())[-1]


def resolved_device(name: str) -> str:
    """``name``, or the card where there is one and the CPU elsewhere for ``auto``."""
    import torch

    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def describe_card(name: str) -> Figures:
    """What the figures are from."""
    import torch

    device = torch.device(resolved_device(name))
    if device.type != "cuda":
        return {"kind": device.type}
    about = torch.cuda.get_device_properties(device)
    return {
        "kind": "cuda",
        "name": about.name,
        "memory_gib": round(about.total_memory / 2**30, 1),
        "cuda": torch.version.cuda,
        "peak_bfloat16_tflops": (peak_of(about.name) or 0.0) / 1e12 or None,
    }


def random_weights(shape: ModelShape, context: int, device: str, dtype: Any, attention: str = "sdpa") -> Any:
    """A model of ``shape`` made on ``device`` from its configuration; weights of deviation .02.

    Args:
        shape: Of the model.
        context: Positions.
        device: What torch calls it.
        dtype: Of the weights.
        attention: As in ``compute.attention``, without ``auto``.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from agentenv.policies.attention import serve_masks

    name = {"flex": "flex_attention"}.get(attention, attention)
    serve_masks(name)
    torch.manual_seed(0)
    held = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return AutoModelForCausalLM.from_config(shape.config(context), attn_implementation=name).eval()
    finally:
        torch.set_default_dtype(held)


def attention_of(plan: Plan, name: str) -> str:
    """The attention that ``compute.attention = name`` is on the device of ``plan``.

    Raises:
        Skipped: it cannot be computed there.
    """
    from agentenv.errors import ConfigurationError
    from agentenv.policies.compute import ComputeSettings

    try:
        asked = {"device": plan.device, "dtype": "bfloat16", "attention": name}
        return ComputeSettings.model_validate(asked).resolved().attention
    except ConfigurationError as error:
        raise Skipped(str(error)) from error


def wait_for(device: str) -> None:
    """Until everything that was asked of the device is done."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def give_back(device: str) -> None:
    """Gives the card what nothing holds any more, so that another process can have it."""
    import torch

    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def measured(plan: Plan, cells: Mapping[str, Callable[[], Figures]]) -> Figures:
    """The figures of those of the ``cells`` that are wanted, each kept as soon as it is there."""
    figures: Figures = {}
    for name, work in cells.items():
        if plan.wants(name):
            figures[name] = tried(work)
            plan.keep(figures)
    return figures


@contextmanager
def peak_memory(device: str) -> Iterator[Callable[[], float | None]]:
    """In it the most memory of the card is watched; gives GiB above what was held before, None on a CPU."""
    import torch

    if not device.startswith("cuda"):
        yield lambda: None
        return
    give_back(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield lambda: round((torch.cuda.max_memory_allocated(device) - before) / 2**30, 3)


def peak_reserved(device: str) -> float | None:
    """The most GiB of the card that torch had reserved since ``peak_memory`` began; None on a CPU."""
    import torch

    return round(torch.cuda.max_memory_reserved(device) / 2**30, 3) if device.startswith("cuda") else None


def seconds_of(device: str, work: Callable[[], object], *, warmup: int, least_s: float) -> float:
    """Mean seconds of ``work`` after ``warmup`` calls, over as many as take ``least_s`` seconds."""
    for _ in range(warmup):
        work()
    wait_for(device)
    began, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - began < least_s:
        work()
        wait_for(device)
        calls += 1
    return (time.perf_counter() - began) / calls


def ids_of(seed: int, count: int, vocabulary: int) -> list[int]:
    """Made-up tokens."""
    return [int(i) for i in np.random.default_rng(seed).integers(8, vocabulary - 8, count)]


def training_row(ids: list[int], prompt: int, logprobs: list[float] | None = None) -> Any:
    """A row whose tokens after the prompt are trained; advantages alternate in sign."""
    from agentenv.trainers.learner.packing import TrainingRow

    places = np.arange(len(ids))
    recorded = np.full(len(ids), -8.0, dtype=np.float32)
    if logprobs is not None:
        recorded[prompt:] = logprobs
    return TrainingRow(
        ids=np.array(ids, dtype=np.int64),
        mask=places >= prompt,
        logprobs=recorded,
        mismatch=np.zeros(len(ids), dtype=np.bool_),
        advantages=np.where(places % 2 == 0, 1.0, -1.0),
    )


def generate(
    policy: Any, prompts: list[list[int]], tokens: int | list[int], names: list[str] | None = None
) -> list[Any]:
    """One chunk after each prompt, all at once; every one has its full length unless the model ends it.

    Args:
        policy: Who samples.
        prompts: Ids of each.
        tokens: Most tokens of every chunk, or of each.
        names: Of the episodes, which then go on from one call to the next.
    """
    limits = [tokens] * len(prompts) if isinstance(tokens, int) else tokens
    episodes: list[Any] = list(names) if names else [None] * len(prompts)

    async def all_of() -> list[Any]:
        work = (
            policy.generate(ids, Sampling(limit, 1.0, seed=seed), **({"episode": name} if name else {}))
            for seed, (ids, limit, name) in enumerate(zip(prompts, limits, episodes, strict=True))
        )
        return list(await asyncio.gather(*work))

    return asyncio.run(all_of())


def shipped_tokenizer() -> Any:
    """The tokenizer of the shipped policy; the words of a model beyond it have no text."""
    from transformers import AutoTokenizer

    from agentenv.policies.tiny import shipped_weights

    return AutoTokenizer.from_pretrained(str(shipped_weights()))


def sampling_policy(plan: Plan, context: int) -> Any:
    """The smallest shape with random weights, sampled on the device."""
    from agentenv.policies.hf import HFPolicy

    model = random_weights(plan.smallest(), context, plan.device, plan.dtype)
    return HFPolicy(model, shipped_tokenizer(), context_tokens=context)


def write_policy(plan: Plan, folder: Path, shape: ModelShape) -> None:
    """A model of ``shape`` with random weights as a folder that every command loads."""
    random_weights(shape, 2048, plan.device, plan.dtype).save_pretrained(folder)
    shipped_tokenizer().save_pretrained(folder)
