"""Every task sampler through the whole trainer: two steps of the tiny policy, and the second again after an interruption."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.task_sampling.samplers import SAMPLERS
from tests.file_contents import contents_of

QUESTIONS, SIZE = 3, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "dapo": {"keep": 0.7},
    "dots": {"fresh": 0.5},
    "partial_states": {"good": 0.5, "part": 0.9},
    "xrpo": {"first": 2, "rounds": 1, "example_characters": 20, "success": 0.5},
    "curriculum": {
        "hops": [[1, 1]],
        "max_turns": [[1, 0], [2, 1]],
        "passages": [[2, 1]],
        "noise": [[2, 0.5]],
    },
}
"""Where the defaults would leave something out."""


def config(sampler: str) -> dict[str, Any]:
    """Two steps over a small world; the evaluations before and after are of one question."""
    world = {"documents": 200, "questions": 12, "families": ["lookup"], "hops": [1, 1]}
    return {
        "threads": 1,
        "checkpoint_every": 1,
        "trajectories_every": 1,
        "env": {
            "id": "agentenv/SearchSolver-v0",
            "options": {"k": 2, "max_turns": 1, "observation_tokens": 128, "prompt": "{question}"},
        },
        "search": {"encoder": "hash"},
        "train": {"world": world | {"seed": 1, "split": "train"}},
        "dev": {"world": world | {"seed": 2, "split": "dev"}},
        "test": {"limit": 1, "world": world | {"seed": 2, "split": "dev"}},
        "rollout": {
            "questions": QUESTIONS,
            "group_size": SIZE,
            "turn_tokens": 24,
            "context_tokens": 256,
            "sampler": sampler,
            "sampler_options": OPTIONS.get(sampler, {}),
        },
        "optimizer": {"steps": 2},
        "reward_shaping": {"novelty": 2.5},
        "evaluation": {"every": 0, "bounds": False},
    }


def contents(run: Path) -> dict[str, str]:
    """What an interrupted run must repeat."""
    return contents_of(run, ["metrics.jsonl", "policy/model.safetensors", "trajectories/*"])


def interrupt(run: Path) -> None:
    """Leaves of a finished run what a run killed in its second step has left."""
    shutil.rmtree(run / "checkpoints" / "step-000002")
    shutil.rmtree(run / "policy")
    shutil.rmtree(run / "evaluation" / "after")
    (run / "results.json").unlink()


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "self_play"])  # which draws for games
def test_two_steps_and_the_second_one_again(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = RunFolder.create(tmp_path / "run", parse_config(config(name), "test"))
    train(folder, SilentDisplay())
    lines = folder.history()
    for line in lines:
        assert line["rollouts"] + line["unspent_rollouts"] == QUESTIONS * SIZE
        assert line["rollouts"] > 0
        assert line["sampled_tokens"] > line["rollouts"]
        assert line["faults"] == 0
    first = contents(folder.path)
    interrupt(folder.path)
    train(RunFolder.open(folder.path), SilentDisplay())
    assert contents(folder.path) == first
    if name == "dots" and lines[0]["replay_buffer"]:
        assert lines[1]["replayed_groups"] > 0
        assert lines[1]["approx_kl"] != 0
    if name == "partial_states" and lines[0]["waiting_states"]:
        assert lines[1]["continued"] > 0
    if name == "xrpo" and lines[0]["solved_examples"]:
        assert lines[1]["seeded_groups"] > 0
        assert lines[1]["hinted"] > 0


def test_demonstrations_that_wait_for_their_step_survive_an_interruption(tmp_path: Path) -> None:
    """A supervised step needs more of them than the first step has, and the second step fills the buffer."""
    torch.set_num_threads(1)
    wanted = config("uniform")
    wanted["rollout"] |= {"strategy": "demonstrate", "group_size": 2}
    wanted["optimizer"] |= {"supervised_batch": 2, "supervised_rate": 1e-3}
    folder = RunFolder.create(tmp_path / "run", parse_config(wanted, "test"))
    train(folder, SilentDisplay())
    first, second = folder.history()
    assert first["demonstrations_held"] == 1
    assert "supervised_loss" not in first
    assert second["supervised_loss"] > 0
    before = contents(folder.path)
    interrupt(folder.path)
    train(RunFolder.open(folder.path), SilentDisplay())
    assert contents(folder.path) == before
