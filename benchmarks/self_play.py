"""Self-play on a FictionalWorld: are accepted pairs true, and does the game teach without a labelled question?

``truth`` plays the same games without and with verification and asks the world's solver, which the game never sees, whether
each accepted answer is one of the right ones, and the only one. ``train`` gives equal budgets to self-play and to the same
game with a frozen proposer, from one warm start, and scores both on held-out questions before and after. In both the
verifier stays the warm start: what is accepted then changes with what is proposed alone. The proposer has weights of its
own, so that the solver learns from the same start in both arms; no question is played twice.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from common import common_arguments, finish, interval, run_script, write

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec
from agentenv.core.scoring.scorers import get_scorer
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_solver import Solver
from agentenv.evaluation.records import read_json
from agentenv.evaluation.statistics.significance import wilson_interval
from agentenv.evaluation.task_env import TaskEnv, open_task_env
from agentenv.policies.policy_spec import make_policy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import load_config, override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.strategies.rollout_context import RolloutContext

PLAIN = {"rules": {}, "confidence": 0.0}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "rules alone": PLAIN | {"checks": ()},
    "verified": PLAIN | {"checks": ("verify",)},
    "verified, one answer": PLAIN | {"checks": ("verify", "compete")},
    "quoting rules alone": {"checks": (), "confidence": 0.0},
    "quoting, verified": {"checks": ("verify",), "confidence": 0.0},
    "the preset": {},
}
"""What changes in the strategy's options: checks, the rule that thoughts are quotes, the verifier's least probability."""
TRAIN: Mapping[str, Any] = {
    "rollout.sampler_options.clear_every": 1,
    "optimizer.learning_rate": 3e-5,
    "second.learning_rate": 1.5e-4,
    "evaluation.every": 0,
    "evaluation.bounds": "false",
}
"""Settings of both arms of ``train``."""
FIXED = {"self-play": ("verifier",), "frozen proposer": ("verifier", "proposer")}
"""The roles that the warm start plays to the end, by arm of ``train``."""


def verdict(solver: Solver, question: str, answer: str) -> tuple[bool, bool]:
    """Whether ``answer`` is one of the world's answers to ``question``, and whether it is the only one."""
    answers = solver.answers(question)
    true = bool(answers) and get_scorer("em_squad")(answer, tuple(sorted(answers))).value == 1.0
    return true, true and len(answers) == 1


def share(flags: Sequence[bool]) -> dict[str, Any]:
    """A share with its n and Wilson interval."""
    low, high = wilson_interval(sum(flags), len(flags)) if flags else (0.0, 1.0)
    return {"share": sum(flags) / len(flags) if flags else None, "n": len(flags), "ci95": [low, high]}


def main(words: Sequence[str] | None = None) -> None:
    """Measures and writes the result file."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("what", choices=("truth", "train"))
    parser.add_argument("--policy", required=True, help="hf:PATH of agentenv warmstart --role-steps")
    parser.add_argument("--games", type=int, default=300, help="truth: games of each arm")
    parser.add_argument(
        "--documents", type=int, default=1000, help="documents of the world that is played on"
    )
    parser.add_argument(
        "--searches", type=int, nargs=2, default=(1, 1), help="least and most searches asked of a proposer"
    )
    parser.add_argument("--seeds", type=int, default=5, help="train: seeds of each arm, 2 to 5")
    parser.add_argument("--steps", type=int, default=28, help="train: optimiser steps of each run")
    parser.add_argument("--questions", type=int, default=24, help="train: games a step")
    parser.add_argument("--limit", type=int, default=400, help="train: held-out questions")
    parser.add_argument(
        "--folder", type=Path, help="train: where runs are kept; a temporary folder by default"
    )
    args = parser.parse_args(words)
    (truth if args.what == "truth" else compare)(args)


def preset(args: argparse.Namespace, **more: Any) -> TrainConfig:
    """The self-play preset on a smaller world, searched by character n-grams."""
    values = {
        "policy": args.policy,
        "threads": args.threads,
        "train.world.documents": args.documents,
        "search.encoder": "hash",
        "rollout.strategy_options.searches": list(args.searches),
    } | more
    flags = [word for key, value in values.items() for word in (f"--{key}", str(value))]
    return override(load_config("self-play"), flags)


def truth(args: argparse.Namespace) -> None:
    """The shares of true and unique pairs among the accepted, by arm."""
    import torch

    torch.set_num_threads(args.threads)
    config = preset(args)
    policy = make_policy(args.policy)

    def count(text: str) -> int:
        return len(policy.tokenizer.encode(text, add_special_tokens=False))

    task_env = open_task_env(config.train, config.search, config.env, count)
    solver = Solver(generate_facts(config.train.world))
    metrics = {}
    for name, options in ARMS.items():
        metrics[name] = arm(args, config, policy, task_env, solver, options)
        write("self_play_truth", args, {"arms": metrics})
    lines = [
        f"{name:27} true {f['true']['share']:.3f} {f['true']['ci95']} unique {f['unique']['share']:.3f} of {f['true']['n']}"
        for name, f in metrics.items()
        if f["true"]["n"]
    ]
    finish("self_play_truth", args, {"arms": metrics}, lines)


def arm(
    args: argparse.Namespace,
    config: TrainConfig,
    policy: Any,
    task_env: TaskEnv,
    solver: Solver,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The games of one arm; equal seeds make the same proposals in every arm."""
    from agentenv.trainers.loop.parts import rollout_config
    from agentenv.trainers.strategies.strategies import get_strategy, play_groups

    strategy = get_strategy("self_play", dict(config.rollout.strategy_options) | dict(options))
    context = RolloutContext(
        policy,
        InlineFormat(policy.tokenizer),
        rollout_config(config.rollout, config.env, temperature=config.rollout.temperature),
        policy.tokenizer.decode,
    )
    counts: Counter[str] = Counter()
    true, unique = [], []
    for first in range(0, args.games, 50):
        topics = task_env.source.tasks[first : min(first + 50, args.games)]
        starts = [[EpisodeSpec(task_env.make_env(), t, first + i, t.id)] for i, t in enumerate(topics)]
        for group in asyncio.run(play_groups(starts, strategy, context)):
            counts.update({k: v for k, v in group[0].info["strategy"].items() if not isinstance(v, list)})
            task = group[0].info["game"]["task"]
            if task is not None:
                right, only = verdict(solver, task.question, task.answers[0])
                true.append(right)
                unique.append(only)
    return {"true": share(true), "unique": share(unique), "counts": dict(sorted(counts.items()))}


def arm_of_training(args: argparse.Namespace, seed: int, fixed: Sequence[str]) -> TrainConfig:
    """One run in which the roles ``fixed`` are played by the warm start to the end."""
    role_policies = ", ".join(f'{role} = "{args.policy}"' for role in fixed)
    more: dict[str, Any] = dict(TRAIN) | {
        "seed": seed,
        "rollout.strategy_options.role_policies": f"{{ {role_policies} }}",
        "rollout.questions": args.questions,
        "optimizer.steps": args.steps,
        "test.limit": args.limit,
    }
    if "proposer" not in fixed:
        more["second.roles"] = ["proposer"]
    return preset(args, **more)


def compare(args: argparse.Namespace) -> None:
    """Equal budgets of self-play, with and without a proposer that learns."""
    from agentenv.trainers.grpo import train
    from agentenv.trainers.run_folder.folder import RunFolder

    folder = args.folder or Path(tempfile.mkdtemp(prefix="self-play-"))
    runs: dict[str, list[dict[str, Any]]] = {}
    for seed in range(args.seeds):
        for name, fixed in FIXED.items():
            config = arm_of_training(args, seed, fixed)
            path = folder / f"{name.replace(' ', '-')}-{seed}"
            opened = (
                RunFolder.open(path) if (path / "config.toml").exists() else RunFolder.create(path, config)
            )
            train(opened, Quiet())
            runs.setdefault(name, []).append(outcome(path, Solver(generate_facts(config.train.world))))
            write("self_play_train", args, {"runs": runs, "summary": summary(runs)})
    lines = [f"{name}: {metrics}" for name, metrics in summary(runs).items()]
    finish("self_play_train", args, {"runs": runs, "summary": summary(runs)}, lines)


CURVES = (
    "accepted",
    "valid_share",
    "solved_mean",
    "searches_mean",
    "frame_entropy",
    "overlap",
    "sampled_tokens",
)


def outcome(path: Path, solver: Solver) -> dict[str, Any]:
    """What one run showed: scores before and after, by hops too, its curves, and how many accepted pairs were true."""
    from agentenv.trainers.run_folder.folder import RunFolder

    folder = RunFolder.open(path)
    results, lines = read_json(path / "results.json"), folder.history()
    curves = {name: [round(line[name], 4) if name in line else None for line in lines] for name in CURVES}
    asked = [row for row in folder.history("questions") if row["outcome"] == "accepted"]
    true = [verdict(solver, row["question"], row["answer"])[0] for row in asked]
    hops = {
        when: {hop: row["scores"]["em_squad"]["mean"] for hop, row in side["by_hops"].items()}
        for when in ("before", "after")
        for side in (read_json(path / "evaluation" / when / "results.json"),)
    }
    shown = {"before": results["before"], "after": results["after"], "em_by_hops": hops}
    return shown | {"accepted_true": share(true), "curves": curves}


class Quiet(SilentDisplay):
    """A display that says what is under way on standard error."""

    def phase(self, name: str, total: int) -> None:
        """One line a phase."""
        print(name, total, file=sys.stderr)

    def warn(self, sentence: str) -> None:
        """The sentence."""
        print(sentence, file=sys.stderr)


def summary(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Exact match before and after by arm, and the differences over seeds with their intervals."""
    table: dict[str, Any] = {}
    for name, mine in runs.items():
        gains = [run["after"]["mean"] - run["before"]["mean"] for run in mine]
        table[name] = {"before": mine[0]["before"]["mean"], "after": [run["after"]["mean"] for run in mine]}
        if len(gains) > 1:
            table[name] |= {"gain": fmean(gains), "ci95": interval(gains).get("ci95")}
    ours, frozen = runs.get("self-play", ()), runs.get("frozen proposer", ())
    differences = [a["after"]["mean"] - b["after"]["mean"] for a, b in zip(ours, frozen, strict=False)]
    if len(differences) > 1:
        ends = interval(differences).get("ci95")
        table["self-play over frozen"] = {"gain": fmean(differences), "ci95": ends}
    return table


if __name__ == "__main__":
    run_script(main)
