"""A vLLM engine beside ``HFPolicy``: sampled tokens a second, what an earlier turn saves, how far log-probs are apart.

Episodes are made up: a prompt, then turns of a few dozen sampled tokens, each followed by an observation. Both engines get
the same ones. Seconds of the processor are counted as well as those of the clock, since other work may run on the machine.

    python benchmarks/vllm_engine.py --policy tiny --episodes 1 8 64
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import torch
from common import RESULTS, common_arguments, finish, run_script, write

from agentenv.core.types import Sampling
from agentenv.policies.engine import EngineConfig
from agentenv.policies.hf import HFPolicy
from agentenv.policies.policy_spec import policy_folder
from agentenv.policies.vllm import VLLMPolicy

PROMPT, OBSERVATION, SAMPLED, TURNS = 96, 64, 32, 4
LONG_TURNS = 8
SAMPLES = 16
HOT = 2.0  # an end of turn is rare, so that both sample about equally many tokens


def processor_seconds() -> float:
    """Of this process and all under it."""
    times = [p.cpu_times() for p in (psutil.Process(), *psutil.Process().children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


def ids_of(rng: np.random.Generator, count: int, vocabulary: int) -> list[int]:
    """Made-up tokens without the special ones at the beginning of the vocabulary."""
    return [int(i) for i in rng.integers(8, vocabulary - 32, count)]


async def episode(policy: Any, name: str, seed: int, vocabulary: int) -> int:
    """Plays one episode; tokens that were sampled."""
    rng = np.random.default_rng(seed)
    ids, count = ids_of(rng, PROMPT, vocabulary), 0
    for turn in range(TURNS):
        done = await policy.generate(ids, Sampling(SAMPLED, HOT, seed=seed + turn), episode=name)
        count += len(done.ids)
        ids += [*done.ids, *ids_of(rng, OBSERVATION, vocabulary)]
    policy.release(name)
    return count


def speed(policy: Any, concurrent: int, vocabulary: int, rounds: int) -> dict[str, float]:
    """Sampled tokens a second with so many episodes at a time."""

    async def play(first: int) -> int:
        work = (episode(policy, f"e{first + i}", first + i, vocabulary) for i in range(concurrent))
        return sum(await asyncio.gather(*work))

    asyncio.run(play(10_000))
    began, used = time.perf_counter(), processor_seconds()
    tokens = sum(asyncio.run(play(20_000 + 1000 * i)) for i in range(rounds))
    seconds, used = time.perf_counter() - began, processor_seconds() - used
    return {
        "tokens": tokens,
        "tokens_per_second": round(tokens / seconds, 1),
        "tokens_per_processor_second": round(tokens / used, 1),
    }


def turns(policy: Any, vocabulary: int, *, kept: bool, rounds: int) -> list[float]:
    """Median seconds to the first token of each turn, with what was kept of the turns before or without."""
    found: list[list[float]] = [[] for _ in range(LONG_TURNS)]
    for attempt in range(rounds):
        rng = np.random.default_rng(attempt)
        ids = ids_of(rng, PROMPT, vocabulary)
        for turn in range(LONG_TURNS):
            if not kept:
                ids = ids_of(rng, len(ids), vocabulary)
            began = time.perf_counter()
            done = asyncio.run(policy.generate(ids, Sampling(1, HOT), episode="long" if kept else None))
            found[turn].append(time.perf_counter() - began)
            ids += [*done.ids, *ids_of(rng, PROMPT - 1, vocabulary)]
        policy.release("long")
    return [round(statistics.median(mine), 5) for mine in found]


def agreement(policy: VLLMPolicy, hf: HFPolicy, vocabulary: int) -> dict[str, Any]:
    """How far recorded log-probs are from the trainer's on the same ids, and how many greedy samples are equal."""
    rng, gaps, equal = np.random.default_rng(0), [], 0
    for seed in range(SAMPLES):
        prompt = ids_of(rng, PROMPT, vocabulary)
        done = asyncio.run(policy.generate(prompt, Sampling(SAMPLED, seed=seed)))
        scores = asyncio.run(hf.score([*prompt, *done.ids]))[len(prompt) :]
        gaps += list(np.abs(np.subtract(scores, done.logprobs)))
        greedy = Sampling(SAMPLED, temperature=0.0)
        one, other = (asyncio.run(p.generate(prompt, greedy)) for p in (policy, hf))
        equal += one.ids == other.ids
    return {
        "tokens": len(gaps),
        "largest_gap_nats": float(max(gaps)),
        "mean_gap_nats": float(np.mean(gaps)),
        "equal_greedy_samples": f"{equal} of {SAMPLES}",
    }


def timed(work: Callable[[], None], rounds: int) -> float:
    """Median seconds of ``work``."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return round(statistics.median(found), 4)


def measure(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Fills in ``figures``, which stand in the result file after each part."""
    torch.set_num_threads(args.threads)
    folder = policy_folder(args.policy)
    hf = HFPolicy.load(folder)
    vocabulary = min(hf.model.config.vocab_size, len(hf.tokenizer))
    config = EngineConfig(kind="vllm", threads=args.threads, start_s=1800, deadline_s=1800)
    began = time.perf_counter()
    with VLLMPolicy.load(folder, config, hf.model) as engine:
        figures["start_seconds"] = round(time.perf_counter() - began, 1)
        pair: dict[str, Any] = {"vllm": engine, "hf": hf}
        figures["load_of_the_machine"] = [round(os.getloadavg()[0], 1)]
        figures["new_weights_seconds"] = timed(engine.set_weights, 3)
        figures["concurrent_episodes"] = {}
        for n in args.episodes:
            found = {name: speed(policy, n, vocabulary, args.rounds) for name, policy in pair.items()}
            figures["concurrent_episodes"][str(n)] = found
            write("vllm_engine", args, figures)
        figures["first_token_seconds_by_turn"] = {"new_tokens_a_turn": PROMPT} | {
            name: {
                "kept": turns(policy, vocabulary, kept=True, rounds=args.rounds * 3),
                "not_kept": turns(policy, vocabulary, kept=False, rounds=args.rounds * 3),
            }
            for name, policy in pair.items()
        }
        write("vllm_engine", args, figures)
        figures["agreement"] = agreement(engine, hf, vocabulary)
        figures["load_of_the_machine"].append(round(os.getloadavg()[0], 1))


def main() -> None:
    """Measures and writes the result file."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--policy", default="tiny", help="tiny or hf:PATH")
    parser.add_argument("--episodes", type=int, nargs="+", default=[1, 8, 64], help="episodes at a time")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions")
    parser.set_defaults(out=RESULTS / "vllm.json")
    args = parser.parse_args()
    figures: dict[str, Any] = {"policy": args.policy, "threads": args.threads}
    measure(args, figures)
    finish("vllm_engine", args, figures, [f"{name}: {value}" for name, value in figures.items()])


if __name__ == "__main__":
    run_script(main)
