"""Whether a policy that is trained in two environments at once learns in each what training there alone teaches.

    agentenv warmstart --imitate lab-search lab-rewrites --steps 300 --out runs/both
    python benchmarks/several_environments.py --policy hf:runs/both --seeds 3

Two environments of the same tiny policy: questions that it answers by searches (``lab-search``), and conversations whose
last question it rewrites for a search engine (``lab-rewrites``). Each seed makes three runs of equal budgets and learning
rate: one with both environments, each of which poses half of the questions of a step, and one in each environment alone
with half as many questions a step. So every environment sees equally many episodes in the run of both as in its own, and
the run of both costs as much as the two others together. The result file has the score in each environment before and
after, the mean over the seeds with its 95 % interval (Student's t), and the difference from the run alone, paired by seed.
Results are written after every run.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.trainers.config.config_files import load_config, parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder

from common import Silent, common_arguments, finish, interval, run_script, write  # isort: skip  # sibling scripts

REWRITES = "rewrites"
SECTIONS = ("env", "search", "train", "dev", "test")
Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def configure(args: argparse.Namespace, seed: int) -> TrainConfig:
    """The run of both environments."""
    values = load_config("lab-search").model_dump(mode="json", exclude_none=True)
    other = load_config("lab-rewrites").model_dump(mode="json", exclude_none=True)
    values |= {"policy": args.policy, "threads": args.threads, "seed": seed}
    values["environments"] = {REWRITES: {"share": 0.5} | {name: other[name] for name in SECTIONS}}
    values["environments"][REWRITES]["search"]["encoder"] = values["search"]["encoder"]
    for part in (values, values["environments"][REWRITES]):
        part["dev"]["limit"] = part["test"]["limit"] = args.limit
    values["rollout"] |= {"questions": args.questions, "turn_tokens": 64}
    values["optimizer"]["steps"] = args.steps
    values["evaluation"]["every"] = 0
    return parse_config(values, "lab-search and lab-rewrites")


def alone(config: TrainConfig, name: str) -> TrainConfig:
    """The run in one of the environments, with as many of its questions a step as in that of both."""
    one = config.by_environment[name]
    return one.model_copy(
        update={"rollout": one.rollout.model_copy(update={"questions": config.rollout.questions // 2})}
    )


def scores(config: TrainConfig) -> dict[str, Any]:
    """The scores of a run before and after, as ``results.json`` has them, and the tokens that it sampled."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", config)
        results = train(folder, Silent())
        sampled = sum(line["sampled_tokens"] for line in folder.history())
    sides = {name: score["mean"] for name, score in results.items() if name.startswith(("before", "after"))}
    return {"seed": config.seed, "sampled_tokens": sampled, "faults": results["faults"], **sides}


def summary(runs: Runs) -> dict[str, Any]:
    """By environment: the score before, after the run of both and after the run alone, and the difference of these two."""
    found = {}
    for name, end, own in (("search", "", "search alone"), (REWRITES, f"-{REWRITES}", f"{REWRITES} alone")):
        both = [run[f"after{end}"] for run in runs["both"]]
        by_itself = [run["after"] for run in runs[own]]
        found[name] = {
            "before": interval([run[f"before{end}"] for run in runs["both"]]),
            "both": interval(both),
            "alone": interval(by_itself),
            "difference": interval([a - b for a, b in zip(both, by_itself, strict=False)]),
        }
    return found


def main() -> None:
    """Trains, compares, reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--policy", default="tiny", help="the policy that all runs start from: hf:PATH")
    parser.add_argument("--steps", type=int, default=24, help="steps of a run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--questions", type=int, default=8, help="questions a step of the run of both")
    parser.add_argument("--limit", type=int, default=200, help="test questions of each environment")
    args = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {"both": [], "search alone": [], f"{REWRITES} alone": []}
    figures: dict[str, Any] = {}
    for seed in range(args.seeds):
        config = configure(args, seed)
        kinds = {
            "both": config,
            "search alone": alone(config, "env"),
            f"{REWRITES} alone": alone(config, REWRITES),
        }
        for kind, one in kinds.items():
            runs[kind].append(scores(one))
            if all(runs.values()):
                figures = {"summary": summary(runs), "runs": runs}
                write("several_environments", args, figures)
    lines = [f"{name:<10}{found}" for name, found in figures["summary"].items()]
    finish("several_environments", args, figures, lines)


if __name__ == "__main__":
    run_script(main)
