"""How much of what the learner reads is padding, and what a bound on it costs, on the episodes of a real run.

    agentenv train laptop-search --out runs/first
    python benchmarks/padding.py --run runs/first

Every step that the run dumped is learned from again, under each bound of ``--padding``: the share of padding, the number of
micro-batches, the processor time of forward and backward passes (the least of ``--repeats``, in turns), and how far the
gradient is from that without a bound, relative to its norm: the order of sums in float32.
"""

import argparse
import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.core.trajectory import from_record
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.policies.policy_spec import make_policy
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow, rows_of
from agentenv.trainers.learner.packing import micro_batches
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.strategies.strategies import by_group

from common import common_arguments, finish, run_script  # isort: skip  # sibling script


def steps_of(folder: RunFolder) -> list[list[TrainingRow]]:
    """The rows of every dumped step that carry a gradient."""
    settings = folder.config.loss
    estimate = get_estimator(settings.estimator, settings.estimator_options)
    steps = []
    for path in sorted(folder.path.glob("trajectories/step-*")):
        records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        played = [from_record(record, Task(str(place), "")) for place, record in enumerate(records)]
        groups = [[t for t in group if t.valid] for group in by_group(played)]
        steps.append([row for group in groups for row in rows_of(group, estimate(group))])
    return [rows for rows in steps if rows]


def learned(model: Any, steps: list[list[TrainingRow]], micro_tokens: int, padding: float) -> dict[str, Any]:
    """One pass over all steps."""
    learner = Learner(model, Objective(micro_tokens=micro_tokens, padding=padding), learning_rate=1.0)
    shares, batches, seconds, gradients = [], 0, 0.0, []
    for rows in steps:
        model.zero_grad(set_to_none=True)
        began = time.process_time()
        shares.append(learner.accumulate(rows)["padding_share"])
        seconds += time.process_time() - began
        batches += sum(1 for _ in micro_batches(rows, micro_tokens, padding))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return {"shares": shares, "micro_batches": batches, "seconds": seconds, "gradients": gradients}


def compared(args: argparse.Namespace) -> dict[str, Any]:
    """Every bound on every step."""
    torch.set_num_threads(args.threads)
    folder = RunFolder.open(args.run)
    steps = steps_of(folder)
    if not steps:
        raise ConfigurationError(
            f"{args.run} holds no trajectories to learn from: give a run that dumps them."
        )
    model = make_policy(folder.config.policy).model
    micro = args.micro_tokens or folder.config.memory.micro_tokens
    found: dict[float, dict[str, Any]] = {}
    with flushed_denormals():
        for _ in range(args.repeats):
            for bound in (1.0, *args.padding):
                one = learned(model, steps, micro, bound)
                one["seconds"] = min(one["seconds"], found.get(bound, one)["seconds"])
                found[bound] = one
    whole = found[1.0]["gradients"]
    figures = {}
    for bound, one in found.items():
        apart = [((a - b).norm() / b.norm()).item() for a, b in zip(one.pop("gradients"), whole, strict=True)]
        shares = one.pop("shares")
        figures[str(bound)] = one | {
            "padding_mean": sum(shares) / len(shares),
            "padding_max": max(shares),
            "gradient_apart_max": max(apart),
        }
    rows = [len(step) for step in steps]
    return {"preset": folder.config.name, "rows": rows, "micro_tokens": micro, "bounds": figures}


def main() -> None:
    """Measures and reports."""
    parser = common_arguments(__doc__ or "")
    parser.set_defaults(threads=1)
    parser.add_argument("--run", type=Path, required=True, help="folder of a finished run with trajectories")
    parser.add_argument("--padding", type=float, nargs="+", default=[0.1, 0.05, 0.02], help="bounds")
    parser.add_argument("--micro-tokens", type=int, help="by default those of the run")
    parser.add_argument("--repeats", type=int, default=3, help="passes over everything")
    args = parser.parse_args()
    figures = compared(args)
    lines = [
        f"bound {bound:<6}{one['padding_mean']:>8.1%} of padding, at most {one['padding_max']:.1%}, "
        f"{one['micro_batches']:>4} micro-batches, {one['seconds']:.1f} processor seconds"
        for bound, one in figures["bounds"].items()
    ]
    finish("padding", args, figures, lines)


if __name__ == "__main__":
    run_script(main)
