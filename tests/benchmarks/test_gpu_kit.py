"""The measuring kit of one card: its arithmetic by hand, its deadlines, and all of it on the CPU with tiny shapes."""

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def module(name: str) -> Any:
    """A script of the folder ``benchmarks``."""
    if str(ROOT / "benchmarks") not in sys.path:
        sys.path.insert(0, str(ROOT / "benchmarks"))
    return importlib.import_module(name)


def test_operations_of_a_training_pass_by_hand() -> None:
    flops = module("model_flops")
    shape = flops.ModelShape(hidden=4, layers=1, heads=2, key_value_heads=1, inner=8, vocabulary=10)
    # queries and outputs 2 x 16, keys and values 2 x (4 x 2), the feed-forward part 3 x 32
    assert shape.layer_parameters == 32 + 16 + 96
    assert shape.parameters == 144 + 40
    # 3 tokens of which 2 are trained: 6 x (144 x 3 + 40 x 2) for matrices, 6 x 3 x 3 x 4 for causal attention
    assert flops.training_flops(shape, 3, 2) == 3072 + 216
    # adapters of rank 1: (4 + 4) x 2, (4 + 2) x 2, (4 + 8) x 3 entries; matrices that are frozen take 4 an entry and token
    assert flops.lora_parameters(shape, 1) == 16 + 12 + 36
    assert flops.training_flops(shape, 3, 2, rank=1) == 2048 + 6 * 64 * 3 + 216


@pytest.mark.parametrize(
    ("size", "billions", "without_embeddings"),
    [("0.5B", 0.49, 0.36), ("1.5B", 1.54, 1.31), ("3B", 3.09, 2.77)],
)
def test_shapes_have_the_published_numbers_of_parameters(
    size: str, billions: float, without_embeddings: float
) -> None:
    shape = module("model_flops").QWEN[size]
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=0.006)
    assert shape.layer_parameters / 1e9 == pytest.approx(without_embeddings, abs=0.006)


def test_adapters_are_counted_as_peft_makes_them() -> None:
    from agentenv.policies.lora import adapt, trained_state

    flops, models = module("model_flops"), module("gpu_models")
    import torch

    shape = flops.TINY["tiny"]
    model = models.random_weights(shape, 64, "cpu", torch.float32)
    assert sum(weight.numel() for weight in model.parameters()) - shape.parameters < 2_000  # biases and norms
    adapted = adapt(model, rank=3, alpha=8)
    assert sum(weight.numel() for weight in trained_state(adapted).values()) == flops.lora_parameters(
        shape, 3
    )


@pytest.mark.parametrize(
    ("card", "teraflops"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA L40", None),
    ],
)
def test_peak_rates_by_name(card: str, teraflops: float | None) -> None:
    rate = module("model_flops").peak_of(card)
    assert rate == (None if teraflops is None else pytest.approx(teraflops * 1e12))


def test_a_section_that_does_not_end_costs_its_own_figures_alone(tmp_path: Path) -> None:
    """The deadline is far too short for torch to be imported."""
    args = argparse.Namespace(device="cpu", threads=1, tiny=True)
    found = module("gpu").run_section("numerics", args, 0.2)
    assert "0 s" in found["failed"]
    assert found["seconds"] < 20


@pytest.mark.slow
def test_the_whole_kit_with_tiny_shapes(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    script = [
        sys.executable,
        str(ROOT / "benchmarks" / "gpu.py"),
        "--tiny",
        "--device",
        "cpu",
        "--threads",
        "1",
    ]
    done = subprocess.run(
        [*script, "--out", str(path)], capture_output=True, text=True, timeout=600, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["card"] == {"kind": "cpu"}
    sections = result["sections"]
    assert list(sections) == list(module("gpu_sections").SECTIONS)
    assert not [name for name, found in sections.items() if "failed" in found], done.stderr[-3000:]
    assert str(tmp_path) not in path.read_text(encoding="utf-8")
    for name in sections:
        assert f"\n{name} (" in done.stdout
    cells = [cell for cell in sections["training"].values() if isinstance(cell, dict)]
    assert len(cells) == 6  # full, LoRA, QLoRA at two contexts
    assert all(cell.get("tokens_per_second", 0) > 0 or "bitsandbytes" in cell["skipped"] for cell in cells)
    gap = sections["numerics"]["sampler_against_learner"]["largest_gap_nats"]
    assert gap < 1e-4  # float32 on one processor
    assert sections["search_run"]["steps"] == 2
    assert sections["search_run"]["trained_tokens_per_step"] > 0
