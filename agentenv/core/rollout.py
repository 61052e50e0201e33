"""The episode loop: policy and environment take turns, and every id is recorded as it was sampled or fed."""

import asyncio
import math
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

from agentenv.core.acting import act, capture, check_posed, fork, opening_of, release, rewind, stepped
from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.concurrency.deadlines import within
from agentenv.core.episodes import Record, RolloutConfig, Start, mended, never_fitted
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import Completion, EndReason, Observation, Sampling
from agentenv.errors import ConfigurationError, ContextTooSmall, PolicyFault

T = TypeVar("T")


async def run_episode(
    start: Start, policy: Policy, chat: ChatFormat, config: RolloutConfig, *, episode: str
) -> Trajectory:
    """Plays one episode to its end.

    A fault of ours ends it as an invalid trajectory, and so does an opening prompt that leaves no room for one turn; a
    mistake of the policy is part of the record. The episode ends with ``token_limit`` before a prompt would overflow; the
    prompt is never cut.

    Raises:
        ConfigurationError: the environment cannot pose this task, the format cannot render it, or the policy
            cannot be asked as it is configured.
    """
    record = await open_episode(start, chat, config, episode=episode)
    try:
        return await play(record, policy, chat, config)
    finally:
        policy.release(episode)


async def open_episode(start: Start, chat: ChatFormat, config: RolloutConfig, *, episode: str) -> Record:
    """Poses the task: a record that holds the prompt, or has ended because the environment failed or the prompt is too long.

    Raises:
        ConfigurationError: the environment cannot pose this task, or the format cannot render it.
    """
    record = Record(start, episode)
    try:
        record.prompt = await opening_of(start, config)
        record.add(SegmentKind.PROMPT, chat.prompt(record.prompt), 0)
    except ConfigurationError:
        raise
    except Exception as error:
        record.fail(EndReason.ENV_FAULT, error)
        return record
    if len(record.ids) >= config.context_tokens:
        said = f"the prompt of task {start.task.id!r} takes {len(record.ids)} tokens and context_tokens is "
        record.refuse(ContextTooSmall(f"{said}{config.context_tokens}: raise it"))
    return record


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
        ConfigurationError: the policy cannot be asked as it is configured.
    """
    room = config.context_tokens - len(record.ids)
    if room <= 0:
        record.close(record.reward, EndReason.TOKEN_LIMIT, {})
        return None
    began = time.perf_counter()
    try:
        completion = await _generate(record, policy, config, room, attempt)
    except ContextTooSmall as error:  # the policy's own context may be smaller than the budget
        if record.turns:
            record.close(record.reward, EndReason.TOKEN_LIMIT, {})
        else:
            record.refuse(error)
        return None
    except ConfigurationError:  # the same for every episode: a wrong key or model
        raise
    except Exception as error:
        record.fail(EndReason.POLICY_FAULT, error)
        return None
    record.policy_seconds = time.perf_counter() - began
    _record_sample(record, completion)
    # An endpoint can send lone surrogates; an environment that repeats them would be blamed for them.
    return completion if completion.text.isascii() else replace(completion, text=mended(completion.text))


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


def observe(record: Record, chat: ChatFormat, observation: Observation, limit: int) -> None:
    """Appends the observation; opens a new row where the format did not extend what stands there.

    An observation that begins with a system message is a whole context: the policy goes on from that and from nothing
    before it. An observation that would overflow the row stays out of it: the next turn has no room and the episode
    ends. One that the format cannot render ends the episode as a fault of the environment.

    Raises:
        ConfigurationError: the format can render no observation at all.
    """
    try:
        _append(record, chat, observation, limit)
    except ConfigurationError:
        raise
    except Exception as error:
        record.fail(EndReason.ENV_FAULT, error)


def _append(record: Record, chat: ChatFormat, observation: Observation, limit: int) -> None:
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
        ConfigurationError: a task cannot be posed or rendered.
    """
    deterministic_batcher = DeterministicBatcher() if config.deterministic else None

    async def one(index: int, start: Start) -> Trajectory:
        with nullcontext() if deterministic_batcher is None else deterministic_batcher.episode(index):
            return await run_episode(start, policy, chat, config, episode=f"{name}-{index}")

    return await together(one(index, start) for index, start in enumerate(starts))


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of ``work``, which runs concurrently; the first error ends the rest.

    Every coroutine begins before any of them goes on after its first wait, so that slots of a deterministic batcher that
    they take at their beginning are all taken in time.
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
    "never_fitted",
    "observe",
    "open_episode",
    "opening_of",
    "play",
    "release",
    "rewind",
    "rollout",
    "run_episode",
    "sample",
    "stepped",
    "take_turn",
    "together",
]
