"""A run whose policy is a reader of passages: the ordinary trainer, environment and evaluation, to the end and resumed."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.policies.export import write_readers, write_weights
from agentenv.policies.fake_reader import random_reader
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import override, parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder

WORLD = {"documents": 200, "questions": 16, "families": ["lookup"], "hops": [1, 1]}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random reader that knows the words of the world."""
    folder = tmp_path_factory.mktemp("reader")
    world = FictionalWorld.generate(WorldConfig(documents=200, questions=16, families=("lookup",)))
    policy = random_reader(
        [document.text for document in world.documents], segment_tokens=40, span_tokens=6, spread=0.1
    )
    write_weights(policy.model, folder)
    write_readers(policy, folder)
    return folder


def config(reader: Path) -> TrainConfig:
    values = {
        "name": "reader",
        "policy": f"hf:{reader}",
        "env": {
            "options": {"k": 1, "max_turns": 2, "observation_tokens": 8000, "scorer": "f1_squad"},
        },
        "search": {"retriever": "bm25"},
        "train": {"world": WORLD},
        "dev": {"world": WORLD, "limit": 2},
        "test": {"world": WORLD, "limit": 4},
        "rollout": {"questions": 6, "group_size": 12, "turn_tokens": 300, "context_tokens": 20_000},
        "optimizer": {"steps": 2, "learning_rate": 1e-2},
        "memory": {"micro_tokens": 40_000},
        "evaluation": {"every": 2},
    }
    return override(parse_config(values, "test"), ["--checkpoint_every", "1", "--threads", "1"])


def test_a_reader_is_trained_and_resumes_to_the_same_weights(reader: Path, tmp_path: Path) -> None:
    """Sampler and learner agree (the ratios of a first update are 1), weights move, and the oracle bound is measured."""
    torch.set_num_threads(1)
    folder = RunFolder.create(tmp_path / "run", config(reader))
    results = train(folder, SilentDisplay())
    assert (results["steps"], results["faults"]) == (2, 0)
    assert results["bounds"]["oracle"]["mean"] is not None
    history = folder.history()
    assert all(abs(line["approx_kl"]) < 1e-4 for line in history)
    assert any(line["grad_norm"] > 0 for line in history)
    start, end = (load_file(path / "model.safetensors") for path in (reader, folder.path / "policy"))
    assert any(not torch.equal(start[name], end[name]) for name in start)
    shutil.rmtree(folder.path / "checkpoints" / "step-000002")
    shutil.rmtree(folder.path / "evaluation" / "after")
    (folder.path / "results.json").unlink()
    train(RunFolder.open(folder.path), SilentDisplay())
    again = load_file(folder.path / "policy" / "model.safetensors")
    assert all(torch.equal(again[name], end[name]) for name in end)
