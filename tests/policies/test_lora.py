"""Adapters: they begin as nothing, their files hold them alone and come back, and merged they compute the same."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from agentenv.errors import CheckpointMismatch, ConfigurationError, UnknownName
from agentenv.policies.export import write_weights
from agentenv.policies.fake_architectures import tiny_model
from agentenv.policies.fakes import ByteTokenizer, random_model, random_policy
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import (
    ADAPTER_WEIGHTS,
    adapt,
    base_and_adapter,
    load_weights,
    read_trained,
    trained_state,
    weights_digest,
    without_adapters,
    write_trained,
)
from agentenv.policies.policy_spec import make_policy

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS).logits
    return found


def moved(model: Any) -> Any:
    """``model`` with adapters that do something."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, value in trained_state(model).items():
            if "lora_B" in name:
                value.copy_(torch.randn(value.shape, generator=generator) * 0.1)
    return model


def test_it_begins_as_its_base_and_has_a_seed() -> None:
    plain = random_model()
    before = torch.get_rng_state()
    first, again, other = (adapt(random_model(), rank=4, alpha=8, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(logits(first), logits(plain))
    assert torch.equal(logits(without_and_back(moved(first))), logits(moved(again)))
    assert not torch.equal(logits(moved(again)), logits(moved(other)))
    random_model()  # which seeds the generator as ``before`` was
    assert torch.equal(torch.get_rng_state(), before)


def test_the_model_that_was_wrapped_goes_on_scoring_with_its_adapters() -> None:
    model = moved(adapt(random_model(), rank=4, alpha=8))
    inner, ids = HFPolicy(model.get_base_model(), ByteTokenizer()), [3, 1, 4, 1, 5]
    wanted = asyncio.run(HFPolicy(model, ByteTokenizer()).score(ids))
    assert asyncio.run(inner.score(ids)) == wanted


def without_and_back(model: Any) -> Any:
    """``model``, once it was asked without its adapters."""
    with without_adapters(model):
        assert torch.equal(logits(model), logits(random_model()))
    assert all(value.requires_grad for name, value in model.named_parameters() if "lora_" in name)
    return model


def test_only_adapters_are_trained_and_of_the_layers_that_are_named() -> None:
    model = adapt(random_model(), rank=4, alpha=8, modules=["q_proj", "down_proj"])
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained == trained_state(model).keys()
    assert len(trained) == 2 * 2 * 2  # layers, modules, A and B
    every = adapt(random_model(), rank=4, alpha=8)
    assert len(trained_state(every)) == 2 * 7 * 2
    with pytest.raises(UnknownName, match=r"'q_prj'.*'q_proj'"):
        adapt(random_model(), rank=4, alpha=8, modules=["q_prj"])


@pytest.mark.parametrize("kind", ["glm4_moe", "hunyuan_v1_moe", "qwen3_moe", "llama4_text"])
def test_the_merged_model_of_experts_is_the_adapted_one(tmp_path: Path, kind: str) -> None:
    # peft takes down_proj for the arrays of the experts, and their weights were written under names that nothing reads.
    adapted = moved(adapt(tiny_model(kind), rank=2, alpha=4))
    write_weights(adapted, tmp_path)
    merged, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert (report["missing_keys"], report["unexpected_keys"]) == (set(), set())
    gap = logits(merged.eval()) - logits(adapted)
    assert float(gap.abs().max()) < 1e-3
    with without_adapters(adapted):
        assert float((logits(merged) - logits(adapted)).abs().max()) > 0.1


def test_adapters_of_experts_are_refused_by_name() -> None:
    for name in ("down_proj", "gate_proj"):
        with pytest.raises(ConfigurationError, match=rf"'{name}'.*'glm4_moe'.*q_proj"):
            adapt(tiny_model("glm4_moe"), rank=2, alpha=4, modules=["q_proj", name])


def test_linear_layers_of_another_class_get_adapters(tmp_path: Path) -> None:
    """Falcon has a class of its own for what a linear layer does, as Llama 4 has for what chooses experts."""
    adapted = moved(adapt(tiny_model("falcon"), rank=2, alpha=4))
    write_weights(adapted, tmp_path)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert float((logits(merged.eval()) - logits(adapted)).abs().max()) < 1e-3


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'gpt2'.*lora\.rank=0"):
        adapt(tiny_model("gpt2"), rank=2, alpha=4)


def test_files_hold_the_adapter_alone_and_give_it_back(tmp_path: Path) -> None:
    model = moved(adapt(random_model(), rank=4, alpha=8))
    write_trained(model, tmp_path)
    with pytest.raises(CheckpointMismatch):
        base_and_adapter(tmp_path)  # a model made in memory has no folder
    assert {path.name for path in tmp_path.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    held = read_trained(tmp_path)
    assert held.keys() == trained_state(model).keys()
    other = adapt(random_model(), rank=4, alpha=8, seed=3)
    assert load_weights(other, held) == []
    assert torch.equal(logits(other), logits(model))
    missing = held.popitem()[0]
    assert load_weights(other, held | {"odd": IDS}) == [missing, "odd"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    random_policy(tmp_path / "base", ["a b c d e f g h"], spread=0.3)
    return tmp_path / "base"


def test_its_folder_and_the_merged_one_are_policies(base: Path, tmp_path: Path) -> None:
    """W + alpha / r B A against the two products apart: float32 sums in another order, at most 1e-5 in a log-prob."""
    model = moved(adapt(make_policy(f"hf:{base}").model, rank=4, alpha=8))
    for name, write in {"adapter": write_trained, "merged": write_weights}.items():
        (tmp_path / name).mkdir()
        write(model, tmp_path / name)
    make_policy(f"hf:{base}").tokenizer.save_pretrained(tmp_path / "merged")
    for name in ("adapter", "merged"):
        ours, theirs = logits(make_policy(f"hf:{tmp_path / name}").model), logits(model)
        torch.testing.assert_close(ours.log_softmax(-1), theirs.log_softmax(-1), rtol=0, atol=1e-5)
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(config.read_text().replace('"r": 4', '"r": 3'))
    with pytest.raises(CheckpointMismatch, match="adapter"):
        make_policy(f"hf:{tmp_path / 'adapter'}")


def without_half(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in held.items() if "q_proj" in name}


def of_another_layer(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.replace("layers.0", "layers.7"): value for name, value in held.items()}


@pytest.mark.parametrize("change", [without_half, of_another_layer])
def test_an_adapter_that_lacks_weights_is_refused(base: Path, tmp_path: Path, change: Any) -> None:
    """The layers without one would compute what the base does, and nobody would be told."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    write_trained(moved(adapt(make_policy(f"hf:{base}").model, rank=4, alpha=8)), folder)
    held = load_file(folder / ADAPTER_WEIGHTS)
    save_file(change(held), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(CheckpointMismatch, match="proj"):
        make_policy(f"hf:{folder}")


@pytest.mark.parametrize(
    "setting", [None, {"r": "four"}, {"target_modules": ["nope"]}, {"peft_type": "NOPE"}]
)
def test_a_damaged_adapter_is_refused(base: Path, tmp_path: Path, setting: dict[str, Any] | None) -> None:
    """A file that is cut short, or settings that nobody could have written."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    write_trained(moved(adapt(make_policy(f"hf:{base}").model, rank=4, alpha=8)), folder)
    file = folder / ("adapter_config.json" if setting else ADAPTER_WEIGHTS)
    whole = file.read_bytes()
    file.write_bytes(json.dumps(json.loads(whole) | setting).encode() if setting else whole[:-50])
    with pytest.raises(CheckpointMismatch, match="adapter"):
        make_policy(f"hf:{folder}")


def test_the_digest_is_of_base_and_adapter(base: Path, tmp_path: Path) -> None:
    model = adapt(make_policy(f"hf:{base}").model, rank=4, alpha=8)
    (tmp_path / "adapter").mkdir()
    write_trained(moved(model), tmp_path / "adapter")
    digests = [weights_digest(folder) for folder in (base, tmp_path / "adapter")]
    file = base / "model.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)
    digests += [weights_digest(folder) for folder in (base, tmp_path / "adapter")]
    assert len(set(digests)) == 4


@pytest.mark.parametrize("tied", [False, True])
def test_weights_that_are_cut_into_several_files_are_read_whole(tmp_path: Path, tied: bool) -> None:
    model = random_model(tied=tied)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    held = read_trained(tmp_path)
    assert all(torch.equal(value, held[name]) for name, value in model.state_dict().items() if name in held)
    other = random_model(tied=tied, seed=3)
    assert set(load_weights(other, held)) <= {"lm_head.weight"}  # where it is tied it stands in the file once
    assert torch.equal(logits(other), logits(model))
