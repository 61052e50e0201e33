"""How fast a preset trains, and how much of the time is spent outside neural forward and backward passes.

Runs the training loop of a preset without its evaluations and times whole steps, from the end of one to the end of the
next, whatever happens in between.

    python benchmarks/throughput.py --policy tiny --steps 20
"""

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import arguments, finish, run_script

from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import load_config, parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder

NEURAL = ("policy_forward", "learner_compute", "encoder_forward")
_SMALL_WORLD = {"documents": 200, "questions": 10}  # of the evaluations, which are not measured


@dataclass
class Clock(SilentDisplay):
    """A display that only notes when each step ended."""

    ends: list[float] = field(default_factory=list)
    training: bool = False

    def phase(self, name: str, total: int) -> None:
        """Training begins, or something else."""
        self.training = name == "training"
        self.ends += [time.perf_counter()] * self.training

    def advance(self, done: int, metrics: dict[str, Any]) -> None:
        """A step ended."""
        self.ends += [time.perf_counter()] * self.training


def configure(args: argparse.Namespace) -> TrainConfig:
    """The preset with a small evaluation before and after and none in between."""
    values = load_config(args.preset).model_dump(mode="json", exclude_none=True)
    values |= {"policy": args.policy, "threads": args.threads}
    values["optimizer"]["steps"] = args.warmup + args.steps
    values["evaluation"] |= {"every": 0, "bounds": False}
    for name in ("dev", "test"):
        values[name]["world"] |= _SMALL_WORLD
    if args.documents:
        values["train"]["world"] |= {"documents": args.documents, "questions": args.documents}
    return parse_config(values, args.preset)


def measure(config: TrainConfig, warmup: int) -> dict[str, Any]:
    """Figures of the steps after the first ``warmup``."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", config)
        train(folder, clock)
        timings, metrics = folder.history("timings")[warmup:], folder.history("metrics")[warmup:]
    wall = clock.ends[-1] - clock.ends[warmup]
    spent = {name: sum(line[name] for line in timings) for name in ("rollout", "update", *NEURAL)}
    episodes = [config.rollout.questions * config.rollout.group_size - line["faults"] for line in metrics]
    generated = sum(n * line["response_tokens"] for n, line in zip(episodes, metrics, strict=True))
    trained = sum(line["trained_tokens"] for line in metrics)
    neural = sum(spent[name] for name in NEURAL)
    return {
        "steps": len(metrics),
        "episodes_per_step": sum(episodes) / len(metrics),
        "seconds_per_step": wall / len(metrics),
        "episodes_per_second": sum(episodes) / wall,
        "generated_tokens_per_second": generated / wall,
        "generated_tokens_per_rollout_second": generated / spent["rollout"],
        "trained_tokens_per_second": trained / wall,
        "trained_tokens_per_update_second": trained / spent["update"],
        "share_of_wall_time": {name: spent[name] / wall for name in NEURAL} | {"other": 1 - neural / wall},
        "other_share_within": {
            "rollout": (spent["rollout"] - spent["policy_forward"] - spent["encoder_forward"]) / wall,
            "update": (spent["update"] - spent["learner_compute"]) / wall,
            "between": (wall - spent["rollout"] - spent["update"]) / wall,
        },
    }


def main() -> None:
    """Measures and reports."""
    parser = arguments(__doc__ or "", steps=20)
    parser.add_argument("--preset", default="laptop-search", help="a preset or a TOML file")
    parser.add_argument(
        "--documents", type=int, default=0, help="size of the training world; 0 is the preset's"
    )
    args = parser.parse_args()
    config = configure(args)
    figures = measure(config, args.warmup)
    finish("throughput", args, {"preset": config.name, "threads": args.threads} | figures, table(figures))


def table(figures: dict[str, Any], indent: str = "") -> list[str]:
    """One line a figure."""
    lines = []
    for name, value in figures.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}", *table(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name:<{38 - len(indent)}}{value:>10.4g}")
    return lines


if __name__ == "__main__":
    run_script(main)
