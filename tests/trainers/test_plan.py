"""The planner: bytes by hand, a refusal for each thing that can be too large, and a probe that changes nothing."""

import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agentenv.errors import ConfigurationError
from agentenv.policies.lora import adapt
from agentenv.trainers.config.addresses import refuse_silent
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.plan import MemoryEstimate, available_memory, memory_of, plan_run

GIB = 2**30
WORDS = (
    "--threads 1 --rollout.questions 2 --rollout.group_size 4 --rollout.context_tokens 64 --rollout.turn_tokens 8 "
    "--test.world.seed 1"  # the questions of training would be refused as those of the test
)
SMALL = override(TrainConfig(), [*WORDS.split(), "--memory.micro_tokens", "256"])


def test_bytes_by_hand(qwen: Callable[..., Any]) -> None:
    """2 layers, 2 key/value heads of width 8, float32: 256 bytes of cache a token, twice, for 8 episodes of 64 tokens."""
    model = qwen()
    size = 4 * sum(p.numel() for p in model.parameters())
    assert memory_of(SMALL, model, 10.0) == MemoryEstimate(
        weights=size, optimizer=3 * size, caches=2 * 256 * 8 * 64, activations=2560, engines=0
    )
    ahead = [
        "--asynchronous.staleness",
        "2",
        "--rollout.deterministic",
        "false",
        "--loss.kl_coefficient",
        "0.1",
    ]
    more = memory_of(override(SMALL, ahead), model, 10.0)
    assert more.weights == 3 * size  # the learner's, the sampler's, the reference
    assert more.caches == 2 * 2 * 256 * 8 * 64  # twice the groups under way
    assert MemoryEstimate(100, 200, 300, 300, 100).total == 1200


def test_a_second_set_of_weights_counts_and_so_does_its_reference(qwen: Callable[..., Any]) -> None:
    first, second = qwen(), qwen(width=16)
    sizes = [4 * sum(p.numel() for p in model.parameters()) for model in (first, second)]
    penalty = override(SMALL, ["--loss.kl_coefficient", "0.1"])
    found = memory_of(penalty, first, 10.0, second=second)
    assert (found.weights, found.optimizer) == (2 * sum(sizes), 3 * sum(sizes))


def test_adapters_need_neither_a_reference_nor_a_second_copy_of_what_is_not_trained(
    qwen: Callable[..., Any],
) -> None:
    size = 4 * sum(p.numel() for p in qwen().parameters())
    model = adapt(qwen(), rank=4, alpha=8)
    adapters = 4 * sum(p.numel() for p in model.parameters()) - size
    words = "--asynchronous.staleness 1 --rollout.deterministic false --loss.kl_coefficient 0.1"
    found = memory_of(override(SMALL, words.split()), model, 10.0)
    assert (found.weights, found.optimizer) == (size + 2 * adapters, 3 * adapters)


def test_engines_started_here_count_and_servers_do_not(qwen: Callable[..., Any]) -> None:
    """Two replicas in two bytes a weight with half a GiB of keys and values each, and the file of new weights."""
    words = "--engine.kind vllm --rollout.deterministic false --engine.replicas 2 --engine.kv_gib 0.5"
    here = override(SMALL, [*words.split(), "--engine.dtype", "bfloat16"])
    weights = sum(p.numel() for p in qwen().parameters())
    found = memory_of(here, qwen(), 10.0)
    assert (found.engines, found.caches) == (2 * (2 * weights + GIB // 2) + 4 * weights, 0)
    there = override(here, ["--engine.urls", "http://a:1"])
    assert memory_of(there, qwen(), 10.0).engines == 0
    with pytest.raises(ConfigurationError, match=r"engine\.kv_gib.*engine\.replicas"):
        plan_run(here, available=GIB // 2)


def test_a_probe_predicts_and_leaves_no_trace() -> None:
    threads = torch.get_num_threads()
    plan = plan_run(SMALL)
    torch.set_num_threads(threads)
    assert plan["memory_gib"] <= plan["available_gib"]
    assert plan["sampled_tokens_per_s"] > 0
    assert plan["trained_tokens_per_s"] > 0
    assert plan["seconds_per_step"] >= 0
    assert "note" not in plan
    assert "clip_high=0.5" in plan_run(override(SMALL, ["--loss.clip_high", "0.5"]))["note"]
    assert set(plan["memory_parts_gib"]) == {"weights", "optimizer", "caches", "activations", "engines"}
    assert 0 < available_memory() < 1 << 50


def free(config: TrainConfig, missing: str, spare: float = 0.5) -> str:
    """What the plan says where there is room for all but ``1 - spare`` of the part ``missing``."""
    gib = plan_run(config, available=1 << 60)["memory_parts_gib"]
    others = 1.2 * sum(value for name, value in gib.items() if name != missing)
    with pytest.raises(ConfigurationError) as caught:
        plan_run(config, available=int((others + 1.2 * spare * gib[missing]) * GIB))
    return str(caught.value)


def test_what_does_not_fit_is_refused_with_what_to_change() -> None:
    large = override(SMALL, ["--memory.micro_tokens", "2000000"])
    assert "set memory.micro_tokens to at most" in free(large, "activations")
    many = override(SMALL, ["--rollout.questions", "100000"])
    assert "set rollout.questions to at most" in free(many, "caches")
    with pytest.raises(ConfigurationError, match="GiB"):
        plan_run(SMALL, available=1000)


def test_an_option_of_another_type_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(ConfigurationError, match="'three'"):
        plan_run(override(SMALL, ["--env.options.k", "three"]))


def test_a_plan_for_a_cluster_at_which_nobody_answers_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=address):
            refuse_silent(address)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        refuse_silent(f"127.0.0.1:{listening.getsockname()[1]}")
    refuse_silent("local")
