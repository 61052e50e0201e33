"""The planner: bytes by hand, a refusal for each thing that can be too large, and a probe that changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from agentenv.errors import ConfigurationError
from agentenv.trainers.config import TrainConfig
from agentenv.trainers.config_files import override
from agentenv.trainers.plan import Memory, available_memory, memory_of, plan_run

GIB = 2**30
WORDS = "--threads 1 --rollout.questions 2 --rollout.group_size 4 --rollout.context_tokens 64 --rollout.turn_tokens 8"
SMALL = override(TrainConfig(), [*WORDS.split(), "--optimization.micro_tokens", "256"])


def test_bytes_by_hand(qwen: Callable[..., Any]) -> None:
    """2 layers, 2 key/value heads of width 8, float32: 256 bytes of cache a token, twice, for 8 episodes of 64 tokens."""
    model = qwen()
    size = 4 * sum(p.numel() for p in model.parameters())
    assert memory_of(SMALL, model, 10.0) == Memory(
        weights=size, optimizer=3 * size, caches=2 * 256 * 8 * 64, activations=2560
    )
    ahead = [
        "--asynchronous.staleness",
        "2",
        "--rollout.deterministic",
        "false",
        "--optimization.kl_coefficient",
        "0.1",
    ]
    more = memory_of(override(SMALL, ahead), model, 10.0)
    assert more.weights == 3 * size  # the learner's, the sampler's, the reference
    assert more.caches == 2 * 2 * 256 * 8 * 64  # twice the groups under way
    assert Memory(100, 200, 300, 400).total == 1200


def test_a_probe_predicts_and_leaves_no_trace() -> None:
    threads = torch.get_num_threads()
    plan = plan_run(SMALL)
    torch.set_num_threads(threads)
    assert plan["memory_gib"] <= plan["available_gib"]
    assert plan["sampled_tokens_per_s"] > 0
    assert plan["trained_tokens_per_s"] > 0
    assert plan["seconds_per_step"] >= 0
    assert set(plan["memory_parts_gib"]) == {"weights", "optimizer", "caches", "activations"}
    assert 0 < available_memory() < 1 << 50


def free(config: TrainConfig, missing: str, spare: float = 0.5) -> str:
    """What the plan says where there is room for all but ``1 - spare`` of the part ``missing``."""
    gib = plan_run(config, available=1 << 60)["memory_parts_gib"]
    others = 1.2 * sum(value for name, value in gib.items() if name != missing)
    with pytest.raises(ConfigurationError) as caught:
        plan_run(config, available=int((others + 1.2 * spare * gib[missing]) * GIB))
    return str(caught.value)


def test_what_does_not_fit_is_refused_with_what_to_change() -> None:
    large = override(SMALL, ["--optimization.micro_tokens", "2000000"])
    assert "set optimization.micro_tokens to at most" in free(large, "activations")
    many = override(SMALL, ["--rollout.questions", "100000"])
    assert "set rollout.questions to at most" in free(many, "caches")
    with pytest.raises(ConfigurationError, match="take a smaller policy"):
        plan_run(SMALL, available=1000)
