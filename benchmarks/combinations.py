"""Every rollout strategy with every correction, synchronous and asynchronous: it makes two steps, or is refused when read.

    python benchmarks/combinations.py --share 0.2

A combination is a strategy, ``optimization.proximal``, ``correction.mode``, ``correction.off_context``, a staleness of 0 or
1, and an engine. The configuration is read for all of them; those that are accepted with the engine ``hf`` are trained for
two steps of the shipped policy, ``--share`` of them drawn by ``--seed``. What an accepted one raises is a failure. With
``--vllm`` those with engines of vLLM are trained too, which takes minutes each on a CPU; otherwise they are read only.
"""

import argparse
import gzip
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.errors import ConfigurationError
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.strategies.strategies import STRATEGIES

from common import arguments, finish  # type: ignore[import-not-found]  # isort: skip  # sibling scripts

PROXIMAL = (None, "sampler", "recompute", "interpolate")
MODES = (None, "none", "truncate", "mask")
FOREIGN = (None, "recompute", "weight", "rescore", "ratio")
WORLD: dict[str, Any] = {"documents": 200, "questions": 12, "families": ["lookup"], "hops": [1, 1]}


class Combination(NamedTuple):
    """One row of the product."""

    strategy: str
    proximal: str | None
    mode: str | None
    off_context: str | None
    staleness: int
    engine: str

    def config(self, threads: int) -> TrainConfig:
        """A run of two steps.

        Raises:
            ConfigurationError: the combination is refused.
        """
        ahead = self.staleness > 0
        correction = {"mode": self.mode, "off_context": self.off_context}
        values: dict[str, Any] = {
            "threads": threads,
            "trajectories_every": 1,
            "env": {"options": {"k": 1, "max_turns": 3, "observation_tokens": 96, "prompt": "{question}"}},
            "search": {"encoder": "hash"},
            "train": {"world": WORLD | {"seed": 1, "split": "train"}},
            "dev": {"world": WORLD | {"seed": 2, "split": "dev"}},
            "test": {"limit": 1, "world": WORLD | {"seed": 3, "split": "test"}},
            "rollout": {
                "questions": 2,
                "group_size": 4,
                "turn_tokens": 24,
                "context_tokens": 512,
                "temperature": 3.0,  # mistakes, which is what rollbacks, hints and critiques begin with
                "deterministic": not ahead and self.engine == "hf",
                "strategy": self.strategy,
            },
            "asynchronous": {"staleness": self.staleness},
            "engine": {"kind": self.engine},
            "optimization": {
                "steps": 2,
                "correction": {name: value for name, value in correction.items() if value is not None},
            },
            "evaluation": {"every": 0, "bounds": False},
        }
        if self.proximal is not None:
            values["optimization"]["proximal"] = self.proximal
        if self.strategy == "self_play":
            values["env"]["id"] = "agentenv/SearchSolver-v0"
            values["train"]["topics"] = True
            values["rollout"] |= {
                "strategy_options": {"checks": [], "searches": [1, 1]},
                "sampler": "self_play",
            }
            values["optimization"]["estimator"] = "role_wise"
        elif self.strategy == "rollback":
            values["rollout"] |= {"questions": 4, "strategy_options": {"retries": 8, "threshold": 0.0}}
        elif self.strategy == "judge":
            values["rollout"]["strategy_options"] = {"verdict": "<"}  # almost every action holds it
        elif self.strategy == "reflect_retry":
            values["rollout"]["strategy_options"] = {"reflector": "rule"}
        elif self.strategy == "self_search":
            values["env"] = {"id": "agentenv/SelfSearch-v0"}
        return parse_config(values, "the benchmark")


def combinations() -> Iterator[Combination]:
    """All of them."""
    rows = product(STRATEGIES, PROXIMAL, MODES, FOREIGN, (0, 1), ("hf", "vllm"))
    return (Combination(*row) for row in rows)


class Quiet:
    """A display that shows nothing."""

    def phase(self, name: str, total: int) -> None:
        """Nothing."""

    def advance(self, done: int, figures: dict[str, Any]) -> None:
        """Nothing."""

    def warn(self, sentence: str) -> None:
        """Nothing: the shipped policy is not made for this temperature."""


def trained(config: TrainConfig) -> tuple[int, int]:
    """Steps that a run has made, and its episodes that were spliced, retried, or are of a branch or a demonstration."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", config)
        train(folder, Quiet())
        texts = (gzip.decompress(path.read_bytes()) for path in (folder.path / "trajectories").iterdir())
        origins = [json.loads(line)["origin"] for text in texts for line in text.splitlines()]
        return len(folder.history()), sum(origin != "base" for origin in origins)


def main() -> None:
    """Reads all, trains a share, and writes the result file."""
    parser = arguments(__doc__ or "", steps=2)
    parser.set_defaults(threads=1)
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the accepted combinations that are trained"
    )
    parser.add_argument("--strategy", nargs="*", default=list(STRATEGIES), help="strategies that are tried")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--vllm", action="store_true", help="train with engines of vLLM too")
    args = parser.parse_args()
    figures = tried(args)
    finish("combinations", args, figures, [f"{name:<32}{value}" for name, value in figures.items()])
    sys.exit(1 if figures["failures"] else 0)


def tried(args: argparse.Namespace) -> dict[str, Any]:
    """Counts of what was read and trained, and what failed."""
    rng, counts = random.Random(args.seed), Counter[str]()
    per_strategy: dict[str, Counter[str]] = {name: Counter() for name in args.strategy}
    failures: list[str] = []
    for row in combinations():
        if row.strategy not in per_strategy:
            continue
        try:
            config = row.config(args.threads)
        except ConfigurationError:
            counts["refused"] += 1
            continue
        counts[f"accepted_{row.engine}"] += 1
        if rng.random() >= args.share or (row.engine == "vllm" and not args.vllm):
            continue
        try:
            steps, changed = trained(config)
        except Exception as error:
            failures.append(f"{row}: {type(error).__name__}: {error}")
            print(failures[-1], file=sys.stderr, flush=True)
            continue
        counts["trained"] += 1
        per_strategy[row.strategy].update(trained=1, episodes_not_of_the_base=changed)
        if steps != 2:
            failures.append(f"{row}: {steps} steps")
    by_strategy = {name: dict(found) for name, found in per_strategy.items()}
    return dict(counts) | {
        "by_strategy": by_strategy,
        "failures": len(failures),
        "first_failures": failures[:10],
    }


if __name__ == "__main__":
    main()
