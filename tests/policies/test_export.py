"""Weights on disk: adapters merged without touching the model, what is written can be loaded, the card's numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.policies.export import merged_state, write_model_card, write_weights

RESULTS = {
    "name": "first",
    "seed": 3,
    "steps": 20,
    "scorer": "em_squad",
    "before": {"mean": 0.25, "n": 400, "ci95": [0.2, 0.3]},
    "after": {"mean": 0.5, "n": 400, "ci95": [0.45, 0.55]},
    "faults": 2,
}
CONFIG = {
    "policy": "tiny",
    "env": {"id": "agentenv/LocalSearch-v0"},
    "environments": {},
    "loss": {"estimator": "group_relative", "objective": "ppo_clip"},
    "optimizer": {"learning_rate": 1e-4},
    "engine": {"kind": "vllm"},
    "rollout": {"temperature": 1.0},
    "lora": {"rank": 0},
}


def qwen(**changes: Any) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    heads = {"num_key_value_heads": 2, "max_position_embeddings": 32, "vocab_size": 40}
    return Qwen2ForCausalLM(Qwen2Config(**shape, **heads, **changes)).eval()


def adapted(base: Any) -> Any:
    """``base`` with an adapter that does something."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    return model.eval()


@pytest.mark.parametrize("tied", [False, True])
def test_merged_weights_compute_what_the_adapter_does(tied: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = adapted(qwen(tie_word_embeddings=tied))
    ids = torch.tensor([[1, 2, 3, 4]])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
    write_weights(model, tmp_path)
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(input_ids=ids).logits, wanted, atol=1e-5, rtol=1e-5)
    assert (tmp_path / "model.safetensors").is_file()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_one_layer_by_hand() -> None:
    """W' = W + alpha / r * B A."""
    model = adapted(qwen())
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    merged = merged_state(model)["model.layers.0.self_attn.q_proj.weight"]
    torch.testing.assert_close(merged, layer.base_layer.weight + 8 / 4 * (b @ a))


def test_weights_without_an_adapter_are_written_as_they_are(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = qwen()
    write_weights(model, tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], value) for name, value in written.items())


def test_the_card_holds_the_numbers_of_the_run(tmp_path: Path) -> None:
    write_model_card(tmp_path, RESULTS, CONFIG)
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert f"| before | {RESULTS['scorer']} | 0.250 | [0.200, 0.300] | 400 |" in card
    assert f"| after | {RESULTS['scorer']} | 0.500 | [0.450, 0.550] | 400 |" in card
    assert "from `tiny` in 20 steps, seed 3" in card
    assert "Episodes lost to faults: 2." in card
    assert "- Trained: all weights." in card
