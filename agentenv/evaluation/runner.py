"""Running an evaluation: every question once, greedily, through the same episode loop as training."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from agentenv.core.env import Env
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import RolloutConfig, Start, rollout
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.evaluation.records import Record
from agentenv.policies.scripted import ScriptedPolicy

MakeEnv = Callable[[], Env[Any]]

_BATCH = 128  # episodes at a time: bounds the memory of caches, and shows progress


def play(
    policy: Policy,
    chat: ChatFormat,
    make_env: MakeEnv,
    tasks: Sequence[Task],
    config: RolloutConfig,
    *,
    seed: int = 0,
    name: str = "eval",
    progress: Callable[[int], None] = lambda done: None,
) -> list[Trajectory]:
    """One episode for each task, in their order.

    Args:
        policy: Who answers.
        chat: How messages become ids.
        make_env: Makes a fresh environment.
        tasks: The questions.
        config: Budgets and sampling.
        seed: Seeds the episodes.
        name: Prefix of the episode ids.
        progress: Called with the number of finished episodes.
    """
    done: list[Trajectory] = []
    for begin in range(0, len(tasks), _BATCH):
        chunk = tasks[begin : begin + _BATCH]
        starts = [Start(make_env(), task, seed + begin + i) for i, task in enumerate(chunk)]
        try:
            done += asyncio.run(rollout(starts, policy, chat, config, name=f"{name}-{begin}"))
        finally:
            for start in starts:
                start.env.close()
        progress(len(done))
    return done


def play_expert(
    make_env: MakeEnv, tasks: Sequence[Task], config: RolloutConfig, *, seed: int = 0
) -> list[Trajectory]:
    """The scripted expert on every task, through the same loop.

    Raises:
        ConfigurationError: the environment has no expert for a task.
    """
    from agentenv.core.chat import InlineFormat

    scripts: dict[str, Sequence[str]] = {}
    for index, task in enumerate(tasks):
        env = make_env()
        env.reset(seed=seed + index, options={"task": task})
        actions = env.expert()
        env.close()
        if actions is None:
            raise ConfigurationError(f"{type(env).__name__} has no expert for task {task.id!r}")
        begin = index - index % _BATCH
        scripts[f"expert-{begin}-{index - begin}"] = actions
    policy = ScriptedPolicy(scripts)
    roomy = RolloutConfig(context_tokens=1 << 20, turn_tokens=1 << 16, deterministic=config.deterministic)
    return play(policy, InlineFormat(policy.tokenizer), make_env, tasks, roomy, seed=seed, name="expert")


def to_record(trajectory: Trajectory) -> Record:
    """The line of ``episodes.jsonl`` for one episode."""
    task = trajectory.task
    searches = [r for turn in trajectory.turns for r in turn.tool_results if r.name == "search"]
    retrieved = [list(ids) for result in searches for ids in result.data.get("ids", ())]
    record: Record = {
        "id": task.id,
        "question": task.question,
        "answers": list(task.answers),
        "prediction": trajectory.info.get("answer"),
        "valid": trajectory.valid,
        "end_reason": str(trajectory.end_reason),
        "searches": len(retrieved),
        "retrieved_ids": retrieved,
        "prompt": "\n".join(message.text for message in trajectory.prompt),
        "turns": [
            {
                "action": turn.action,
                "observation": "".join(message.text for message in turn.observation),
                "valid": turn.valid,
                "reward": turn.reward,
                "tool_results": [
                    {"name": r.name, "status": str(r.status), "text": r.text, "error_class": r.error_class}
                    for r in turn.tool_results
                ],
            }
            for turn in trajectory.turns
        ],
    }
    if trajectory.valid:
        record["reward"] = trajectory.reward
    if supporting := task.data.get("supporting_ids"):
        record["supporting_ids"] = list(supporting)
    if "cluster" in task.data:
        record["cluster"] = task.data["cluster"]
    if "canary" in task.data:
        record["canary"] = task.data["canary"]
    if family := task.data.get("family"):
        record["family"] = family
    if hops := task.data.get("hops"):
        record["hops"] = hops
    return record
