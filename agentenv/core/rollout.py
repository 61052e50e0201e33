"""The episode loop: policy and environment take turns, and every id is recorded as it was sampled or fed."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentenv.core.batching import Lockstep
from agentenv.core.env import Env
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import Completion, EndReason, Message, Observation, Sampling, Step, Task
from agentenv.errors import ConfigurationError, ContextTooSmall, EnvFault, Fault, PolicyFault

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

    def close(self, reward: float, end: EndReason, info: dict[str, Any], error: str = "") -> Trajectory:
        """The finished trajectory."""
        return Trajectory(
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
    record = Record(start, episode)
    reset = start.env.areset(seed=start.seed, options={"task": start.task})
    try:
        opening, _ = await _within(config.deadline_s, reset, EnvFault("the environment's reset"))
    except ConfigurationError:
        raise
    except Exception as error:
        return record.close(0.0, EndReason.ENV_FAULT, {}, _describe(error))
    record.prompt = opening
    record.add(SegmentKind.PROMPT, chat.prompt(opening), 0)
    if len(record.ids) >= config.context_tokens:
        raise ContextTooSmall(
            f"the prompt of task {start.task.id!r} takes {len(record.ids)} tokens and context_tokens is "
            f"{config.context_tokens}: raise it"
        )
    try:
        return await play(record, policy, chat, config)
    finally:
        policy.release(episode)


async def play(record: Record, policy: Policy, chat: ChatFormat, config: RolloutConfig) -> Trajectory:
    """Takes turns from where ``record`` stands until the episode ends."""
    reward = sum(turn.reward for turn in record.turns)
    env = record.start.env
    while True:
        room = config.context_tokens - len(record.ids)
        if room <= 0:
            return record.close(reward, EndReason.TOKEN_LIMIT, {})
        began = time.perf_counter()
        try:
            completion = await _sample(record, policy, config, room)
        except ContextTooSmall:  # the policy's own context may be smaller than the budget
            if not record.turns:
                raise
            return record.close(reward, EndReason.TOKEN_LIMIT, {})
        except ConfigurationError:  # the same for every episode: a wrong key or model
            raise
        except Exception as error:
            return record.close(0.0, EndReason.POLICY_FAULT, {}, _describe(error))
        acted = time.perf_counter()
        try:
            key = env.anchor_key()
            acting = env.astep(completion.text)
            step = await _within(config.deadline_s, acting, EnvFault("the environment's step"))
        except Exception as error:
            return record.close(0.0, EndReason.ENV_FAULT, {}, _describe(error))
        seconds = (acted - began, time.perf_counter() - acted)
        _record_turn(record, completion, step, key, seconds)
        reward += step.reward
        if step.terminated or step.truncated:
            return record.close(reward, step.info["end_reason"], step.info)
        _observe(record, chat, step.observation, config.context_tokens)


async def _sample(record: Record, policy: Policy, config: RolloutConfig, room: int) -> Completion:
    sampling = Sampling(
        max_tokens=min(config.turn_tokens, room),
        temperature=config.temperature,
        top_p=config.top_p,
        stop=config.stop,
        seed=record.start.seed * 1_000_003 + len(record.turns),
    )
    generating = policy.generate(record.ids, sampling, episode=record.episode)
    completion = await _within(config.deadline_s, generating, PolicyFault("the policy"))
    turn = len(record.turns)
    record.add(
        SegmentKind.POLICY,
        completion.ids,
        turn,
        logprobs=completion.logprobs,
        version=completion.version,
        token_true=completion.token_true,
    )
    return completion


def _record_turn(
    record: Record, completion: Completion, step: Step, key: str | None, seconds: tuple[float, float]
) -> None:
    record.turns.append(
        Turn(
            action=completion.text,
            observation=step.observation,
            tool_results=step.info["tool_results"],
            reward=step.reward,
            valid=step.info["valid"],
            anchor_key=key,
            policy_seconds=seconds[0],
            env_seconds=seconds[1],
        )
    )


def _observe(record: Record, chat: ChatFormat, observation: tuple[Message, ...], limit: int) -> None:
    """Appends the observation; opens a new row where the format did not extend what stands there.

    An observation that would overflow the row stays out of it: the next turn has no room and the episode
    ends.
    """
    turn = len(record.turns) - 1
    glue = chat.closing(record.ids)
    held = [*record.ids, *glue]
    extended = chat.extend(held, observation)
    if extended[: len(held)] != held:
        record.reopen(extended, turn + 1)
    elif len(extended) >= limit:
        record.ids = extended
    else:
        record.add(SegmentKind.GLUE, glue, turn)
        record.add(SegmentKind.ENV, extended[len(held) :], turn)


async def _within(seconds: float, work: Awaitable[T], fault: Fault) -> T:
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

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(index, start)) for index, start in enumerate(starts)]
    except ExceptionGroup as several:  # they are of one kind: bad input; the first says it
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


__all__ = ["Record", "RolloutConfig", "Start", "play", "rollout", "run_episode"]
