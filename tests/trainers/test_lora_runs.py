"""Training adapters: a step moves them alone, the reference is the base, a run resumes from them to the bit."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import adapt, trained_state
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.tiny import shipped_weights
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import override, parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow
from agentenv.trainers.learner.second_policy import SecondPolicy
from agentenv.trainers.loop.parts import make_learner, make_objective, trained_policy
from agentenv.trainers.run_folder.folder import RunFolder
from tests.file_contents import contents_of

WORLD = {"documents": 200, "questions": 12, "families": ["lookup"], "hops": [1, 1]}


def made_rows(count: int = 6) -> list[TrainingRow]:
    """Rows of 9 to 14 tokens."""
    rng, rows = np.random.default_rng(0), []
    for length in range(9, 9 + count):
        mask = np.arange(length) > 3
        old = rng.normal(-3, 0.5, length).astype(np.float32)
        ids = rng.integers(0, 256, length)
        rows.append(TrainingRow(ids, mask, old, np.zeros(length, dtype=np.bool_), rng.normal(size=length)))
    return rows


def test_a_step_moves_the_adapters_alone(qwen: Callable[..., Any]) -> None:
    model = adapt(qwen(), rank=4, alpha=8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learner = Learner(model, Objective(), learning_rate=1e-2, weight_decay=0.1)
    for _ in range(2):  # A has no gradient while B is 0
        learner.step(made_rows())
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == trained_state(model).keys()
    assert learner.weights().keys() == moved


def test_the_reference_is_the_model_without_its_adapters(qwen: Callable[..., Any]) -> None:
    """One step from equal adapters: the penalty is the one towards a copy of the base, whose pass is fused."""
    objective = Objective(kl_coefficient=0.5, ace_alpha=0.1)
    states = []
    for reference in (None, qwen()):
        model = adapt(qwen(), rank=4, alpha=8)
        with torch.no_grad():
            for value in trained_state(model).values():
                value.fill_(0.05)
        learner = Learner(model, objective, learning_rate=1e-2, reference=reference or model)
        figures = learner.step(made_rows())
        states.append((figures, torch.cat([value.flatten() for value in learner.weights().values()])))
    (figures, ours), (theirs_figures, theirs) = states
    assert figures == pytest.approx(theirs_figures, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    without = Learner(adapt(qwen(), rank=4, alpha=8), Objective(), learning_rate=1e-2)
    assert without.step(made_rows())["loss"] != figures["loss"]


def test_sampler_and_learner_share_what_is_not_trained() -> None:
    words = "--lora.rank 4 --asynchronous.staleness 1 --rollout.deterministic false --loss.kl_coefficient 0.1"
    config = override(TrainConfig(), words.split())
    policy = trained_policy(config.policy, config.lora, config.compute, seed=config.seed)
    objective = make_objective(config.resolved_loss, config.memory, config.rollout)
    learner = make_learner(policy, lambda: policy, objective, config.optimizer, ahead=True)
    pairs = zip(policy.model.named_parameters(), learner.model.parameters(), strict=True)
    assert all((one is other) != ("lora_" in name) for (name, one), other in pairs)
    assert learner.reference is learner.model
    rows = made_rows()
    for _ in range(2):
        learner.step(rows)
    policy.set_weights(learner.weights())
    held = trained_state(policy.model)
    assert all(torch.equal(value, held[name]) for name, value in learner.weights().items())


def test_a_second_set_of_weights_is_checkpointed_by_its_adapters(qwen: Callable[..., Any]) -> None:
    def second(seed: int) -> SecondPolicy:
        model = adapt(qwen(), rank=4, alpha=8, seed=seed)
        policy = HFPolicy(model, ByteTokenizer())
        return SecondPolicy(("solver",), policy, Learner(model, Objective(), learning_rate=1e-2))

    one, other = second(1), second(2)
    one.learner.step(made_rows())
    state = one.state_dict()
    assert all("lora_" in name for name in state["weights"])
    other.load_state_dict(state)
    held = trained_state(other.policy.model)
    assert all(torch.equal(value, held[name]) for name, value in state["weights"].items())


def config(policy: Path) -> TrainConfig:
    values: dict[str, Any] = {
        "policy": f"hf:{policy}",
        "threads": 1,
        "checkpoint_every": 1,
        "trajectories_every": 1,
        "env": {"options": {"k": 2, "max_turns": 1, "observation_tokens": 128, "prompt": "{question}"}},
        "search": {"encoder": "hash"},
        "train": {"world": WORLD | {"seed": 1, "split": "train"}},
        "dev": {"world": WORLD | {"seed": 2, "split": "dev"}},
        "test": {"limit": 1, "world": WORLD | {"seed": 2, "split": "dev"}},
        "rollout": {"questions": 3, "group_size": 4, "turn_tokens": 24, "context_tokens": 256},
        "optimizer": {"steps": 2, "learning_rate": 1e-3},
        "loss": {"kl_coefficient": 0.01},
        "lora": {"rank": 4, "modules": ["q_proj", "down_proj"]},
        "evaluation": {"every": 0, "bounds": False},
    }
    return parse_config(values, "test")


WRITTEN = ("metrics.jsonl", "policy/model.safetensors")


def test_a_run_resumes_to_the_bit_and_leaves_merged_weights(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    start = tmp_path / "start"
    shutil.copytree(shipped_weights(), start)
    folder = RunFolder.create(tmp_path / "run", config(start))
    assert train(folder, SilentDisplay())["steps"] == 2
    checkpoint = folder.path / "checkpoints" / "step-000002"
    assert (checkpoint / "adapter_model.safetensors").is_file()
    assert not (checkpoint / "model.safetensors").exists()
    whole = contents_of(folder.path, WRITTEN)
    policy = make_policy(f"hf:{folder.path / 'policy'}")
    assert not hasattr(policy.model, "peft_config")
    assert "rank 4" in (folder.path / "policy" / "README.md").read_text()
    drop_the_end(folder.path)
    train(RunFolder.open(folder.path), SilentDisplay())
    assert contents_of(folder.path, WRITTEN) == whole

    file = start / "model.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    drop_the_end(folder.path)
    with pytest.raises(ConfigurationError, match="weights of policy"):
        train(RunFolder.open(folder.path), SilentDisplay())


def test_a_run_over_a_base_in_4_bits_resumes_to_the_bit(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the quantized extra")
    torch.set_num_threads(1)
    settings = override(config(shipped_weights()), ["--lora.quantization", "nf4"])
    folder = RunFolder.create(tmp_path / "run", settings)
    assert train(folder, SilentDisplay())["steps"] == 2
    whole = contents_of(folder.path, WRITTEN)
    plain = RunFolder.create(tmp_path / "plain", config(shipped_weights()))
    train(plain, SilentDisplay())
    sizes = {(run.path / "policy/model.safetensors").stat().st_size for run in (plain, folder)}
    assert len(sizes) == 1
    assert contents_of(plain.path, WRITTEN)["metrics.jsonl"] != whole["metrics.jsonl"]
    drop_the_end(folder.path)
    train(RunFolder.open(folder.path), SilentDisplay())
    assert contents_of(folder.path, WRITTEN) == whole


def drop_the_end(run: Path) -> None:
    """Brings the run back to its first step."""
    shutil.rmtree(run / "checkpoints" / "step-000002")
    shutil.rmtree(run / "evaluation" / "after")
    (run / "results.json").unlink()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--lora.modules q_proj", r"\['q_proj'\].*rank=0"),
        ("--lora.quantization nf4", r"lora: quantization='nf4'"),
        ("--lora.rank 4 --lora.quantization int3", r"lora\.quantization: .*'int3'"),
        ("--lora.rank -1", r"lora\.rank.*-1"),
        ("--lora.rang 4", r"'lora\.rang'.*'lora\.rank'"),
    ],
)
def test_a_wrong_dial_is_one_sentence(words: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        override(TrainConfig(), words.split())


def test_a_layer_that_there_is_not_is_named_with_the_nearest() -> None:
    config = override(TrainConfig(), ["--lora.rank", "4", "--lora.modules", "query"])
    with pytest.raises(ConfigurationError, match=r"'query'.*down_proj"):
        trained_policy(config.policy, config.lora, config.compute, seed=config.seed)
