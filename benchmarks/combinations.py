"""Every rollout strategy with every correction, synchronous and asynchronous: it makes two steps, or is refused when read.

    python benchmarks/combinations.py --pairs
    python benchmarks/combinations.py --share 0.2

A combination is a strategy, ``loss.proximal``, ``loss.correction.mode``, ``loss.correction.off_context``, a staleness of 0
or 1, and an engine. The configuration is read for all of them. Those that are accepted with one of ``--engines`` are trained
for two steps of the shipped policy, all in this process: with ``--pairs`` as many as it takes for every pair of values of
every two factors to be trained once (drawn by ``--seed``, those with the most new pairs first), otherwise a ``--share``.
What an accepted one raises is a failure, and so is one that makes another number of steps. A pair that is accepted in no
combination is listed with the sentence that refuses it. ``--limit`` stops after that many trained combinations: one with an
engine of vLLM takes minutes on a CPU.
"""

import argparse
import gzip
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations as combinations_of
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.errors import ConfigurationError
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.strategies.strategies import STRATEGIES

from common import arguments, finish, run_script  # isort: skip  # sibling scripts

PROXIMAL = (None, "sampler", "recompute", "interpolate")
MODES = (None, "none", "truncate", "mask")
OFF_CONTEXT = (None, "recompute", "weight", "rescore", "ratio")
ENGINES = ("hf", "vllm")
Pair = tuple[tuple[str, Any], ...]
"""Two factors, each with a value."""
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
                # Mistakes are what rollbacks, hints and critiques begin with; vLLM takes no more than 2.
                "temperature": 3.0 if self.engine == "hf" else 2.0,
                "deterministic": not ahead and self.engine == "hf",
                "strategy": self.strategy,
            },
            "asynchronous": {"staleness": self.staleness},
            "engine": {"kind": self.engine} | ({"kv_gib": 0.25} if self.engine == "vllm" else {}),
            "optimizer": {"steps": 2},
            "loss": {"correction": {name: value for name, value in correction.items() if value is not None}},
            "evaluation": {"every": 0, "bounds": False},
        }
        if self.proximal is not None:
            values["loss"]["proximal"] = self.proximal
        if self.strategy == "self_play":
            values["env"]["id"] = "agentenv/SearchSolver-v0"
            values["train"]["topics"] = True
            values["rollout"] |= {
                "strategy_options": {"checks": [], "searches": [1, 1]},
                "sampler": "self_play",
            }
            values["loss"]["estimator"] = "role_wise"
        elif self.strategy == "rollback":
            values["rollout"] |= {"questions": 4, "strategy_options": {"retries": 8, "threshold": 0.0}}
        elif self.strategy == "judge":
            values["rollout"]["strategy_options"] = {"verdict": "<"}  # almost every action holds it
        elif self.strategy == "reflect_retry":
            values["rollout"]["strategy_options"] = {"reflector": "rule"}
        elif self.strategy == "critical_step":
            values["loss"]["kl_coefficient"] = 1e-3  # its pairs are learned against the initial policy
        elif self.strategy == "self_search":
            values["env"] = {"id": "agentenv/SelfSearch-v0"}
        return parse_config(values, "the benchmark")


def combinations() -> Iterator[Combination]:
    """All of them."""
    rows = product(STRATEGIES, PROXIMAL, MODES, OFF_CONTEXT, (0, 1), ENGINES)
    return (Combination(*row) for row in rows)


def trained(config: TrainConfig) -> tuple[int, int]:
    """Steps that a run has made, and its episodes that were spliced, retried, or are of a branch or a demonstration."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", config)
        train(folder, SilentDisplay())
        texts = (gzip.decompress(path.read_bytes()) for path in (folder.path / "trajectories").iterdir())
        origins = [json.loads(line)["origin"] for text in texts for line in text.splitlines()]
        return len(folder.history()), sum(origin != "base" for origin in origins)


def pairs(row: Combination) -> set[Pair]:
    """The values of every two factors of ``row``."""
    return set(combinations_of(zip(row._fields, row, strict=True), 2))


def covering(rows: Sequence[Combination], seed: int) -> list[Combination]:
    """Rows that together have every pair of ``rows``; each is one of those that add the most, of these the first drawn."""
    drawn = {row: pairs(row) for row in random.Random(seed).sample(rows, len(rows))}
    missing, chosen = set[Pair]().union(*drawn.values()), []
    while missing:
        chosen.append(max(drawn, key=lambda row: len(drawn[row] & missing)))
        missing -= drawn[chosen[-1]]
    return chosen


def main() -> None:
    """Reads all, trains those that are drawn, and writes the result file."""
    parser = arguments(__doc__ or "", steps=2)
    parser.set_defaults(threads=1)
    parser.add_argument("--pairs", action="store_true", help="train every pair of values of two factors once")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the accepted combinations that are trained"
    )
    parser.add_argument("--strategy", nargs="*", default=list(STRATEGIES), help="strategies that are tried")
    parser.add_argument(
        "--engines", nargs="*", default=["hf"], choices=ENGINES, help="engines that are tried"
    )
    parser.add_argument("--limit", type=int, help="most combinations that are trained; by default no limit")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    args = parser.parse_args()
    accepted, refused = read(args)
    rng = random.Random(args.seed)
    drawn = (
        covering(accepted, args.seed) if args.pairs else [r for r in accepted if rng.random() < args.share]
    )
    rows = [attempt(row, args.threads) for row in drawn[: args.limit]]
    figures = summary(accepted, refused, drawn, rows)
    shown = {name: value for name, value in figures.items() if isinstance(value, int)}
    finish("combinations", args, figures, [f"{name:<32}{value}" for name, value in shown.items()])
    sys.exit(1 if figures["failures"] else 0)


def read(args: argparse.Namespace) -> tuple[list[Combination], dict[Combination, str]]:
    """Which combinations are accepted, and why the others are refused."""
    accepted, refused = [], {}
    for row in combinations():
        if row.strategy not in args.strategy or row.engine not in args.engines:
            continue
        try:
            row.config(args.threads)
        except ConfigurationError as error:
            refused[row] = str(error)
        else:
            accepted.append(row)
    return accepted, refused


def attempt(row: Combination, threads: int) -> dict[str, Any]:
    """A row of the result file: what one accepted combination did."""
    try:
        steps, changed = trained(row.config(threads))
        told = {
            "result": "ran" if steps == 2 else "failed",
            "steps": steps,
            "episodes_not_of_the_base": changed,
        }
    except Exception as error:
        told = {"result": "failed", "error": f"{type(error).__name__}: {error}"}
    print(*row, told, file=sys.stderr, flush=True)
    return row._asdict() | told


def summary(
    accepted: Sequence[Combination],
    refused: Mapping[Combination, str],
    drawn: Sequence[Combination],
    rows: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What the result file says beside the command."""
    held = set[Pair]().union(*map(pairs, accepted))
    tried = set[Pair]().union(*map(pairs, drawn[: len(rows)]))
    never: dict[Pair, Combination] = {}
    for row in refused:
        never |= {pair: row for pair in pairs(row) if pair not in held and pair not in never}
    return {
        "accepted": len(accepted),
        "refused": len(refused),
        "trained": len(rows),
        "failures": sum(row["result"] != "ran" for row in rows),
        "pairs_accepted": len(held),
        "pairs_trained": len(tried),
        "pairs_refused": [
            {"pair": dict(pair), "example": row._asdict(), "result": "refused", "sentence": refused[row]}
            for pair, row in never.items()
        ],
        "refusals": dict(Counter(refused.values())),
        "combinations": list(rows),
    }


if __name__ == "__main__":
    run_script(main)
