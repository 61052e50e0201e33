"""Asynchronous training through the whole trainer: what stands in its metrics, defaults that differ, interruption."""

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.errors import ConfigurationError, Fault
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import override, parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.task_sampling.samplers import Batch
from agentenv.trainers.workers.rollout_scheduler import RolloutScheduler

WORLD = {"documents": 200, "questions": 12, "families": ["lookup"], "hops": [1, 1]}
STEPS, QUESTIONS, SIZE, BOUND = 4, 2, 3, 2


def config(*, abort: bool = False, segment_tokens: int = 0) -> TrainConfig:
    values: dict[str, Any] = {
        "threads": 1,
        "checkpoint_every": 1,
        "trajectories_every": 1,
        "env": {"options": {"k": 2, "max_turns": 1, "observation_tokens": 128, "prompt": "{question}"}},
        "search": {"encoder": "hash"},
        "train": {"world": WORLD | {"seed": 1, "split": "train"}},
        "dev": {"world": WORLD | {"seed": 2, "split": "dev"}},
        "test": {"limit": 1, "world": WORLD | {"seed": 2, "split": "dev"}},
        "rollout": {
            "questions": QUESTIONS,
            "group_size": SIZE,
            "turn_tokens": 24,
            "context_tokens": 256,
            "deterministic": False,
            "segment_tokens": segment_tokens,
        },
        "asynchronous": {"staleness": BOUND, "abort": abort},
        "optimizer": {"steps": STEPS},
        "loss": {"correction": {"ess_base": 1.0}},
        "evaluation": {"every": 0, "bounds": False},
    }
    return parse_config(values, "test")


def trained(run: Path) -> Counter[str]:
    """Steps in which each group was trained."""
    counts: Counter[str] = Counter()
    for path in run.glob("trajectories/*"):
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        counts.update({json.loads(line)["group_id"] for line in lines})
    return counts


@pytest.mark.parametrize("options", [{}, {"abort": True, "segment_tokens": 8}], ids=["ahead", "aborted"])
def test_a_run_and_its_end_again_after_an_interruption(options: dict[str, Any], tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = RunFolder.create(tmp_path / "run", config(**options))
    train(folder, SilentDisplay())
    lines = folder.history()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert all(line["rollouts"] == QUESTIONS * SIZE for line in lines)
    assert all(line["staleness_mean"] <= line["staleness_max"] <= BOUND for line in lines)
    assert {"behaviour_weight", "effective_sample"} <= set(lines[0])
    assert lines[-1]["groups_under_way"] == 0  # nothing is drawn for steps that never come
    assert ("aborted_groups" in lines[0]) == ("abort" in options)
    assert set(trained(folder.path).values()) == {1}
    state = torch.load(folder.path / "checkpoints" / "step-000003" / "trainer.pt", weights_only=True)
    assert len(state["rollouts"]["inflight"]) == QUESTIONS
    shutil.rmtree(folder.path / "checkpoints" / "step-000004")
    shutil.rmtree(folder.path / "evaluation" / "after")
    (folder.path / "results.json").unlink()
    whole = trained(folder.path)
    train(RunFolder.open(folder.path), SilentDisplay())
    assert trained(folder.path) == whole
    assert folder.history()[:-1] == lines[:-1]


@pytest.mark.parametrize("kind", [Fault, ConfigurationError])
def test_a_step_that_fails_leaves_a_checkpoint_of_those_before(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    folder = RunFolder.create(tmp_path / "run", config().model_copy(update={"checkpoint_every": STEPS}))
    batch = RolloutScheduler.batch

    def until_the_third(self: RolloutScheduler, step: int, *waiting: Any) -> Batch:
        if step == 3:
            raise kind("no worker is left")
        return batch(self, step, *waiting)

    with monkeypatch.context() as patched:
        patched.setattr(RolloutScheduler, "batch", until_the_third)
        with pytest.raises(kind, match="no worker is left"):
            train(folder, SilentDisplay())
    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["step-000002"]
    train(RunFolder.open(folder.path), SilentDisplay())
    assert [line["step"] for line in RunFolder.open(folder.path).history()] == list(range(1, STEPS + 1))
    assert set(trained(folder.path).values()) == {1}


@pytest.mark.parametrize(
    ("words", "proximal", "mode"),
    [
        ("--asynchronous.staleness 0", "sampler", "none"),
        ("--asynchronous.staleness 1 --rollout.deterministic false", "recompute", "truncate"),
        (
            "--asynchronous.staleness 1 --rollout.deterministic false --loss.proximal sampler",
            "sampler",
            "none",
        ),
        (
            "--asynchronous.staleness 1 --rollout.deterministic false --loss.proximal interpolate "
            "--loss.correction.mode mask",
            "interpolate",
            "mask",
        ),
    ],
)
def test_what_is_stale_is_decoupled_and_weighed_unless_said_otherwise(
    words: str, proximal: str, mode: str
) -> None:
    loss = override(TrainConfig(), words.split()).resolved_loss
    assert (loss.proximal, loss.correction.mode) == (proximal, mode)


def test_batches_by_index_are_for_synchronous_training() -> None:
    with pytest.raises(ConfigurationError, match=r"asynchronous\.staleness.*\b0\b"):
        override(TrainConfig(), ["--asynchronous.staleness", "1"])
