"""Asynchronous against synchronous training where tools are slow: wall time of equal work.

    python benchmarks/async_training.py

Every turn of an episode waits for a tool: seconds from a Pareto law of index 1 cut to ``--fastest`` and ``--slowest``, drawn
by the seed of the episode and its turn, so that every run meets the same ones. The runs do the same optimiser steps on as
many episodes; only ``asynchronous.staleness`` differs. Batches are formed by arrival in all of them; the synchronous run is
also made with batches by episode index (``deterministic``), where every turn waits for the slowest.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.core.registry import register
from agentenv.core.types import Step
from agentenv.envs.search.local_search import LocalSearch
from agentenv.trainers.config.config_files import load_config, parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder

from common import arguments, finish, run_script  # isort: skip  # sibling scripts
from throughput import Clock  # isort: skip

ENV = "bench/SlowSearch-v0"
WORLD = {"documents": 200, "questions": 60}
FIGURES = ("staleness_mean", "staleness_max", "spanning_episodes", "reward_mean")


class SlowSearch(LocalSearch):
    """LocalSearch whose every turn takes a while."""

    def __init__(self, *, fastest: float, slowest: float, **options: Any) -> None:
        """Takes the bounds of the law, in seconds, and what LocalSearch takes."""
        super().__init__(**options)
        self._fastest, self._slowest = fastest, slowest

    async def astep(self, action: str) -> Step:
        """Waits for the tool, then acts."""
        share = float(np.random.default_rng([self.state.seed, self.state.turns]).random())
        await asyncio.sleep(pareto(share, self._fastest, self._slowest))
        return await super().astep(action)


def pareto(share: float, low: float, high: float) -> float:
    """The quantile ``share`` of the Pareto law of index 1 cut to [low, high]; its mean is near low * log(high / low)."""
    return low / (1 - share * (1 - low / high))


def configure(args: argparse.Namespace, staleness: int, deterministic: bool) -> TrainConfig:
    """Equal work for every staleness."""
    values = load_config("laptop-search").model_dump(mode="json", exclude_none=True)
    values |= {"policy": args.policy, "threads": args.threads, "trajectories_every": 0}
    values["env"]["id"] = ENV
    values["env"]["options"] |= {"fastest": args.fastest, "slowest": args.slowest}
    values["search"]["encoder"] = "hash"
    for name in ("train", "dev", "test"):
        values[name]["world"] |= WORLD
    values["test"]["limit"] = 1
    values["optimizer"]["steps"] = args.warmup + args.steps
    values["evaluation"] |= {"every": 0, "bounds": False}
    values["checkpoint_every"] = args.warmup + args.steps
    values["rollout"] |= {
        "questions": args.questions,
        "group_size": args.group_size,
        "deterministic": deterministic,
    }
    values["asynchronous"] = {"staleness": staleness, "concurrent": args.questions * (staleness + 1)}
    return parse_config(values, "the benchmark")


def measure(config: TrainConfig, warmup: int) -> dict[str, Any]:
    """Seconds of the steps after the first ``warmup``, and how old the tokens were."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", config)
        train(folder, clock)
        lines, timings = folder.history()[warmup:], folder.history("timings")[warmup:]
    return {
        "seconds": clock.ends[-1] - clock.ends[warmup],
        "seconds_waited": sum(line["rollout"] for line in timings),
        "episodes": sum(line["rollouts"] for line in lines),
        "faults": sum(line["faults"] for line in lines),
    } | {name: sum(ln.get(name, 0) for ln in lines) / len(lines) for name in FIGURES}


def main() -> None:
    """Measures and reports."""
    parser = arguments(__doc__ or "", steps=16)
    parser.set_defaults(warmup=0)  # rollouts ahead begin in the first step: it belongs to the work
    parser.add_argument("--questions", type=int, default=8, help="groups a step")
    parser.add_argument("--group-size", type=int, default=4, help="episodes a group")
    parser.add_argument("--fastest", type=float, default=0.1, help="seconds of the fastest tool")
    parser.add_argument("--slowest", type=float, default=10.0, help="seconds of the slowest tool")
    parser.add_argument(
        "--staleness", type=int, nargs="+", default=[1, 2, 4, 8], help="bounds that are tried"
    )
    args = parser.parse_args()
    register(ENV, "async_training:SlowSearch")
    runs = {"synchronous, deterministic": (0, True), "synchronous": (0, False)}
    runs |= {f"staleness {bound}": (bound, False) for bound in args.staleness}
    figures = {name: measure(configure(args, *how), args.warmup) for name, how in runs.items()}
    base = figures["synchronous"]["seconds"]
    for one in figures.values():
        one["speedup"] = base / one["seconds"]
    lines = [
        f"{name:<28}{one['seconds']:>8.1f} s  {one['speedup']:>6.2f} times" for name, one in figures.items()
    ]
    finish("async_training", args, {"steps": args.steps, "runs": figures}, lines)


if __name__ == "__main__":
    run_script(main)
