"""The episode loop: policy and environment take turns, and every id is recorded as it was sampled or fed."""

import asyncio
import math
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypeVar

from agentenv.core.batching import Lockstep
from agentenv.core.env import Env
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.scene import Scene
from agentenv.core.snapshot import Snapshot
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import Completion, EndReason, Info, Observation, Sampling, Step, Task
from agentenv.errors import (
    ConfigurationError,
    ContextTooSmall,
    EnvFault,
    Fault,
    PolicyFault,
    SnapshotRefused,
)

T = TypeVar("T")

_STEP_INFO = ("turn", "tool_results", "valid", "end_reason")


@dataclass(frozen=True)
class RolloutConfig:
    """Budgets and sampling of an episode."""

    context_tokens: int = 4096
    """Tokens that prompt, actions and observations of one row may take together."""
    turn_tokens: int = 500
    """Tokens that the policy may sample in one turn."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """1 keeps the whole distribution."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn and stay part of it."""
    deadline_s: float = 600.0
    """Seconds that one call of policy or environment may take, waiting for other episodes included."""
    deterministic: bool = True
    """Batches are formed by episode index, never by arrival, so that equal seeds give equal files."""


@dataclass(frozen=True)
class Start:
    """One episode to run: an environment of its own, what it is about, and its seed."""

    env: Env[Any]
    task: Task
    seed: int
    group_id: str = ""
    gate: Callable[["Record"], bool] | None = None
    """Asked after each turn whether the episode goes on; one that does not ends as ``aborted``, which is not trained."""


@dataclass
class Record:
    """An episode under way: everything needed to go on, or to close it as a ``Trajectory``."""

    start: Start
    episode: str
    prompt: Observation = ()
    ids: list[int] = field(default_factory=list)
    """The present row."""
    row: int = 0
    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    policy_seconds: float = 0.0
    """Seconds that the last sample took."""
    ended: Trajectory | None = None
    """The finished trajectory, once the episode is over."""

    @property
    def reward(self) -> float:
        """Sum of the rewards so far."""
        return sum(turn.reward for turn in self.turns)

    def copy(self) -> "Record":
        """The episode as it stands, to come back to; the environment is not copied."""
        return replace(self, ids=[*self.ids], segments=[*self.segments], turns=[*self.turns])

    def add(self, kind: SegmentKind, ids: Sequence[int], turn: int, **extra: Any) -> None:
        """Appends ids to the present row; nothing is recorded for no ids."""
        if ids:
            self.segments.append(Segment(kind, tuple(ids), turn, row=self.row, **extra))
            self.ids.extend(ids)

    def reopen(self, ids: Sequence[int], turn: int) -> None:
        """Opens a new row on ``ids``, which did not extend the present one."""
        self.row += 1
        self.ids = []
        self.add(SegmentKind.PROMPT, ids, turn)

    def close(self, reward: float, end: EndReason, info: dict[str, Any], error: str = "") -> None:
        """Ends the episode."""
        self.ended = Trajectory(
            task=self.start.task,
            segments=tuple(self.segments),
            turns=tuple(self.turns),
            reward=0.0 if end.is_fault else reward,
            end_reason=end,
            prompt=self.prompt,
            valid=not end.is_fault,
            error=error,
            group_id=self.start.group_id,
            id=self.episode,
            info={key: value for key, value in info.items() if key not in _STEP_INFO},
        )

    def fail(self, end: EndReason, error: Exception) -> None:
        """Ends the episode through a fault of ours."""
        self.close(0.0, end, {}, _describe(error))


async def run_episode(
    start: Start, policy: Policy, chat: ChatFormat, config: RolloutConfig, *, episode: str
) -> Trajectory:
    """Plays one episode to its end.

    A fault of ours ends it as an invalid trajectory; a mistake of the policy is part of the record. The
    episode ends with ``token_limit`` before a prompt would overflow; the prompt is never cut.

    Raises:
        ContextTooSmall: the opening prompt leaves no room for one turn.
        ConfigurationError: the environment cannot pose this task, the format cannot render it, or the policy
            cannot be asked as it is configured.
    """
    record = await open_episode(start, chat, config, episode=episode)
    try:
        return await play(record, policy, chat, config)
    finally:
        policy.release(episode)


async def open_episode(start: Start, chat: ChatFormat, config: RolloutConfig, *, episode: str) -> Record:
    """Poses the task: a record that holds the prompt, or has ended with a fault of the environment.

    Raises:
        ContextTooSmall: the prompt leaves no room for one turn.
        ConfigurationError: the environment cannot pose this task, or the format cannot render it.
    """
    record = Record(start, episode)
    reset = start.env.areset(seed=start.seed, options={"task": start.task})
    try:
        opening, info = await within(config.deadline_s, reset, EnvFault("the environment's reset"))
        check_posed(start.task, info)
    except ConfigurationError:
        raise
    except Exception as error:
        record.fail(EndReason.ENV_FAULT, error)
        return record
    record.prompt = opening
    record.add(SegmentKind.PROMPT, chat.prompt(opening), 0)
    if len(record.ids) >= config.context_tokens:
        raise ContextTooSmall(
            f"the prompt of task {start.task.id!r} takes {len(record.ids)} tokens and context_tokens is "
            f"{config.context_tokens}: raise it"
        )
    return record


def check_posed(task: Task, info: Info) -> None:
    """Looks whether ``reset`` posed ``task``: an episode of another one would be scored under the wrong name.

    Raises:
        EnvFault: ``info["task_id"]`` is not the id of the task.
    """
    posed = info.get("task_id")
    if posed != task.id:
        said = "gave no info['task_id']" if posed is None else f"posed task {posed!r}"
        raise EnvFault(
            f"task {task.id!r} was to be posed, but the environment's reset {said}: "
            "it has to pose options['task'] and to give that task's id as info['task_id']"
        )


async def play(record: Record, policy: Policy, chat: ChatFormat, config: RolloutConfig) -> Trajectory:
    """Takes turns from where ``record`` stands until the episode ends."""
    while record.ended is None:
        await take_turn(record, policy, chat, config)
        gate = record.start.gate
        if record.ended is None and gate is not None and not gate(record):
            record.close(0.0, EndReason.ABORTED, {}, "given up while it was played")
    return record.ended


async def take_turn(record: Record, policy: Policy, chat: ChatFormat, config: RolloutConfig) -> None:
    """One turn: the policy writes, the environment acts on it and its observation is appended."""
    completion = await sample(record, policy, config)
    if completion is None:
        return
    observation = await act(record, completion.text, config)
    if observation is not None:
        observe(record, chat, observation, config.context_tokens)


async def sample(
    record: Record, policy: Policy, config: RolloutConfig, *, attempt: int = 0
) -> Completion | None:
    """What the policy writes next, appended to ``record``; None where that ended the episode.

    Args:
        record: The episode.
        policy: Who acts.
        config: Budgets and sampling.
        attempt: Other numbers draw other tokens in the same turn.

    Raises:
        ContextTooSmall: the policy's own context is too small for the opening prompt.
        ConfigurationError: the policy cannot be asked as it is configured.
    """
    room = config.context_tokens - len(record.ids)
    if room <= 0:
        record.close(record.reward, EndReason.TOKEN_LIMIT, {})
        return None
    began = time.perf_counter()
    try:
        completion = await _generate(record, policy, config, room, attempt)
    except ContextTooSmall:  # the policy's own context may be smaller than the budget
        if not record.turns:
            raise
        record.close(record.reward, EndReason.TOKEN_LIMIT, {})
        return None
    except ConfigurationError:  # the same for every episode: a wrong key or model
        raise
    except Exception as error:
        record.fail(EndReason.POLICY_FAULT, error)
        return None
    record.policy_seconds = time.perf_counter() - began
    _record_sample(record, completion)
    return completion


def _record_sample(record: Record, completion: Completion) -> None:
    """One segment for each run of ids that one version of the weights sampled."""
    versions = completion.versions or (completion.version,) * len(completion.ids)
    end = 0
    for version, run in groupby(versions):
        start, end = end, end + len(list(run))
        record.add(
            SegmentKind.POLICY,
            completion.ids[start:end],
            len(record.turns),
            logprobs=completion.logprobs[start:end],
            version=version,
            token_true=completion.token_true,
        )


async def act(record: Record, action: str, config: RolloutConfig) -> Observation | None:
    """The environment acts on ``action``, whose ids stand in ``record``; the turn is appended.

    Returns:
        What is new, for ``observe``; None where the action ended the episode.
    """
    env = record.start.env
    began = time.perf_counter()
    try:
        key, scene = env.anchor_key(), env.scene()
        step = await within(config.deadline_s, env.astep(action), EnvFault("the environment's step"))
    except Exception as error:
        record.fail(EndReason.ENV_FAULT, error)
        return None
    _record_turn(record, action, step, key, scene, time.perf_counter() - began)
    if step.terminated or step.truncated:
        record.close(record.reward, step.info["end_reason"], step.info)
        return None
    return step.observation


async def capture(record: Record, config: RolloutConfig) -> Snapshot | None:
    """The environment's present state, for ``rewind``; whoever asks releases it.

    None where it cannot be captured as it stands (a live interpreter with threads), and where that failed and ended the
    episode.
    """
    taking = asyncio.to_thread(record.start.env.snapshot)
    try:
        return await within(config.deadline_s, taking, EnvFault("the environment's snapshot"))
    except SnapshotRefused:
        return None
    except Exception as error:
        record.fail(EndReason.ENV_FAULT, error)
        return None


async def rewind(record: Record, snapshot: Snapshot, config: RolloutConfig) -> None:
    """Takes the environment back to ``snapshot``; a failure ends the episode."""
    going = asyncio.to_thread(record.start.env.restore, snapshot)
    try:
        await within(config.deadline_s, going, EnvFault("the environment's restore"))
    except Exception as error:
        record.fail(EndReason.ENV_FAULT, error)


async def fork(record: Record, n: int, config: RolloutConfig) -> list[Env[Any]]:
    """``n`` environments in the present state of that of ``record``; whoever asks closes them.

    None at all where it cannot be captured as it stands, and where that failed and ended the episode.
    """
    forking = asyncio.to_thread(record.start.env.fork, n)
    try:
        return await within(config.deadline_s, forking, EnvFault("the environment's fork"))
    except SnapshotRefused:
        return []
    except Exception as error:
        record.fail(EndReason.ENV_FAULT, error)
        return []


async def _generate(
    record: Record, policy: Policy, config: RolloutConfig, room: int, attempt: int
) -> Completion:
    sampling = Sampling(
        max_tokens=min(config.turn_tokens, room),
        temperature=config.temperature,
        top_p=config.top_p,
        stop=config.stop,
        seed=record.start.seed * 1_000_003 + len(record.turns) + (attempt << 52),
    )
    generating = policy.generate(record.ids, sampling, episode=record.episode)
    completion = await within(config.deadline_s, generating, PolicyFault("the policy"))
    if completion.token_true and not all(map(math.isfinite, completion.logprobs)):
        raise PolicyFault("the policy's log-probs are not finite: its weights have diverged or overflow")
    return completion


def _record_turn(
    record: Record, action: str, step: Step, key: str | None, scene: Scene | None, env_seconds: float
) -> None:
    record.turns.append(
        Turn(
            action=action,
            observation=step.observation,
            tool_results=step.info["tool_results"],
            reward=step.reward,
            valid=step.info["valid"],
            anchor_key=key,
            policy_seconds=record.policy_seconds,
            env_seconds=env_seconds,
            scene=scene,
        )
    )


def observe(record: Record, chat: ChatFormat, observation: Observation, limit: int) -> None:
    """Appends the observation; opens a new row where the format did not extend what stands there.

    An observation that begins with a system message is a whole context: the policy goes on from that and from nothing
    before it. An observation that would overflow the row stays out of it: the next turn has no room and the episode
    ends.
    """
    turn = len(record.turns) - 1
    glue = chat.closing(record.ids)
    held = [*record.ids, *glue]
    anew = bool(observation) and observation[0].role == "system"
    extended = chat.prompt(observation) if anew else chat.extend(held, observation)
    if len(extended) >= limit:
        record.ids = extended
    elif extended[: len(held)] != held:
        record.reopen(extended, turn + 1)
    else:
        record.add(SegmentKind.GLUE, glue, turn)
        record.add(SegmentKind.ENV, extended[len(held) :], turn)


async def within(seconds: float, work: Awaitable[T], fault: Fault) -> T:
    """The result of ``work``, or ``fault``, which names who was waited for."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError as error:
        if limit.expired():
            raise type(fault)(f"{fault} took longer than {seconds} s") from error
        raise


def _describe(error: Exception) -> str:
    if isinstance(error, Fault):
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception(error))


async def rollout(
    starts: Sequence[Start], policy: Policy, chat: ChatFormat, config: RolloutConfig, *, name: str
) -> list[Trajectory]:
    """Plays all episodes concurrently; the result is in the order of ``starts``.

    Args:
        starts: The episodes.
        policy: Who acts.
        chat: How messages become ids.
        config: Budgets and sampling.
        name: Prefix of the episode ids; equal names and seeds give equal records.

    Raises:
        ContextTooSmall: a prompt leaves no room for one turn.
        ConfigurationError: a task cannot be posed or rendered.
    """
    lockstep = Lockstep() if config.deterministic else None

    async def one(index: int, start: Start) -> Trajectory:
        episode = f"{name}-{index}"
        if lockstep is None:
            return await run_episode(start, policy, chat, config, episode=episode)
        with lockstep.episode(index):
            return await run_episode(start, policy, chat, config, episode=episode)

    return await together(one(index, start) for index, start in enumerate(starts))


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of ``work``, which runs concurrently; the first error ends the rest.

    Every coroutine begins before any of them goes on after its first wait, so that seats of a lockstep that they take
    at their beginning are all taken in time.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as several:  # they are of one kind: bad input; the first says it
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


__all__ = [
    "Record",
    "RolloutConfig",
    "Start",
    "act",
    "capture",
    "check_posed",
    "fork",
    "observe",
    "open_episode",
    "play",
    "rewind",
    "rollout",
    "run_episode",
    "sample",
    "take_turn",
    "together",
    "within",
]
