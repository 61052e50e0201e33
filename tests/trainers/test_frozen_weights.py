"""Weights that ``optimizer.frozen`` names stay as they are, and all others learn as they would."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.errors import ConfigurationError
from agentenv.policies.lora import adapt
from agentenv.policies.policy_spec import make_policy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.grpo import train
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow
from agentenv.trainers.loop.parts import freeze
from agentenv.trainers.run_folder.folder import RunFolder

FROZEN = ("model.embed_tokens.", "model.layers.0.")
WORLD = {"documents": 200, "questions": 12, "families": ["lookup"], "hops": [1, 1]}


def made_rows() -> list[TrainingRow]:
    rng, rows = np.random.default_rng(0), []
    for length in range(9, 13):
        mask, old = np.arange(length) > 3, rng.normal(-3, 0.5, length).astype(np.float32)
        ids, none = rng.integers(0, 256, length), np.zeros(length, dtype=np.bool_)
        rows.append(TrainingRow(ids, mask, old, none, rng.normal(size=length)))
    return rows


def stepped(model: Any) -> dict[str, torch.Tensor]:
    """The weights after a step whose gradient is not scaled down, so that no weight depends on which others learn."""
    Learner(model, Objective(), learning_rate=1e-2, weight_decay=0.1, max_grad_norm=float("inf")).step(
        made_rows()
    )
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_frozen_weights_keep_their_bits_and_the_others_learn_as_without(qwen: Callable[..., Any]) -> None:
    before = {name: value.clone() for name, value in qwen().state_dict().items()}
    whole, part = qwen(), qwen()
    freeze(part, FROZEN)
    all_learn, some_learn = stepped(whole), stepped(part)
    for name, value in some_learn.items():
        wanted = before if name.startswith(FROZEN) else all_learn
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-6)
        assert torch.equal(value, before[name]) == name.startswith(FROZEN)


@pytest.mark.parametrize(
    ("prefixes", "named"),
    [(["model.layer."], r"'model\.layer\.'"), (["model.", "lm_head."], "leaves no weight")],
)
def test_a_name_that_no_weight_has_and_all_names_are_refused(
    qwen: Callable[..., Any], prefixes: list[str], named: str
) -> None:
    model = qwen()
    with pytest.raises(ConfigurationError, match=named):
        freeze(model, prefixes)


def test_layers_are_named_alike_under_adapters(qwen: Callable[..., Any]) -> None:
    """The base learns nothing, so its embeddings are no weights that could be frozen."""
    pytest.importorskip("peft", reason="adapters are peft's")
    adapted = adapt(qwen(), rank=2, alpha=4)
    freeze(adapted, ["model.layers.0."])
    learning = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
    assert learning
    assert all("model.layers.1." in name and "lora_" in name for name in learning)
    with pytest.raises(ConfigurationError, match="that learns begins so"):
        freeze(adapt(qwen(), rank=2, alpha=4), ["model.embed_tokens."])


def test_a_run_keeps_them(tmp_path: Path) -> None:
    config = parse_config(
        {
            "threads": 1,
            "env": {"options": {"k": 2, "max_turns": 1, "observation_tokens": 128, "prompt": "{question}"}},
            "search": {"encoder": "hash"},
            "train": {"world": WORLD | {"seed": 1, "split": "train"}},
            "dev": {"world": WORLD | {"seed": 2, "split": "dev"}},
            "test": {"limit": 1, "world": WORLD | {"seed": 2, "split": "dev"}},
            "rollout": {"questions": 3, "group_size": 4, "turn_tokens": 24, "context_tokens": 256},
            "optimizer": {"steps": 1, "learning_rate": 1e-3, "frozen": list(FROZEN)},
            "loss": {"kl_coefficient": 0.01},
            "evaluation": {"every": 0, "bounds": False},
        },
        "test",
    )
    folder = RunFolder.create(tmp_path / "run", config)
    train(folder, SilentDisplay())
    start = make_policy("tiny").model.state_dict()
    trained = make_policy(f"hf:{folder.path / 'policy'}").model.state_dict()
    moved = {name for name, value in trained.items() if not torch.equal(value, start[name])}
    assert moved
    assert not any(name.startswith(FROZEN) for name in moved)
