"""What the environment's expert does on the training tasks, written down as successes for the sampler ``dart``."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.env_lifecycle import open_envs
from agentenv.core.io.files import write_text
from agentenv.core.rollout import EpisodeSpec
from agentenv.core.trajectory import SegmentKind, Trajectory, Turn, to_record
from agentenv.core.types import EndReason
from agentenv.evaluation.task_env import TaskEnv
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop.parts import (
    make_chat_format,
    open_questions,
    rollout_config,
    trained_policy,
    with_declared_scorers,
)
from agentenv.trainers.strategies.demonstrations import expert_actions, spell, was_cut
from agentenv.trainers.strategies.rollout_context import RolloutContext


class ExpertAttempt(NamedTuple):
    """An episode of the expert."""

    trajectory: Trajectory
    ceiling: float
    """The most that the episode could earn."""

    @property
    def solved(self) -> bool:
        """Whether it earned that much, and no infrastructure failure ended it."""
        return self.trajectory.valid and self.trajectory.reward >= self.ceiling


def record_expert(config: TrainConfig, path: Path | str) -> int:
    """Plays the expert once on every training task of ``config`` and writes what succeeds within its budgets.

    The ids are those of the policy's tokenizer. No policy sampled them: they are marked as of another context.

    Args:
        config: The run that is to use them as ``pool``.
        path: The file, in JSON lines.

    Returns:
        How many tasks have a success.

    Raises:
        ConfigurationError: the environment has no expert for a task, or the configuration cannot be used.
    """
    path = Path(path)
    shown = expert_episodes(config)
    lines = "".join(json.dumps(to_record(trajectory, whole=True)) + "\n" for trajectory in shown)
    write_text(path, lines)
    return len(shown)


def expert_episodes(config: TrainConfig) -> list[Trajectory]:
    """What the expert does on the training tasks of ``config``, where it succeeds, spelt by the policy's tokenizer.

    Raises:
        ConfigurationError: the environment has no expert for a task, or the configuration cannot be used.
    """
    return [one.trajectory for one in expert_attempts(config) if one.solved]


def expert_attempts(config: TrainConfig) -> list[ExpertAttempt]:
    """What the expert does on every training task of ``config``, spelt by the policy's tokenizer, with success or without.

    Raises:
        ConfigurationError: as ``expert_episodes``.
    """
    task_env, context = open_expert_run(config, "expert")
    places = range(len(task_env.source.tasks))
    return [run_to_completion(_play(task_env, place, context)) for place in places]


def why_none_is_shown(attempts: Sequence[ExpertAttempt], turn_tokens: int) -> str:
    """In words, what became of ``attempts`` of which none can be shown to a policy; a turn had ``turn_tokens``."""
    if solved := sum(one.solved for one in attempts):
        return f"{solved} of {len(attempts)} answered without having found the documents of the answer"
    if not (valid := [one.trajectory for one in attempts if one.trajectory.valid]):
        if all(was_cut(one.trajectory) for one in attempts):
            return (
                f"rollout.turn_tokens = {turn_tokens} cut a turn of the expert in all {len(attempts)} of them"
            )
        first = attempts[0].trajectory.error
        return f"all {len(attempts)} ended by an infrastructure failure, the first by: {first}"
    ends = Counter(one.end_reason for one in valid)
    words = ", ".join(f"{count} as {end}" for end, count in ends.most_common())
    best = max(one.reward for one in valid)
    said = f"of {len(attempts)} there ended {words}, and the best earned {best:g} of {attempts[0].ceiling:g}"
    if any(tokens >= turn_tokens for one in valid for tokens in _policy_tokens(one).values()):
        said += f"; rollout.turn_tokens = {turn_tokens} cut some turns"
    if unwritable := next(
        (one.error for one in valid if one.end_reason is EndReason.PARSE_ERROR and one.error), ""
    ):
        said += f"; {unwritable}"
    if ends[EndReason.TOKEN_LIMIT]:
        said += "; rollout.context_tokens may be too small"
    return said


def _policy_tokens(trajectory: Trajectory) -> Counter[int]:
    """How many tokens the policy wrote in each turn."""
    tokens: Counter[int] = Counter()
    for segment in trajectory.segments:
        if segment.kind is SegmentKind.POLICY:
            tokens[segment.turn] += len(segment.ids)
    return tokens


def open_expert_run(config: TrainConfig, name: str) -> tuple[TaskEnv, RolloutContext]:
    """The training tasks of a run, and what its episodes are played with; ``name`` is the prefix of their ids.

    Raises:
        ConfigurationError: the configuration cannot be used.
    """
    config = with_declared_scorers(config)
    policy = trained_policy(config.policy, config.lora, config.compute, seed=config.seed)
    task_env = open_questions(config.train, config.search, config.env, policy)
    settings = rollout_config(config.rollout, config.env, temperature=config.rollout.temperature)
    chat = make_chat_format(config.format, config.chat, policy)
    return task_env, RolloutContext(policy, chat, settings, policy.tokenizer.decode, name=name)


def found_its_sources(trajectory: Trajectory, *, searched: bool = False) -> bool:
    """Whether an episode that searched found every document that its answer stands on, as far as the task names them.

    The expert knows the answer anyway; a policy that imitates it there learns to answer what it did not read.

    Args:
        trajectory: The episode.
        searched: Whether an episode that has not searched counts as one that found nothing.
    """
    unread = not searched and not any(
        "ids" in result.data for turn in trajectory.turns for result in turn.tool_results
    )
    return unread or found_documents(trajectory.turns).issuperset(
        trajectory.task.data.get("supporting_ids", ())
    )


def found_documents(turns: Sequence[Turn]) -> set[str]:
    """The ids of all documents that the searches of ``turns`` found."""
    results = (result for turn in turns for result in turn.tool_results)
    return {one for result in results for ids in result.data.get("ids", ()) for one in ids}


async def _play(task_env: TaskEnv, place: int, context: RolloutContext) -> ExpertAttempt:
    async with open_envs([task_env.make_env], context.config.deadline_s) as (env,):
        spec = EpisodeSpec(env, task_env.source.tasks[place], seed=place)
        return ExpertAttempt(await spell(spec, context, expert_actions), env.reward_ceiling)
