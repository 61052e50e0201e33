"""Does advice help a policy that reads it? Retries of its own failures with a verifier's advice in the context, and without.

    python benchmarks/advice.py --policy hf:runs/tiny-advice

Each test question is played twice from its start by the strategy ``reflect_retry``: a base, and a retry from the turn that
the verifier found wrong. Both runs of the benchmark have the same bases and pivots; only the advice differs. Nothing is
trained.
"""

import argparse
import asyncio
from collections import Counter
from typing import Any

from agentenv.core.rollout import EpisodeSpec
from agentenv.evaluation.statistics.significance import wilson_interval
from agentenv.evaluation.task_env import TaskEnv
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.strategies.retry import ReflectRetryStrategy
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.warmstart.expert_pool import open_expert_run

from common import common_arguments, finish  # isort: skip  # a sibling script


def retried(task_env: TaskEnv, context: RolloutContext, verifier: str, guidance: bool) -> dict[str, Any]:
    """Bases that succeeded, retries and how many of them earn the full reward, with 95 % intervals."""
    strategy = ReflectRetryStrategy(reflector=verifier, guidance=guidance)
    counts: Counter[str] = Counter()
    for place, task in enumerate(task_env.source.tasks):
        envs = [task_env.make_env() for _ in range(2)]
        try:
            specs = [EpisodeSpec(env, task, seed=2 * place + slot) for slot, env in enumerate(envs)]
            base, *rest = asyncio.run(strategy.play(specs, context))
        finally:
            for env in envs:
                env.close()
        ceiling = envs[0].reward_ceiling
        counts["bases"] += base.valid
        counts["bases_right"] += base.valid and base.reward >= ceiling
        if base.valid and base.reward < ceiling:
            retry = next((one for one in rest if one.id.endswith("-retry") and one.valid), None)
            counts["retries"] += retry is not None
            counts["retries_right"] += retry is not None and retry.reward >= ceiling
    return dict(counts) | {
        "base": _share(counts["bases_right"], counts["bases"]),
        "retry": _share(counts["retries_right"], counts["retries"]),
    }


def _share(right: int, of: int) -> dict[str, Any]:
    return {"mean": right / max(of, 1), "ci95": wilson_interval(right, of), "n": of}


def main() -> None:
    """Plays, prints and writes ``results/advice.json``."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--preset", default="lab-advice", help="the run whose test questions are played")
    parser.add_argument("--policy", required=True, help="hf:PATH")
    parser.add_argument("--verifier", default="evidence", help="who finds the turn that went wrong")
    args: argparse.Namespace = parser.parse_args()
    config = load_config(args.preset).model_copy(update={"policy": args.policy})
    task_env, context = open_expert_run(config.model_copy(update={"train": config.test}), "advice")
    figures = {
        name: retried(task_env, context, args.verifier, guidance)
        for name, guidance in (("with advice", True), ("without", False))
    }
    lines = [
        f"{name:<12} bases {one['base']['mean']:.3f} of {one['base']['n']}, "
        f"retries of failures {one['retry']['mean']:.3f} of {one['retry']['n']}"
        for name, one in figures.items()
    ]
    finish("advice", args, figures, lines)


if __name__ == "__main__":
    main()
