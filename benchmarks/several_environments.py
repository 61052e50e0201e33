"""Whether a policy that is trained in two environments at once learns in each what training there alone teaches.

    python benchmarks/several_environments.py --seeds 3

Two environments of the shipped tiny policy: ``lab-search``, questions of one and two hops with up to three searches, and
``one_hop``, questions of one hop about another world with one search by BM25 that shows three passages. Each seed makes
three runs of equal budgets and learning rate: one with both environments, each of which poses half of the questions of a
step, and one in each environment alone with half as many questions a step. So every environment sees equally many episodes
in the run of both as in its own, and the run of both costs as much as the two others together. The result file has the
score in each environment before and after, the mean over the seeds with its 95 % interval (Student's t), and the difference
from the run alone, paired by seed. Results are written after every run.
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

OTHER = "one_hop"
WORLD = {"documents": 400, "families": ["lookup"], "hops": [1, 1]}
Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def configure(args: argparse.Namespace, seed: int) -> TrainConfig:
    """The run of both environments."""
    values = load_config("lab-search").model_dump(mode="json", exclude_none=True)
    values |= {"policy": args.policy, "threads": args.threads, "seed": seed}
    values["test"]["limit"] = args.limit
    values["environments"] = {
        OTHER: {
            "share": 0.5,
            "env": {"options": {"k": 3, "max_turns": 1, "observation_tokens": 256}},
            "search": {"retriever": "bm25"},
            "train": {"world": WORLD | {"seed": 4, "questions": 400}},
            "dev": {"world": WORLD | {"seed": 5, "questions": 50}},
            "test": {"world": WORLD | {"seed": 6, "questions": 400}, "limit": args.limit},
        }
    }
    values["rollout"]["questions"] = args.questions
    values["optimizer"]["steps"] = args.steps
    values["evaluation"]["every"] = 0
    return parse_config(values, "lab-search")


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
    for name, end, own in (("search", "", "search alone"), (OTHER, f"-{OTHER}", f"{OTHER} alone")):
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
    parser.add_argument("--policy", default="tiny", help="what all runs start from: tiny or hf:PATH")
    parser.add_argument("--steps", type=int, default=24, help="steps of a run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--questions", type=int, default=8, help="questions a step of the run of both")
    parser.add_argument("--limit", type=int, default=200, help="test questions of each environment")
    args = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {"both": [], "search alone": [], f"{OTHER} alone": []}
    figures: dict[str, Any] = {}
    for seed in range(args.seeds):
        config = configure(args, seed)
        kinds = {
            "both": config,
            "search alone": alone(config, "env"),
            f"{OTHER} alone": alone(config, OTHER),
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
