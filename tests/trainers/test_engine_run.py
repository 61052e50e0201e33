"""Two steps of GRPO whose episodes a real vLLM engine samples: versions, log-probs, checkpoints and resuming."""

import asyncio
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv.errors import ConfigurationError
from agentenv.policies.hf import HFPolicy
from agentenv.policies.tiny import shipped_weights
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder

AGREEMENT = 1e-4
"""In nats, between what the engine recorded and what the weights of that version say in the trainer."""
START_S = 1_800
"""For an engine to come up, which takes most of a minute of two idle cores and far more of busy ones."""


def config(**rollout: Any) -> dict[str, Any]:
    world = {"documents": 200, "questions": 12, "families": ["lookup"], "hops": [1, 1]}
    budgets = {"questions": 3, "group_size": 4, "turn_tokens": 24, "context_tokens": 256}
    return {
        "threads": 1,
        "checkpoint_every": 1,
        "trajectories_every": 1,
        "env": {"options": {"k": 2, "max_turns": 1, "observation_tokens": 128, "prompt": "{question}"}},
        "search": {"encoder": "hash"},
        "train": {"world": world | {"seed": 1, "split": "train"}},
        "dev": {"world": world | {"seed": 2, "split": "dev"}},
        "test": {"limit": 1, "world": world | {"seed": 2, "split": "dev"}},
        "rollout": budgets | {"deterministic": False} | rollout,
        "engine": {"kind": "vllm", "kv_gib": 0.25, "start_s": START_S},
        "optimizer": {"steps": 2, "learning_rate": 1e-3},
        "evaluation": {"every": 0, "bounds": False},
    }


def test_batches_by_index_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"rollout\.deterministic"):
        parse_config(config(deterministic=True), "test")


def dumped(run: Path, step: int) -> list[dict[str, Any]]:
    text = gzip.decompress((run / "trajectories" / f"step-{step:06d}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def assert_sampled_by(episodes: list[dict[str, Any]], weights: HFPolicy, version: int) -> None:
    """The recorded log-probs of the first turns are those of ``weights``."""
    for episode in episodes[:4]:
        prompt, sample = episode["segments"][:2]
        assert sample["version"] == version
        scores = asyncio.run(weights.score([*prompt["ids"], *sample["ids"]]))[len(prompt["ids"]) :]
        np.testing.assert_allclose(sample["logprobs"], scores, atol=AGREEMENT)


@pytest.mark.parametrize("rank", [0, 4])
def test_two_steps_and_the_second_one_again(rank: int, tmp_path: Path) -> None:
    """With all weights trained, and with adapters, whose checkpoints hold nothing else and come to the engine merged."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    run = tmp_path / "run"
    folder = RunFolder.create(run, parse_config(config() | {"lora": {"rank": rank, "alpha": 64}}, "test"))
    results = train(folder, SilentDisplay())
    assert (results["steps"], results["faults"]) == (2, 0)
    assert_sampled_by(dumped(run, 1), HFPolicy.load(shipped_weights()), 0)
    assert_sampled_by(dumped(run, 2), HFPolicy.load(run / "checkpoints" / "step-000001"), 1)

    shutil.rmtree(run / "checkpoints" / "step-000002")
    (run / "results.json").unlink()
    train(RunFolder.open(run), SilentDisplay())
    assert_sampled_by(dumped(run, 2), HFPolicy.load(run / "checkpoints" / "step-000001"), 1)
    card = (run / "policy" / "README.md").read_text()
    assert "Sampled by `vllm`" in card


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of Ray's own processes and sockets
@pytest.mark.filterwarnings("ignore:Tip. In future versions of Ray:FutureWarning")
def test_an_engine_in_a_worker_of_a_cluster_samples_with_the_weights_of_its_version(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    pytest.importorskip("ray", reason="Ray is not installed")
    run = tmp_path / "run"
    cluster = {"address": "local", "workers": 1, "start_s": START_S}
    results = train(
        RunFolder.create(run, parse_config(config() | {"cluster": cluster}, "test")), SilentDisplay()
    )
    assert (results["steps"], results["faults"]) == (2, 0)
    assert_sampled_by(dumped(run, 1), HFPolicy.load(shipped_weights()), 0)
    assert_sampled_by(dumped(run, 2), HFPolicy.load(run / "checkpoints" / "step-000001"), 1)
