"""What `make train` reaches: several seeds of `laptop-search`, and each trained policy on worlds that no run has used.

Trains with each seed in turn and writes scores before and after with their intervals, the bounds, the recall and the
seconds of each phase; a run that is finished is not repeated. The trained policies then answer the test questions over the
FAISS index alone, which says what the hybrid one adds, and the questions of fresh worlds of the test split.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import Silent, common_arguments, finish, load, run_script

import agentenv
from agentenv.core.io.digests import file_digest
from agentenv.evaluation.bounds import bound_of
from agentenv.evaluation.records import RESULTS, read_json
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
    """One run, and its policy over FAISS alone and on the fresh worlds."""
    folder = args.runs / f"seed-{seed}"
    if not (folder / RESULTS).exists():
        agentenv.train(args.preset, out=folder, seed=seed, display=Silent(), trust_config=True)
    results = read_json(folder / RESULTS)
    names = ("steps", "before", "after", "bounds", "retrieval", "index_recall", "faults", "seconds")
    held = {name: results[name] for name in names}
    worlds = range(args.first_fresh, args.first_fresh + args.fresh)
    score = partial(_score, args.preset, folder / "policy")
    fresh = {str(world): score({"test.world.seed": world}) for world in worlds}
    held |= {"dense_alone": score({"search.retriever": ""}), "fresh_worlds": fresh}
    return held


def _score(preset: str, policy: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The score of a trained policy on the test questions of a configuration that was changed."""
    config = changed(load_config(preset), {"policy": f"hf:{policy}", **changes})
    return bound_of(map(to_record, play_under(config)), "em_squad")


def _line(seed: str, run: Mapping[str, Any]) -> str:
    fresh = ", ".join(f"{score['mean']:.3f}" for score in run["fresh_worlds"].values())
    before, after = run["before"], run["after"]
    low, high = after["ci95"]
    return (
        f"seed {seed}: {before['mean']:.3f} -> {after['mean']:.3f} [{low:.3f}, {high:.3f}] in "
        f"{run['seconds']['training']:.0f} s of training; FAISS alone {run['dense_alone']['mean']:.3f}; fresh worlds {fresh}"
    )


if __name__ == "__main__":
    run_script(main)
