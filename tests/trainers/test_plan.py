"""The planner: bytes by hand, a refusal for each thing that can be too large, and a probe that changes nothing."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.errors import ConfigurationError
from agentenv.policies.fake_architectures import tiny_model
from agentenv.policies.fake_reader import random_reader
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import adapt
from agentenv.policies.tiny import shipped_weights
from agentenv.trainers import plan as planner
from agentenv.trainers.config.addresses import refuse_silent
from agentenv.trainers.config.config_files import load_config, override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.loop.parts import open_trained
from agentenv.trainers.plan import MemoryEstimate, available_memory, memory_of, plan_run, quadratic_through

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


def test_bytes_of_three_rows_give_a_constant_the_tokens_and_their_square() -> None:
    """5 + 3 n + 2 n^2 at n = 10, 20 and 30; a line has no square, and one that bends down is none."""
    assert quadratic_through(10, (235, 865, 1895)) == pytest.approx((5, 3, 2))
    assert quadratic_through(10, (35, 65, 95)) == pytest.approx((5, 3, 0))
    assert quadratic_through(10, (35, 65, 94))[2] == 0


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_what_attention_keeps_of_each_pair_of_tokens_counts(qwen: Callable[..., Any], kernel: str) -> None:
    """A row that fills the context saves what is estimated from rows of up to half of it; eager attention keeps its weights.

    What is saved for no token counts twice, with its gradient.
    """
    model = qwen(context=512)
    model.set_attn_implementation(kernel)
    policy = HFPolicy(model, ByteTokenizer())
    config = override(SMALL, ["--rollout.context_tokens", "480"])
    token_bytes, pass_bytes = planner._probe_memory(policy, config)
    learner = Learner(model, Objective(micro_tokens=480), learning_rate=1e-9)
    whole = planner._saved_bytes(learner, planner._made_up_row(policy, 480))
    assert token_bytes * 480 + pass_bytes / 2 == pytest.approx(whole, rel=0.02)


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


def described(root: Path, groups: dict[str, tuple[str, int, int]], inner: str) -> Path:
    """A system with 8 GiB free whose control groups have a bound, what they take, and how much of that are files."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {8 * 2**20} kB\n")
    (root / "proc/self/cgroup").write_text(f"1:name=systemd:/elsewhere\n0::{inner}\n")
    for name, (bound, used, files) in groups.items():
        folder = root / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{bound}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {files - 7}\nactive_file 7\n")
    return root


@pytest.mark.parametrize(
    ("groups", "inner", "free"),
    [
        ({}, "/", 8 * GIB),
        ({"": ("max", GIB, 7)}, "/", 8 * GIB),
        ({"": (str(4 * GIB), GIB, 7)}, "/", 3 * GIB + 7),
        # Files that were read are dropped when somebody wants their place.
        ({"": (str(4 * GIB), 4 * GIB, 3 * GIB)}, "/", 3 * GIB),
        ({"slurm/job": (str(2 * GIB), GIB, 7), "slurm": ("max", 5 * GIB, 7)}, "/slurm/job", GIB + 7),
        ({"slurm/job": ("max", GIB, 7), "slurm": (str(2 * GIB), GIB, 7)}, "/slurm/job", GIB + 7),
        ({"": (str(GIB), 2 * GIB, 7)}, "/", 0),
    ],
)
def test_free_is_what_every_control_group_around_the_process_allows(
    tmp_path: Path, groups: dict[str, tuple[str, int, int]], inner: str, free: int
) -> None:
    assert available_memory(root=described(tmp_path, groups, inner)) == free


def test_what_is_free_is_asked_before_the_weights_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate contains them: after they are loaded they would be counted twice."""
    asked: list[str] = []
    opened = open_trained

    def free(device: torch.device) -> int:
        asked.append("free")
        return 1 << 40

    def weights(config: TrainConfig) -> HFPolicy:
        asked.append("weights")
        return opened(config)

    monkeypatch.setattr(planner, "available_memory", free)
    monkeypatch.setattr(planner, "open_trained", weights)
    plan_run(SMALL)
    assert asked == ["free", "weights"]


@pytest.mark.parametrize("share", [0.5, 3.0])
def test_what_is_far_too_large_is_refused_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Weights alone do not fit, or not with what the optimiser keeps: a probe could fill the memory and end the process."""
    monkeypatch.setattr(Learner, "accumulate", None)
    monkeypatch.setattr(HFPolicy, "generate", None)
    size = sum(file.stat().st_size for file in shipped_weights().glob("*.safetensors"))
    with pytest.raises(ConfigurationError, match="smaller policy"):
        plan_run(SMALL, available=int(share * size))


def test_caches_that_are_freed_before_the_learner_runs_are_not_added_to_its_activations(
    qwen: Callable[..., Any],
) -> None:
    """On the CPU slots stay for the next batch, and in asynchronous training episodes go on while the learner works."""
    assert MemoryEstimate(100, 200, 300, 400, 0, caches_freed=True).total == 1.2 * (100 + 200 + 400)
    assert MemoryEstimate(100, 200, 300, 400, 0).total == 1.2 * 1000
    words = "--asynchronous.staleness 1 --rollout.deterministic false"
    assert memory_of(SMALL, qwen().to("meta"), 10.0).caches_freed
    assert not memory_of(SMALL, qwen(), 10.0).caches_freed
    assert not memory_of(override(SMALL, words.split()), qwen().to("meta"), 10.0).caches_freed


@pytest.mark.parametrize(
    ("caches", "activations", "change"),
    [
        (100, 4000, "set memory.micro_tokens to at most 250, "),
        (1600, 64, "set rollout.questions to at most 1 and memory.micro_tokens to 1000"),
        (1600, 4000, "set rollout.questions to at most 1 and memory.micro_tokens to 250"),
    ],
)
def test_the_advice_where_caches_are_freed_counts_the_larger_of_both(
    caches: int, activations: int, change: str
) -> None:
    """Of 1440 bytes a sixth is set aside and weights take 200: 1000 tokens of 4 bytes or 8 episodes of 200 are too many."""
    config = override(SMALL, ["--memory.micro_tokens", "1000"])
    memory = MemoryEstimate(200, 0, caches, activations, 0, caches_freed=True)
    assert change in planner._refusal(config, memory, 1440, activations / 1000)


def test_an_allocation_that_fails_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "accumulate", lambda *_: torch.empty(1 << 60))
    with pytest.raises(ConfigurationError, match=r"context_tokens.*smaller policy"):
        plan_run(SMALL)


def test_a_context_that_the_policy_cannot_read_is_refused_as_by_the_run() -> None:
    with pytest.raises(ConfigurationError, match="99999"):
        plan_run(override(SMALL, ["--rollout.context_tokens", "99999"]))


def test_heads_that_all_hold_keys_are_counted() -> None:
    """GPT-NeoX names no number of heads that hold keys: 2 layers, 4 heads of width 8, float32."""
    model = tiny_model("gpt_neox")
    shape = model.config
    token = 2 * shape.num_hidden_layers * shape.hidden_size * 4
    assert memory_of(SMALL, model, 10.0).caches == 2 * token * 8 * 64


def test_what_the_host_holds_is_not_counted_on_the_device(qwen: Callable[..., Any]) -> None:
    model = qwen()
    size = 4 * sum(p.numel() for p in model.parameters())
    config = override(SMALL, ["--memory.offload_optimizer", "true"])
    assert memory_of(config, model, 10.0).optimizer == 3 * size  # all of it is the memory of the host
    assert memory_of(config, model.to("meta"), 10.0).optimizer == size


@pytest.mark.parametrize("words", ["--compute.dtype bfloat16", "--memory.precision bfloat16"])
@pytest.mark.parametrize("own", [False, True])
def test_bfloat16_on_a_processor_without_it_is_honoured_with_a_note(
    monkeypatch: pytest.MonkeyPatch, words: str, own: bool
) -> None:
    monkeypatch.setattr("agentenv.trainers.config.train_config.multiplies_bfloat16", lambda _: own)
    named = override(SMALL, [*words.split(), "--compute.device", "cpu"])
    assert ("bfloat16" in named.precision_note) == (not own)
    assert not override(SMALL, ["--compute.device", "cpu"]).precision_note


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


def test_a_reader_of_passages_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no rows of made-up tokens: what it reads stands in the text of an episode."""
    reader = random_reader(["Who is it?", "Ulm Ada"])
    monkeypatch.setattr(planner, "open_trained", lambda config: reader)
    with pytest.raises(ConfigurationError, match=r"is a reader of passages.* Train it without --plan"):
        plan_run(load_config("laptop-search"))
