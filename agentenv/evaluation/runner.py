"""Plays the episodes of an evaluation: every question once, greedily, by the same episode loop as training."""

import reprlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentenv.core.acting import step_env
from agentenv.core.chat import InlineFormat
from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.env import Env
from agentenv.core.env_calls import call_plain
from agentenv.core.env_lifecycle import (
    MakeEnv,
    close_envs,
    close_quickly,
    make_envs,
    mask_trajectory,
    open_envs,
)
from agentenv.core.images import images_of
from agentenv.core.options import load_entry
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, opening_of, rollout
from agentenv.core.tool_results import searches_of
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import Task, ToolResult
from agentenv.errors import ConfigurationError, EnvFault
from agentenv.evaluation.records import EpisodeRecord, SegmentRecord, ToolRecord, TurnRecord
from agentenv.evaluation.screens import keep_scenes
from agentenv.policies.scripted import ScriptedPolicy

Roll = Callable[..., Awaitable[list[Trajectory]]]
"""A function with the arguments of ``rollout``, which plays episodes and returns one trajectory for each."""

_STRATEGY_ROLL = "agentenv.trainers.strategies.evaluation_roll:strategy_roll"
"""Imported by name, because strategies belong to a later layer; without a strategy nothing is imported."""

_BYTE_CONTEXT_TOKENS = 1 << 20  # context length for policies whose tokens are bytes
BATCH = 128
"""Default number of episodes played at a time. It limits the memory of caches, and progress is shown after each batch."""
SAMPLES = 1_009
"""Upper limit of the indices of samples of the same questions; see ``first_seed``."""
_QUESTIONS = 1_000_003  # more than the questions of any set


def roll_of(strategy: str, options: Mapping[str, Any]) -> Roll:
    """Returns the function that plays the episodes of a batch with a rollout strategy; an empty name is no strategy.

    Raises:
        UnknownName: there is no such strategy, or it has no such option.
        ConfigurationError: an option has a wrong value, or the strategy needs a group of several episodes.
    """
    if not strategy:
        return rollout
    roll: Roll = load_entry(_STRATEGY_ROLL)(strategy, options)
    return roll


def play(
    policy: Policy,
    chat: ChatFormat,
    make_env: MakeEnv,
    tasks: Sequence[Task],
    config: RolloutConfig,
    *,
    seed: int = 0,
    name: str = "eval",
    roll: Roll = rollout,
) -> list[Trajectory]:
    """Plays one episode for each task; returns them in the order of the tasks.

    Args:
        policy: The policy that answers.
        chat: How messages become ids.
        make_env: Makes a new environment.
        tasks: The questions.
        config: Budgets and sampling.
        seed: The seed of the episodes.
        name: Prefix of the episode ids.
        roll: The function that plays the episodes of a batch.
    """
    done: list[Trajectory] = []
    for begin in range(0, len(tasks), BATCH):
        chunk = tasks[begin : begin + BATCH]
        done += run_to_completion(
            play_batch(policy, chat, make_env, chunk, config, begin, seed=seed, name=name, roll=roll)
        )
    return done


def first_seed(seed: int, sample: int = 0) -> int:
    """Returns the seed of the first episode of an evaluation. The question at index i has this seed plus i.

    Different seeds or samples give questions different episode seeds. With ``seed + i`` instead, the second question under
    seed 0 and the first one under seed 1 would draw the same random numbers, and several seeds would be hardly better than
    one. All seeds are below 2^31, because environments may seed generators that accept no larger number, such as NumPy's
    `RandomState`. For seeds up to 999 with 32 samples each, no two evaluations of at most 14,000 questions share a seed.
    Beyond that some may be shared.

    Args:
        seed: The seed of the evaluation, or of the run that it belongs to.
        sample: The index of this sample of the same questions.
    """
    return (seed * SAMPLES + sample) * _QUESTIONS % (2**31 - _QUESTIONS)


def valid_episodes(played: Sequence[Trajectory]) -> list[Trajectory]:
    """Returns the episodes that did not end by an infrastructure failure, for means of rewards.

    Raises:
        EnvFault: there are none; has the error of the first episode.
    """
    valid = [trajectory for trajectory in played if trajectory.valid]
    if played and not valid:
        raise EnvFault(
            f"each of {len(played)} episodes met an infrastructure failure, the first one this: {played[0].error}"
        )
    return valid


async def play_batch(
    policy: Policy,
    chat: ChatFormat,
    make_env: MakeEnv,
    tasks: Sequence[Task],
    config: RolloutConfig,
    begin: int,
    *,
    seed: int,
    name: str,
    roll: Roll = rollout,
) -> list[Trajectory]:
    """Plays the episodes of one batch, whose first task has the index ``begin`` in its set.

    Ids and seeds depend only on this index, so a batch that is played again gives the same episodes.
    """
    envs = await make_envs([make_env] * len(tasks), config.deadline_s)
    posed = enumerate(zip(envs, tasks, strict=True))
    specs = [EpisodeSpec(env, task, seed + begin + i) for i, (env, task) in posed]
    try:
        played = await roll(specs, policy, chat, config, name=f"{name}-{begin}")
    except BaseException:
        await close_quickly(envs, config.deadline_s)
        raise
    flaws = await close_envs(envs, config.deadline_s)
    return [mask_trajectory(trajectory, flaw) for trajectory, flaw in zip(played, flaws, strict=True)]


def play_expert(
    make_env: MakeEnv,
    tasks: Sequence[Task],
    config: RolloutConfig,
    *,
    seed: int = 0,
    shown_only: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Trajectory]:
    """Plays the scripted expert on every task, by the same episode loop.

    The scripts of each batch are made before it is played, so that progress is visible and a failure loses only one batch.

    Args:
        make_env: Makes a new environment.
        tasks: The questions.
        config: Budgets.
        seed: The seed of the episodes.
        shown_only: As in `expert_policy`.
        progress: Called with the number of finished episodes.

    Raises:
        ConfigurationError: the environment has no expert for a task.
        EnvFault: the environment failed for every task.
    """
    done: list[Trajectory] = []
    failed: list[str] = []
    for begin in range(0, len(tasks), BATCH):
        chunk = tasks[begin : begin + BATCH]
        policy = expert_policy(
            make_env,
            chunk,
            BATCH,
            config.deadline_s,
            seed=seed,
            name="expert",
            first=begin,
            shown_only=shown_only,
        )
        failed += policy.failures.values()
        chat, budgets = InlineFormat(policy.tokenizer, unread=True), with_byte_budgets(config)
        done += run_to_completion(
            play_batch(policy, chat, make_env, chunk, budgets, begin, seed=seed, name="expert")
        )
        progress(len(done))
    if failed and len(failed) == len(tasks):
        raise EnvFault(f"the scripted expert failed on each of {len(tasks)} tasks ({failed[0]})")
    return done


def expert_policy(
    make_env: MakeEnv,
    tasks: Sequence[Task],
    batch: int,
    seconds: float,
    *,
    seed: int,
    name: str,
    first: int = 0,
    shown_only: bool = False,
) -> ScriptedPolicy:
    """Makes the scripts of the environment's own expert, for tasks played ``batch`` at a time under ``name``.

    If the environment fails for a task, the task has no script and its episode is masked.

    Args:
        make_env: Makes a new environment.
        tasks: The questions.
        batch: The number of episodes played at a time.
        seconds: The time limit of one call of the environment.
        seed: The seed of the episodes.
        name: The prefix of their ids.
        first: The index of the first task in its set, a multiple of ``batch``.
        shown_only: Whether the expert gives up if the evidence for its answer was not shown, so that its score is that of
            the search and not 1 by definition. To find this out, its actions are played once beforehand.

    Raises:
        ConfigurationError: the environment has no expert for a task, or cannot pose the task.
    """

    async def written() -> ScriptedPolicy:
        scripts: dict[str, Sequence[str]] = {}
        failures: dict[str, str] = {}
        for index, task in enumerate(tasks, first):
            actions = await _script(make_env, task, seed + index, seconds, shown_only)
            begin = index - index % batch
            episode = f"{name}-{begin}-{index - begin}"
            if isinstance(actions, EnvFault):
                failures[episode] = str(actions)
            elif isinstance(actions, Exception):
                failures[episode] = f"{type(actions).__name__}: {actions}"
            else:
                scripts[episode] = actions
        return ScriptedPolicy(scripts, failures=failures)

    return run_to_completion(written())


async def _script(
    make_env: MakeEnv, task: Task, seed: int, seconds: float, shown_only: bool
) -> Sequence[str] | Exception:
    """Returns the expert's actions for ``task``, or the error if the environment failed."""
    config = RolloutConfig(deadline_s=seconds, context_tokens=_BYTE_CONTEXT_TOKENS)
    async with open_envs([make_env], seconds) as (env,):
        try:
            await opening_of(EpisodeSpec(env, task, seed), config)
            actions = await call_plain("the environment's expert", seconds, env.expert)
            if shown_only and actions and type(env).expert_gives_up is not Env.expert_gives_up:
                for action in actions[:-1]:
                    await step_env(env, action, config)
                last = await call_plain("the environment's expert", seconds, env.expert_gives_up)
                actions = actions if last is None else (*actions[:-1], last)
            if actions is not None and not all(isinstance(action, str) for action in actions):
                raise EnvFault(f"the environment's expert gave {reprlib.repr(actions)}; it must give texts")
        except ConfigurationError:
            raise
        except Exception as error:
            return error
    if actions is None:
        raise ConfigurationError(f"{type(env).__name__} has no expert for task {task.id!r}")
    return actions


def with_byte_budgets(config: RolloutConfig) -> RolloutConfig:
    """Returns the configuration with larger budgets, for policies whose tokens are bytes."""
    return config.model_copy(update={"context_tokens": _BYTE_CONTEXT_TOKENS, "turn_tokens": 1 << 16})


def to_record(
    trajectory: Trajectory, directory: Path | None = None, *, counted: bool = True, token_ids: bool = False
) -> EpisodeRecord:
    """Makes the line of ``episodes.jsonl`` of one episode.

    Args:
        trajectory: The episode.
        directory: The folder of the evaluation. Pictures of the screens are written there and named in the record, except
            for a sealed set. None leaves them out.
        counted: Whether numbers of tokens are meaningful; an agent behind a plain function has none.
        token_ids: Whether the record contains the token ids; never for a sealed set, whose text they encode, or with images.
    """
    task = trajectory.task
    results = (result for turn in trajectory.turns for result in turn.tool_results)
    retrieved = searches_of(results, complete=trajectory.reports_searches)
    record: EpisodeRecord = {
        "id": task.id,
        "question": task.question,
        "answers": list(task.answers),
        "prediction": trajectory.info.get("answer"),
        "valid": trajectory.valid,
        "end_reason": str(trajectory.end_reason),
        "searches": None if retrieved is None else len(retrieved),
        **({} if retrieved is None else {"retrieved_ids": retrieved}),  # type: ignore[typeddict-item]
        "prompt": "\n".join(message.text for message in trajectory.prompt),
        "turns": [_turn_record(turn) for turn in trajectory.turns],
    }
    if len(trajectory.prompt) > 1:
        record["opening"] = [message.text for message in trajectory.prompt]
    if trajectory.tools is not None:
        record["tools"] = [dict(tool) for tool in trajectory.tools]
    if images := len(images_of(trajectory.prompt)):
        record["images"] = images
    if counted:
        _count_tokens(record, trajectory)
    if roles := _unusual_roles(trajectory):
        record["roles"] = roles
    if token_ids and "canary" not in task.data and not any(s.images for s in trajectory.segments):
        record["segments"] = [_segment_record(segment) for segment in trajectory.segments]
    if directory is not None and "canary" not in task.data:
        for row, scene in zip(record["turns"], keep_scenes(trajectory, directory), strict=True):
            if scene is not None:
                row["scene"] = scene
    if "solved" in trajectory.info:
        record["solved"] = trajectory.info["solved"]
    if trajectory.error:
        record["error"] = trajectory.error
    if trajectory.valid:
        record["reward"] = trajectory.reward
    if "rank" in trajectory.info:
        record["rank"] = trajectory.info["rank"]
    if "followed_share" in trajectory.info:
        record["followed_share"] = trajectory.info["followed_share"]
    _describe_task(record, task)
    return record


def _turn_record(turn: Turn) -> TurnRecord:
    record: TurnRecord = {
        "action": turn.action,
        "observation": "".join(message.text for message in turn.observation),
        "valid": turn.valid,
        "reward": turn.reward,
        "tool_results": [_tool_record(result) for result in turn.tool_results],
    }
    if turn.cut:
        record["cut"] = True
    if len(turn.observation) > 1:
        record["messages"] = [message.text for message in turn.observation]
    if images := len(images_of(turn.observation)):
        record["images"] = images
    return record


def _describe_task(record: EpisodeRecord, task: Task) -> None:
    """Adds the metadata of the task to the record."""
    if supporting := task.data.get("supporting_ids"):
        record["supporting_ids"] = list(supporting)
    if "cluster" in task.data:
        record["cluster"] = str(task.data["cluster"])
    if "canary" in task.data:
        record["canary"] = task.data["canary"]
    if isinstance(own := task.data.get("set"), str):
        record["set"] = own
    if family := task.data.get("family"):
        record["family"] = family
    if hops := task.data.get("hops"):
        record["hops"] = hops


def _count_tokens(record: EpisodeRecord, trajectory: Trajectory) -> None:
    """Adds the numbers of tokens of the episode and of each of its turns."""
    tokens: Counter[tuple[int, SegmentKind]] = Counter()
    for segment in trajectory.segments:
        tokens[segment.turn, segment.kind] += len(segment.ids)
    record["tokens"] = {"policy": trajectory.response_tokens, "total": tokens.total()}
    for index, turn in enumerate(record["turns"]):
        turn["policy_tokens"] = tokens[index, SegmentKind.POLICY]
        in_new_row = (index + 1, SegmentKind.PROMPT) in tokens  # which contains the earlier text too
        if not in_new_row:
            turn["observation_tokens"] = tokens[index, SegmentKind.ENV]


def _unusual_roles(trajectory: Trajectory) -> list[list[str]]:
    """Returns the roles of the opening messages and of those after each turn; empty if they are one user and tools.

    A record contains only the texts, and in some chat formats the roles influence the tokens.
    """
    shown = [[str(message.role) for message in turn.observation] for turn in trajectory.turns]
    opening = [str(message.role) for message in trajectory.prompt]
    usual = opening in ([], ["user"]) and all(roles in ([], ["tool"]) for roles in shown)
    return [] if usual else [opening, *shown]


def _segment_record(segment: Segment) -> SegmentRecord:
    record: SegmentRecord = {
        "kind": str(segment.kind),
        "turn": segment.turn,
        "row": segment.row,
        "ids": list(segment.ids),
    }
    if not segment.trained:
        record["trained"] = False
    return record


def _tool_record(result: ToolResult) -> ToolRecord:
    record: ToolRecord = {
        "name": result.name,
        "status": str(result.status),
        "text": result.text,
        "error_class": result.error_class,
    }
    if ids := result.data.get("ids"):
        record["ids"] = [list(ranking) for ranking in ids]
    return record
