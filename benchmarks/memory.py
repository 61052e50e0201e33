"""Memory over a long training run: what the process holds while it makes thousands of small steps.

    python benchmarks/memory.py --steps 2000

A run with a random policy of one layer, with checkpoints, dumps of trajectories and dev evaluations as in a real one, so
that whatever leaks with the number of steps, episodes, evaluations or checkpoints shows within minutes. Every ``--every``
steps the resident memory, the open files, the threads and the steps' logs are counted. ``--staleness`` above 0 trains
asynchronously. The growth that is reported is the slope of a straight line through the second half.
"""

import argparse
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.policies.fakes import random_policy
from agentenv.trainers.config.config_files import load_config, parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder

from common import Silent, arguments, finish, run_script  # isort: skip  # sibling scripts
from soak import resident_mib  # isort: skip

WORLD: dict[str, Any] = {"documents": 200, "questions": 24}


def configure(args: argparse.Namespace, policy: Path) -> TrainConfig:
    """A run of small steps that does everything which a run does."""
    values = load_config("laptop-search").model_dump(mode="json", exclude_none=True)
    values |= {
        "policy": f"hf:{policy}",
        "threads": args.threads,
        "trajectories_every": 10,
        "checkpoint_every": 50,
    }
    values["search"]["encoder"] = "hash"
    for name in ("train", "dev", "test"):
        values[name]["world"] |= WORLD
    values["test"]["limit"] = values["dev"]["limit"] = 4
    values["optimizer"]["steps"] = args.steps
    values["evaluation"] |= {"every": 50, "bounds": False}
    budgets = {"questions": 2, "group_size": 2, "turn_tokens": 8, "deterministic": args.staleness == 0}
    values["rollout"] |= budgets
    values["asynchronous"] = {"staleness": args.staleness}
    return parse_config(values, "the benchmark")


class Census(Silent):
    """A display that counts what the process holds."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.training = False
        self.lines: list[dict[str, float]] = []

    def phase(self, name: str, total: int) -> None:
        """Evaluations are not counted."""
        self.training = name == "training"

    def advance(self, done: int, metrics: dict[str, Any]) -> None:
        """A step ended."""
        if self.training and done % self.every == 0:
            held = {"step": done, "mib": round(resident_mib(os.getpid()), 1)}
            held["descriptors"] = sum(1 for _ in Path("/proc/self/fd").iterdir())
            self.lines.append(held | {"threads": threading.active_count()})
            print(self.lines[-1], file=sys.stderr, flush=True)

    def warn(self, sentence: str) -> None:
        """Nothing: a random policy gives many."""


def main() -> None:
    """Trains, counts and writes the result file."""
    parser = arguments(__doc__ or "", steps=2000)
    parser.set_defaults(threads=1)
    parser.add_argument("--every", type=int, default=50, help="steps between two counts")
    parser.add_argument("--staleness", type=int, default=0, help="above 0: asynchronous training")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        policy = Path(place) / "policy"
        world = FictionalWorld.generate(WorldConfig(seed=1, split="train", **WORLD))
        random_policy(policy, [task.question for task in world.questions])
        census = Census(args.every)
        train(RunFolder.create(Path(place) / "run", configure(args, policy)), census)
    half = census.lines[len(census.lines) // 2 :]
    slope = (
        np.polyfit([line["step"] for line in half], [line["mib"] for line in half], 1)[0]
        if len(half) > 1
        else 0.0
    )
    figures = {
        "steps": args.steps,
        "staleness": args.staleness,
        "mib_first": census.lines[0]["mib"],
        "mib_last": census.lines[-1]["mib"],
        "mib_most": max(line["mib"] for line in census.lines),
        "kib_a_step_in_the_second_half": round(1024 * float(slope), 3),
        "descriptors": [census.lines[0]["descriptors"], census.lines[-1]["descriptors"]],
        "threads_of_python": [census.lines[0]["threads"], census.lines[-1]["threads"]],
        "counts": census.lines,
    }
    shown = {name: value for name, value in figures.items() if name != "counts"}
    finish(
        "memory" if args.staleness == 0 else "memory_asynchronous",
        args,
        figures,
        [f"{name:<32}{value}" for name, value in shown.items()],
    )


if __name__ == "__main__":
    run_script(main)
