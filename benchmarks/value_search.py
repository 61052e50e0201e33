"""Does the search with a value model answer better than the best of as many episodes by the same model, or their majority?

The shipped policy answers unseen questions of ``examples/rest-rl.toml``, sampled at the temperature of the preset, in four
ways: by the search (``vm_mcts``); for each question by the best, by the value model, of as many episodes as its search has
played; by the answer that most of as many episodes give, without any model; and by a single episode. Differences are paired
over questions.

    python benchmarks/value_search.py
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from common import common_arguments, finish, load, run_script

from agentenv.core.env_lifecycle import close_quickly, make_envs
from agentenv.core.rollout import EpisodeSpec
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.evaluation.statistics.significance import paired_bootstrap
from agentenv.evaluation.task_env import TaskEnv
from agentenv.policies.policy_spec import make_policy
from agentenv.trainers.config.config_files import changed, load_config
from agentenv.trainers.loop.parts import (
    make_chat_format,
    open_questions,
    rollout_config,
    with_declared_scorers,
)
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups


async def answers(
    task_env: TaskEnv, tasks: Sequence[Task], options: dict[str, Any], context: RolloutContext
) -> list[Trajectory]:
    """The episode that ``vm_mcts`` with ``options`` keeps of each task."""
    envs = await make_envs([task_env.make_env] * len(tasks), context.config.deadline_s)
    try:
        groups = [
            [EpisodeSpec(env, task, seed=1000 + place, group_id=task.id)]
            for place, (env, task) in enumerate(zip(envs, tasks, strict=True))
        ]
        played = await play_groups(groups, get_strategy("vm_mcts", options), context)
    finally:
        await close_quickly(envs, context.config.deadline_s)
    return [kept for group in played for kept in group]


async def majority(task_env: TaskEnv, task: Task, count: int, context: RolloutContext) -> float:
    """The reward of the answer that most of ``count`` episodes give; of several such answers the first that was given."""
    envs = await make_envs([task_env.make_env] * count, context.config.deadline_s)
    try:
        specs = [
            EpisodeSpec(env, task, seed=1000 + place, group_id=task.id) for place, env in enumerate(envs)
        ]
        (played,) = await play_groups([specs], get_strategy("plain", {}), context)
    finally:
        await close_quickly(envs, context.config.deadline_s)
    return voted([(str(one.info.get("answer")).strip().lower(), one.reward) for one in played])


def voted(episodes: Sequence[tuple[str, float]]) -> float:
    """The reward of the most frequent answer among ``episodes``, each an answer and its reward; the first of equals."""
    counts = Counter(answer for answer, _ in episodes)
    most = max(counts.values())
    return next(reward for answer, reward in episodes if counts[answer] == most)


def measured(questions: int) -> tuple[dict[str, Any], dict[str, list[float]], list[int]]:
    """Settings, the reward of each question by arm, and the episodes of each search."""
    config = with_declared_scorers(load_config("examples/rest-rl.toml"))
    config = changed(config, {"test.limit": questions, "search.encoder": "hash"})  # no model to index with
    policy = make_policy(config.policy, config.compute)
    task_env = open_questions(config.test, config.search, config.env, policy)
    chat = make_chat_format(config.format, config.chat, policy)
    budgets = rollout_config(config.rollout, config.env, temperature=0.0)
    context = RolloutContext(policy, chat, budgets, policy.tokenizer.decode)
    tasks, options = list(task_env.source.tasks), dict(config.evaluation.strategy_options)
    searched = asyncio.run(answers(task_env, tasks, options, context))
    counts = [int(kept.info["strategy"]["search_episodes"]) for kept in searched]
    by_count: dict[int, list[int]] = defaultdict(list)
    for place, count in enumerate(counts):
        by_count[count].append(place)
    best = [0.0] * len(tasks)
    for count, places in sorted(by_count.items()):
        one = options | {"iterations": 1, "samples": count}
        found = asyncio.run(answers(task_env, [tasks[place] for place in places], one, context))
        for place, kept in zip(places, found, strict=True):
            best[place] = kept.reward
    single = asyncio.run(answers(task_env, tasks, options | {"iterations": 1, "samples": 1}, context))
    sampled = replace(context, config=budgets.model_copy(update={"temperature": config.rollout.temperature}))
    votes = [
        asyncio.run(majority(task_env, task, count, sampled))
        for task, count in zip(tasks, counts, strict=True)
    ]
    rewards = {"search": [t.reward for t in searched], "best": best, "majority": votes}
    rewards["single"] = [t.reward for t in single]
    return {"questions": len(tasks), "policy": config.policy, "encoder": "hash", **options}, rewards, counts


def main() -> None:
    """Plays and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--questions", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    before = load()
    setup, rewards, counts = measured(args.questions)
    means = {name: fmean(values) for name, values in rewards.items()}
    pairs = {
        "search - best": paired_bootstrap(rewards["best"], rewards["search"]),
        "search - majority": paired_bootstrap(rewards["majority"], rewards["search"]),
        "best - majority": paired_bootstrap(rewards["majority"], rewards["best"]),
        "best - single": paired_bootstrap(rewards["single"], rewards["best"]),
    }
    differences: dict[str, dict[str, Any]] = {
        name: {"difference": pair.difference, "ci95": [pair.low, pair.high], "p_value": pair.p_value}
        for name, pair in pairs.items()
    }
    episodes = {"mean": fmean(counts), "fewest": min(counts), "most": max(counts)}
    figures = {
        "setup": setup,
        "means": means,
        "episodes": episodes,
        "differences": differences,
        "load": before,
    }
    lines = [f"{name}: {mean:.3f}" for name, mean in means.items()]
    lines += [
        f"{n}: {d['difference']:+.3f} [{d['ci95'][0]:+.3f}, {d['ci95'][1]:+.3f}]"
        for n, d in differences.items()
    ]
    finish("value_search", args, figures, lines)


if __name__ == "__main__":
    run_script(main)
