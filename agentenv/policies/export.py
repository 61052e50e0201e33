"""Weights to and from disk as a Hugging Face folder: safetensors, LoRA merged in, a model card beside them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentenv.policies.lora import WRAPPED, is_adapted, write_model
from agentenv.policies.quantized import is_quantized, weight_of

_BASE = ".base_layer."


def write_weights(model: Any, folder: Path) -> None:
    """Writes ``model`` as safetensors with its config, adapters merged into what is written; the model stays as it is."""
    if is_adapted(model):
        write_model(model.get_base_model(), folder, merged_state(model))
    else:
        write_model(model, folder)


def write_readers(policy: Any, folder: Path) -> None:
    """Writes what turns messages into inputs of the model: the tokenizer, and the image processor where it has one."""
    policy.tokenizer.save_pretrained(folder)
    if policy.image_reader is not None:
        policy.image_reader.save(folder)


def merged_state(model: Any) -> dict[str, Any]:
    """State of a peft model under the names of its base model: W + scale * B A where there is an adapter.

    Weights that are held in 4 bits are written in the number format that they compute with, as rounded as they are.
    Merging and unmerging in place would leave a rounding error in W after every export; this touches nothing.
    """
    deltas = {
        name: layer.get_delta_weight(adapter)
        for name, layer in model.named_modules()
        if hasattr(layer, "get_delta_weight")
        for adapter in layer.active_adapters
    }
    packed = {name: layer for name, layer in model.named_modules() if is_quantized(layer)}
    state: dict[str, Any] = {}
    values: dict[int, Any] = {}
    for name, held in model.state_dict(keep_vars=True).items():
        layer, _, scales = name.rpartition(".weight")
        if "lora_" in name or (scales and layer in packed):
            continue
        whole = weight_of(packed[layer]) if layer in packed else held
        value = values.setdefault(id(held), whole.detach())  # tied weights stay one tensor
        place, _, leaf = name.partition(_BASE)
        delta = deltas.get(place) if leaf == "weight" else None
        plain = name.removeprefix(WRAPPED).replace(_BASE, ".")
        state[plain] = value if delta is None else value + delta.to(value.dtype)
    return state


def _score_row(evaluation: str, scorer: str, score: Mapping[str, Any]) -> str:
    """A line of the table of a model card."""
    if score["mean"] is None:
        return f"| {evaluation} | {scorer} | no score | | {score['n']} |"
    ends = score["ci95"]
    interval = f"[{ends[0]:.3f}, {ends[1]:.3f}]" if ends else ""
    return f"| {evaluation} | {scorer} | {score['mean']:.3f} | {interval} | {score['n']} |"


def write_model_card(folder: Path, results: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Writes ``README.md`` beside the weights: where they come from, and the numbers of the run with n and interval.

    Args:
        folder: Of the weights.
        results: The run's ``results.json``.
        config: The run's configuration, in plain values.
    """
    rows = []
    for when in ("before", "after"):
        rows.append(_score_row(when, results["scorer"], results[when]))
        for name in config["environments"]:
            own = results[f"{when}-{name}"]
            rows.append(_score_row(f"{when}, in {name}", own["scorer"], own))
    loss, lora = config["loss"], config["lora"]
    trained = "all weights"
    if lora["rank"]:
        trained = f"LoRA adapters of rank {lora['rank']}, alpha {lora['alpha']}, merged into these weights"
    further = (f"{name} `{one['env']['id']}`" for name, one in config["environments"].items())
    environments = ", ".join([f"`{config['env']['id']}`", *further])
    text = f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [agentenv, reinforcement-learning]
---

# {results["name"]}

Trained by agentenv from `{config["policy"]}` in {results["steps"]} steps, seed {results["seed"]}.

| evaluation | scorer | score | 95 % interval | questions |
| --- | --- | --- | --- | --- |
{chr(10).join(rows)}

- Environment: {environments}; the form of its episodes is in `episode.json`.
- Credit `{loss["estimator"]}`, loss `{loss["objective"]}`, step size {config["optimizer"]["learning_rate"]}.
- Trained: {trained}.
- Sampled by `{config["engine"]["kind"]}` at temperature {config["rollout"]["temperature"]}.
- Episodes lost to faults: {results["faults"]}.

Evaluate it with `agentenv eval --policy hf:FOLDER`, or `vllm:FOLDER`.
"""
    (folder / "README.md").write_text(text, encoding="utf-8")
