"""The calls that the episode loop makes to an environment. Each has a deadline, and its result is checked, then recorded."""

import re
import time
from contextlib import suppress
from functools import partial
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn
from agentenv.core.env import Env
from agentenv.core.env_calls import call, call_plain
from agentenv.core.env_outputs import (
    checked_key,
    checked_opening,
    checked_step,
    most_chars,
    step_without_surrogates,
)
from agentenv.core.episodes import EpisodeSpec, EpisodeState, RolloutConfig, replace_surrogates
from agentenv.core.grammar import without_half_escapes
from agentenv.core.scene import TurnScene
from agentenv.core.snapshot import Snapshot
from agentenv.core.tool_replies import replies
from agentenv.core.trajectory import Turn
from agentenv.core.types import (
    EndReason,
    FinishReason,
    Info,
    Observation,
    StateCapability,
    Step,
    Task,
    is_context,
)
from agentenv.errors import ConfigurationError, EnvFault, SnapshotRefused

_ESCAPED = re.compile(r"\\(?:u|U0000)[dD][89a-fA-F][0-9a-fA-F]{2}")


def check_task(task: Task, info: Info) -> None:
    """Checks that ``reset`` posed ``task``. Otherwise the episode of one task would be scored as another.

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


async def opening_of(spec: EpisodeSpec, config: RolloutConfig) -> Observation:
    """Resets the environment to the task of ``spec``.

    Raises:
        Exception: the environment failed, missed its deadline, posed another task, or returned an unusable observation.
    """
    what, env, posed = "the environment's reset", spec.env, {"task": spec.task}
    if env.awaits:
        resetting = partial(env.areset, seed=spec.seed, options=posed)
        given = await call(what, config.deadline_s, resetting)
    else:
        posing = partial(env.reset, seed=spec.seed, options=posed)
        given = await call_plain(what, config.deadline_s, posing, owner=type(env))
    opening, info = checked_opening(given, most_chars(config.context_tokens))
    check_task(spec.task, info)
    return opening


async def act(
    state: EpisodeState, action: str, config: RolloutConfig, given: AssistantTurn | None = None
) -> Observation | None:
    """Passes ``action``, whose token ids are already in ``state``, to the environment, and records the turn.

    Args:
        state: The episode.
        action: What the policy wrote.
        config: Budgets and deadlines.
        given: The parsed action, if a service has already parsed it; None parses ``action`` here.

    Returns:
        The new observation, for ``observe``; None if the action ended the episode.
    """
    most, began = most_chars(config.context_tokens), time.perf_counter()
    try:
        turn = _read(state, action, given)
        said = action if turn is None else state.spec.env.native_action(turn)
        # Everything that the environment returns is checked inside this block, so that any error masks this episode only.
        state.spec.env.sampled = state.sampled
        found, scene, gave = await _step(state.spec.env, said, config.deadline_s)
        gave = gave if not _wrote_surrogate(state, action) else step_without_surrogates(gave)
        key, (step, size) = checked_key(found), checked_step(gave, most)
    except Exception as error:
        state.fail(EndReason.ENV_FAULT, error)
        return None
    if turn is not None and not is_context(step.observation):
        step = step._replace(observation=replies(turn, step.observation))
    _record_turn(state, action, step, key, scene, time.perf_counter() - began)
    if step.terminated or step.truncated:
        end = step.info["end_reason"]
        said = replace_surrogates(str(step.info.get("error", ""))) if end.is_fault else ""
        state.close(state.reward, end, step.info, said)
    elif size > most:  # too long for any context, so it is not encoded
        state.cut(EndReason.TOKEN_LIMIT, step.info | {"observation_chars": size})
    return None if state.ended else step.observation


def _read(state: EpisodeState, action: str, given: AssistantTurn | None) -> AssistantTurn | None:
    """Parses ``action`` as a native turn and adds it to the conversation; None if the episode has no native conversation.

    If the token budget cut the action off, the returned turn marks its last call as cut off. The conversation keeps the turn
    exactly as it was written, because its text is later compared with what the chat template renders.
    """
    if state.conversation is None:
        return None
    turn = given or state.conversation.read(action)
    state.conversation = state.conversation.said(turn)
    return turn.cut_off() if state.finish is FinishReason.LENGTH else turn


def _wrote_surrogate(state: EpisodeState, action: str) -> bool:
    """Whether the policy has written a lone surrogate as an escape, which an environment may decode and show later."""
    return any(_ESCAPED.search(text) for text in (action, *(turn.action for turn in state.turns)))


async def _step(env: Env[Any], action: str, seconds: float) -> tuple[Any, Any, Any]:
    """Takes one step; returns the anchor key and the scene before ``action``, and the return value of ``step``.

    An environment that decodes the escape of a lone surrogate gets text that cannot be encoded, and fails. A policy could
    thus choose to have its episode masked. So such escapes are replaced in the action, unless the environment handles them
    itself.
    """
    what = "the environment's step"
    action = action if env.refuses_half_escapes else without_half_escapes(action)

    async def awaited() -> tuple[Any, Any, Any]:
        key, scene = env.anchor_key(), env.scene()
        return key, scene, await env.astep(action)

    if env.awaits:
        return await call(what, seconds, awaited)

    # The key and the scene must describe the state before the action. All three are read in one call, because each separate
    # call would wait for a thread.
    def stepped() -> tuple[Any, Any, Any]:
        return env.anchor_key(), env.scene(), env.step(action)

    return await call_plain(what, seconds, stepped, owner=type(env))


async def step_env(env: Env[Any], action: str, config: RolloutConfig) -> tuple[Step, int]:
    """Steps the environment outside of any record; returns the step and the length of its observation in characters.

    Raises:
        Exception: the environment failed, missed its deadline, or returned an unusable value.
    """
    _, _, given = await _step(env, action, config.deadline_s)
    return checked_step(given, most_chars(config.context_tokens))


def require_rewindable(env: Env[Any]) -> None:
    """Raises an error if the environment declares that its episodes cannot be rewound (``StateCapability.NONE``).

    Raises:
        ConfigurationError: the environment declares this.
    """
    if env.capability is StateCapability.NONE:
        raise ConfigurationError(
            f"{type(env).__name__} can neither be captured nor replayed with the options of this run; "
            "a strategy that goes back needs the capability replay at least"
        )


async def capture(state: EpisodeState, seconds: float) -> Snapshot | None:
    """Takes a snapshot of the environment for ``rewind`` within ``seconds``. The caller has to release it.

    Returns None if the present state cannot be captured (a live interpreter with threads, for example), or if the attempt
    failed and therefore ended the episode.

    Raises:
        ConfigurationError: the environment declares that its episodes cannot be rewound.
    """
    require_rewindable(state.spec.env)
    taking = state.spec.env.snapshot
    try:
        return await call_plain("the environment's snapshot", seconds, taking)
    except SnapshotRefused:
        return None
    except Exception as error:
        state.fail(EndReason.ENV_FAULT, error)
        return None


async def release(snapshot: Snapshot, seconds: float) -> None:
    """Releases a snapshot within ``seconds``. If this fails, the environment's ``close`` frees it later."""
    if not snapshot.holds_resources:
        snapshot.release()
        return
    with suppress(Exception):
        await call_plain("the environment's release of a snapshot", seconds, snapshot.release)


async def rewind(state: EpisodeState, snapshot: Snapshot, seconds: float) -> None:
    """Restores the environment to ``snapshot`` within ``seconds``. A failure ends the episode."""
    going = partial(state.spec.env.restore, snapshot)
    try:
        await call_plain("the environment's restore", seconds, going)
    except Exception as error:
        state.fail(EndReason.ENV_FAULT, error)


async def fork(state: EpisodeState, n: int, seconds: float) -> list[Env[Any]]:
    """Makes ``n`` copies of the environment of ``state`` in its present state, within ``seconds``. The caller closes them.

    Returns an empty list if the state cannot be captured, or if the attempt failed and therefore ended the episode.

    Raises:
        ConfigurationError: the environment declares that its episodes cannot be rewound.
    """
    require_rewindable(state.spec.env)
    forking = partial(state.spec.env.fork, n)
    try:
        return await call_plain("the environment's fork", seconds, forking)
    except SnapshotRefused:
        return []
    except Exception as error:
        state.fail(EndReason.ENV_FAULT, error)
        return []


def _record_turn(
    state: EpisodeState, action: str, step: Step, key: str | None, scene: TurnScene | None, env_seconds: float
) -> None:
    state.turns.append(
        Turn(
            action=action,
            observation=step.observation,
            tool_results=step.info["tool_results"],
            reward=step.reward,
            valid=step.info["valid"],
            anchor_key=key,
            policy_seconds=state.policy_seconds,
            env_seconds=env_seconds,
            scene=scene,
            reward_parts=step.info.get("reward_parts", {}),
            cut=state.finish is FinishReason.LENGTH,
        )
    )
