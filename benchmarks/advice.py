"""Does advice help a policy that reads it? Retries of its own failures with a verifier's advice in the context, and without.

    python benchmarks/advice.py --policy hf:runs/tiny-advice

Each question of an unseen world is played once. Where that fails, a verifier finds the turn that went wrong, and the same
episode is taken up again at the beginning of this turn: with the verifier's advice, without, and with the advice that the
verifier would give on this episode for another question, which is of no use. All three have the same seeds, temperature and
number of retries. Nothing is trained.
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.rollout import play
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.evaluation.statistics.significance import estimate, paired_bootstrap, wilson_interval
from agentenv.evaluation.task_env import TaskEnv
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.strategies.guidance import guide, reopened
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.step_verifiers import Flaw, Verifier, find_verifier
from agentenv.trainers.warmstart.advised_episodes import Attempt, attempted
from agentenv.trainers.warmstart.expert_pool import open_expert_run

from common import common_arguments, finish, run_script  # isort: skip  # a sibling script

ARMS = ("with advice", "without", "with advice for another question")
_AT_ONCE = 32  # episodes
_RETRIES_FROM = 1_000_000  # seeds the retries apart from the bases


@dataclass(frozen=True)
class Retried:
    """A question that was played, and what became of its retries if it failed."""

    right: bool
    """Whether the first try earned the full reward."""
    cause: str = ""
    """What the verifier found; empty where it was not asked or found nothing."""
    named: bool = False
    """Whether an accepted answer stands in the advice."""
    rewards: Mapping[str, Sequence[bool]] | None = None
    """Whether each retry earned the full reward, by arm; None where there was none."""
    repeated: Mapping[str, Sequence[bool]] | None = None
    """Whether the first action of each retry is the one that was found wrong, by arm."""


def of_unseen_world(config: TrainConfig, questions: int, seed: int | None = None) -> TrainConfig:
    """The run with ``questions`` of its test world for training tasks, or of another such world, that of ``seed``."""
    world = config.test.world
    if world:
        world = replace(world, questions=questions, seed=world.seed if seed is None else seed)
    return config.model_copy(update={"train": config.test.model_copy(update={"world": world, "limit": None})})


async def retry_failures(
    task_env: TaskEnv, context: RolloutContext, verifier: Verifier, retries: int
) -> list[Retried]:
    """Each question of ``task_env`` once, and ``retries`` retries an arm of each failure."""
    tasks = task_env.source.tasks
    found: list[Retried] = []
    for first in range(0, len(tasks), _AT_ONCE):
        places = range(first, min(first + _AT_ONCE, len(tasks)))
        others = [tasks[(place + 1) % len(tasks)] for place in places]
        asked = (
            _question(task_env, context, verifier, place, other, retries)
            for place, other in zip(places, others, strict=True)
        )
        found += await gather_all(asked)
    return found


async def _question(
    task_env: TaskEnv, context: RolloutContext, verifier: Verifier, place: int, other: Task, retries: int
) -> Retried:
    async with attempted(task_env, context, verifier, place) as attempt:
        base, flaw, ceiling = attempt.base, attempt.flaw, attempt.spec.env.reward_ceiling
        if flaw is None:
            return Retried(base.valid and base.reward >= ceiling)
        useless = await verifier.first_flaw(replace(base, task=other), ceiling)
        texts = {ARMS[0]: flaw.advice, ARMS[1]: "", ARMS[2]: useless.advice if useless else ""}
        played = {
            arm: [await _retry(attempt, flaw, text, context, number) for number in range(retries)]
            for arm, text in texts.items()
        }
        wrong = base.turns[flaw.turn].action
        return Retried(
            False,
            flaw.cause,
            any(answer.lower() in flaw.advice.lower() for answer in base.task.answers),
            {arm: [one.valid and one.reward >= ceiling for one in them] for arm, them in played.items()},
            {arm: [_acted(one, flaw.turn) == wrong.strip() for one in them] for arm, them in played.items()},
        )


async def _retry(attempt: Attempt, flaw: Flaw, text: str, context: RolloutContext, number: int) -> Trajectory:
    spec = replace(attempt.spec, seed=_RETRIES_FROM * (number + 1) + attempt.spec.seed)
    state = reopened(attempt.base, flaw.turn, spec)
    await attempt.rewinder.back_to(state)
    added = guide(state, context.chat, text) if text else 0
    config = context.config.model_copy(update={"context_tokens": context.config.context_tokens + added})
    return await play(state, context.policy, context.chat, config)


def _acted(episode: Trajectory, turn: int) -> str:
    return episode.turns[turn].action.strip() if turn < len(episode.turns) else ""


def summed(found: Sequence[Retried]) -> dict[str, Any]:
    """The figures of all questions: first tries, retries by arm, and paired differences over the failures."""
    failed = [one for one in found if one.rewards is not None]
    of_arm = {arm: [_mean(one.rewards[arm]) for one in failed if one.rewards] for arm in ARMS}
    right = sum(one.right for one in found)
    causes = Counter(one.cause for one in failed)
    return {
        "base": {"mean": right / len(found), "ci95": wilson_interval(right, len(found)), "n": len(found)},
        "failures": len(failed),
        "advice_that_names_an_answer": sum(one.named for one in failed),
        "retries": {arm: _interval(values) for arm, values in of_arm.items()},
        "difference": {arm: _difference(of_arm[arm], of_arm[ARMS[0]]) for arm in ARMS[1:]},
        "repeats_the_wrong_action": {
            arm: _mean([_mean(one.repeated[arm]) for one in failed if one.repeated]) for arm in ARMS
        },
        "by_cause": {
            cause: {"failures": count}
            | {
                arm: _mean([_mean(one.rewards[arm]) for one in failed if one.rewards and one.cause == cause])
                for arm in ARMS
            }
            for cause, count in causes.most_common()
        },
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean over failures with its 95 % interval; each failure is of another question."""
    found = estimate(values)
    return {"mean": found.mean, "ci95": found.ci95, "n": len(values)}


def _difference(without: Sequence[float], advised: Sequence[float]) -> dict[str, Any]:
    """How much more is right with advice, paired by failure."""
    found = paired_bootstrap(without, advised)
    return {"mean": found.difference, "ci95": found.ci95, "p_value": found.p_value, "n": len(advised)}


def main() -> None:
    """Plays, prints and writes ``results/advice.json``."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument(
        "--preset", default="lab-advice", help="the run in whose test world questions are asked"
    )
    parser.add_argument("--policy", required=True, help="hf:PATH")
    parser.add_argument("--verifier", default="evidence", help="who finds the turn that went wrong")
    parser.add_argument("--questions", type=int, default=400, help="questions that are asked")
    parser.add_argument("--seed", type=int, help="seed of their world; default: as the test world of the run")
    parser.add_argument("--retries", type=int, default=2, help="retries of each failure, in each arm")
    args: argparse.Namespace = parser.parse_args()
    began = time.perf_counter()
    config = load_config(args.preset).model_copy(update={"policy": args.policy})
    verifier = find_verifier(args.verifier)
    if verifier is None:
        parser.error(f"no verifier {args.verifier!r}")
    task_env, context = open_expert_run(of_unseen_world(config, args.questions, args.seed), "advice")
    figures = summed(asyncio.run(retry_failures(task_env, context, verifier, args.retries)))
    figures |= {"retries_of_each": args.retries, "minutes": round((time.perf_counter() - began) / 60, 1)}
    lines = [f"first tries {figures['base']['mean']:.3f} of {figures['base']['n']}"]
    lines += [
        f"{name}, {arm}: {one['mean']:.3f} [{one['ci95'][0]:.3f}, {one['ci95'][1]:.3f}] of {one['n']}"
        for name in ("retries", "difference")
        for arm, one in figures[name].items()
    ]
    finish("advice", args, figures, lines)


if __name__ == "__main__":
    run_script(main)
