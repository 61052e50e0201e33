"""What `make train` reaches: several seeds of `laptop-search`, and each trained policy on worlds that no run has used.

Trains with each seed in turn and writes scores before and after with their intervals, the bounds, the recall and the
seconds of each phase. The trained policies then answer the questions of fresh worlds of the test split.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from common import Silent, common_arguments, finish, load

import agentenv
from agentenv.core.io.digests import file_digest
from agentenv.evaluation.bounds import bound_of
from agentenv.evaluation.runner import to_record
from agentenv.policies.tiny import shipped_weights
from agentenv.trainers.config.config_files import changed, load_config
from agentenv.trainers.loop.evaluate import play_under


def main() -> None:
    """Trains, plays, writes."""
    parser: ArgumentParser = common_arguments(__doc__ or "")
    parser.add_argument("--preset", default="laptop-search", help="preset, or a TOML file over worlds")
    parser.add_argument("--seeds", type=int, default=3, help="runs, with the seeds from 0 on")
    parser.add_argument("--fresh", type=int, default=3, help="fresh worlds that each trained policy answers")
    parser.add_argument("--first-fresh", type=int, default=101, help="seed of the first of them")
    parser.add_argument("--runs", type=Path, default=Path("runs/main"), help="folder of the runs")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    before = load()
    seeds = {str(seed): _run(seed, args) for seed in range(args.seeds)}
    figures = {
        "train": f"agentenv train {Path(args.preset).name} --seed N",
        "weights": file_digest(shipped_weights() / "model.safetensors"),
        **before,
        "threads": args.threads,
        "seeds": seeds,
    }
    finish("make_train", args, figures, [_line(seed, run) for seed, run in seeds.items()])


def _run(seed: int, args: Namespace) -> dict[str, Any]:
    """One run and its policy on the fresh worlds."""
    folder = args.runs / f"seed-{seed}"
    result = agentenv.train(args.preset, out=folder, seed=seed, display=Silent(), trust_config=True)
    held = result.results
    names = ("steps", "before", "after", "bounds", "retrieval", "index_recall", "faults", "seconds")
    worlds = range(args.first_fresh, args.first_fresh + args.fresh)
    fresh = {str(world): _fresh(args.preset, result.policy, world) for world in worlds}
    return {name: held[name] for name in names} | {"fresh_worlds": fresh}


def _fresh(preset: str, policy: Path, world: int) -> Mapping[str, Any]:
    """The score of a trained policy on the test questions of another world."""
    overrides = {"policy": f"hf:{policy}", "test.world.seed": world}
    return bound_of(map(to_record, play_under(changed(load_config(preset), overrides))), "em_squad")


def _line(seed: str, run: Mapping[str, Any]) -> str:
    fresh = ", ".join(f"{score['mean']:.3f}" for score in run["fresh_worlds"].values())
    before, after = run["before"], run["after"]
    low, high = after["ci95"]
    return (
        f"seed {seed}: {before['mean']:.3f} -> {after['mean']:.3f} [{low:.3f}, {high:.3f}] in "
        f"{run['seconds']['training']:.0f} s of training; fresh worlds {fresh}"
    )


if __name__ == "__main__":
    main()
