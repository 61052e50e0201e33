"""What trains in one process alone is refused before the first step under torchrun."""

from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import random_model
from agentenv.policies.quantized import quantize
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.grpo import train
from agentenv.trainers.learner.learner import Objective
from agentenv.trainers.learner.sharded import ShardedLearner
from agentenv.trainers.run_folder.folder import RunFolder

WORLD = {"documents": 200, "questions": 12, "families": ["lookup"], "hops": [1, 1]}
SMALL: dict[str, Any] = {
    "threads": 1,
    "env": {"options": {"k": 2, "max_turns": 1, "observation_tokens": 128, "prompt": "{question}"}},
    "search": {"encoder": "hash"},
    "train": {"world": WORLD | {"seed": 1, "split": "train"}},
    "dev": {"limit": 2, "world": WORLD | {"seed": 2, "split": "dev"}},
    "test": {"limit": 1, "world": WORLD | {"seed": 2, "split": "dev"}},
    "rollout": {"questions": 3, "group_size": 4, "turn_tokens": 16, "context_tokens": 256},
    "optimizer": {"steps": 1},
    "evaluation": {"every": 0, "bounds": False},
}
REFUSED: dict[str, dict[str, Any]] = {
    "demonstrate": {"rollout": {"strategy": "demonstrate"}},
    "second.roles": {
        "second": {"roles": ["proposer"]},
        "env": {"id": "agentenv/SearchSolver-v0"},
        "train": {"topics": True},
        "rollout": {
            "strategy": "self_play",
            "strategy_options": {"checks": [], "searches": [1, 1]},
            "sampler": "self_play",
        },
        "loss": {"estimator": "role_wise"},
    },
    "adamw_8bit": {"memory": {"optimizer": "adamw_8bit"}},
    "offload_optimizer": {"memory": {"offload_optimizer": True}},
}


@pytest.mark.parametrize("named", REFUSED)
def test_a_run_is_refused(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    values = {key: dict(SMALL.get(key, {})) | part for key, part in REFUSED[named].items()}
    folder = RunFolder.create(tmp_path / "run", parse_config(SMALL | values, "the test"))
    with pytest.raises(ConfigurationError, match=named):
        train(folder, SilentDisplay())


def test_a_base_in_four_bits_is_refused() -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    with pytest.raises(ConfigurationError, match="nf4"):
        ShardedLearner(quantize(random_model(width=64, inner=128)), Objective(), learning_rate=1e-3)
