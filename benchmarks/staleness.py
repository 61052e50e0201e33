"""Learning curves at staleness 0, 1, 4 and 8: whether asynchronous training learns what synchronous training learns.

    python benchmarks/staleness.py --seeds 5

Each seed trains the preset once with every bound, on equal questions and as many episodes. Where nothing waits for tools
the learner is the slow part, and the age of what it trains on goes to the bound and stays: the hardest case. Three figures
are compared: the mean of the dev scores along the run, the score of the trained policy, and the mean reward of the last
``--window`` steps, which is that of the older weights that sampled them and lags behind while a policy still improves. The
result file has their means and 95 % intervals over the seeds (Student's t), and the intervals of their differences from
staleness 0, paired by seed. Results are written after every run.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.trainers.config.config_files import load_config, parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder

from common import arguments, finish, interval, run_script, write  # isort: skip  # sibling scripts
from throughput import Clock  # isort: skip


def configure(args: argparse.Namespace, staleness: int, seed: int) -> TrainConfig:
    """The preset at one bound; batches are formed by arrival at every bound."""
    values = load_config(args.preset).model_dump(mode="json", exclude_none=True)
    values |= {"policy": args.policy, "threads": args.threads, "seed": seed, "trajectories_every": 0}
    values["optimizer"]["steps"] = args.warmup + args.steps
    values["rollout"]["deterministic"] = False
    values["asynchronous"] = {"staleness": staleness}
    values["evaluation"] |= {"every": args.every, "bounds": False}
    return parse_config(values, args.preset)


def curve(config: TrainConfig) -> dict[str, Any]:
    """Rewards by step, ages, and the score after training."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", config)
        results = train(folder, Clock())
        lines = folder.history()
    return {
        "seed": config.seed,
        "rewards": [line["reward_mean"] for line in lines],
        "dev": [line["dev_score"] for line in lines if "dev_score" in line],
        "staleness_mean": fmean(line.get("staleness_mean", 0.0) for line in lines),
        "after": results["after"]["mean"],
    }


def summary(curves: dict[int, list[dict[str, Any]]], window: int) -> dict[str, Any]:
    """Intervals over the seeds, and of the differences from the lowest bound."""
    figures = {
        "reward": {
            bound: [fmean(run["rewards"][-window:]) for run in runs] for bound, runs in curves.items()
        },
        "dev": {bound: [fmean(run["dev"]) for run in runs] for bound, runs in curves.items()},
        "after": {bound: [run["after"] for run in runs] for bound, runs in curves.items()},
    }

    def of(name: str, bound: int) -> dict[str, Any]:
        mine, base = figures[name][bound], figures[name][min(curves)]
        return interval(mine) | {"difference": interval([a - b for a, b in zip(mine, base, strict=False)])}

    return {str(bound): {name: of(name, bound) for name in figures} for bound in curves}


def main() -> None:
    """Trains, compares, reports."""
    parser = arguments(__doc__ or "", steps=115)
    parser.add_argument("--preset", default="laptop-search", help="a preset or a TOML file")
    parser.add_argument("--seeds", type=int, default=5, help="runs at each bound")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4, 8], help="the bounds")
    parser.add_argument("--every", type=int, default=2, help="steps from one dev score to the next")
    parser.add_argument("--window", type=int, default=20, help="last steps that are compared")
    args = parser.parse_args()
    curves: dict[int, list[dict[str, Any]]] = {}
    figures: dict[str, Any] = {}
    for seed in range(args.seeds):
        for bound in args.staleness:
            curves.setdefault(bound, []).append(curve(configure(args, bound, seed)))
            figures = {"summary": summary(curves, args.window), "curves": curves}
            write("staleness", args, figures)
    lines = [f"staleness {bound:<4}{one['reward']}" for bound, one in figures["summary"].items()]
    finish("staleness", args, figures, lines)


if __name__ == "__main__":
    run_script(main)
