"""The calls that an episode makes of its environment: each has a deadline, and its result is checked and then recorded."""

import re
import time
from contextlib import suppress
from functools import partial
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn
from agentenv.core.env import Env
from agentenv.core.env_calls import call, call_plain
from agentenv.core.env_outputs import checked_key, checked_opening, checked_step, mended_step, most_chars
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
    """Checks that ``reset`` posed ``task``: an episode of another task would be scored under the wrong name.

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
        Exception: the environment failed, was late, posed another task, or showed what cannot be used.
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
    """The environment acts on ``action``, whose ids stand in ``state``; the turn is appended.

    Args:
        state: The episode.
        action: What the policy wrote.
        config: Budgets and deadlines.
        given: The content of the action where a service has parsed it already; None parses it here.

    Returns:
        What is new, for ``observe``; None where the action ended the episode.
    """
    most, began = most_chars(config.context_tokens), time.perf_counter()
    try:
        turn = _read(state, action, given)
        said = action if turn is None else state.spec.env.native_action(turn)
        # All that comes from the environment stands in this block: whatever it raises or returns masks this episode
        # alone.
        state.spec.env.sampled = state.sampled
        found, scene, gave = await _step(state.spec.env, said, config.deadline_s)
        gave = gave if not _wrote_surrogate(state, action) else mended_step(gave)
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
    elif size > most:  # no context holds it, so there is no need to encode it
        state.cut(EndReason.TOKEN_LIMIT, step.info | {"observation_chars": size})
    return None if state.ended else step.observation


def _read(state: EpisodeState, action: str, given: AssistantTurn | None) -> AssistantTurn | None:
    """What ``action`` holds, where the policy speaks in its native form; the conversation then has it too.

    A call that a budget of tokens cut off says so. In the conversation it stands as its text alone says, which is compared
    with what the template makes of it.
    """
    if state.conversation is None:
        return None
    turn = given or state.conversation.read(action)
    state.conversation = state.conversation.said(turn)
    return turn.cut_off() if state.finish is FinishReason.LENGTH else turn


def _wrote_surrogate(state: EpisodeState, action: str) -> bool:
    """Whether the policy wrote half of a surrogate pair as an escape: an environment that decodes it may show it later."""
    return any(_ESCAPED.search(text) for text in (action, *(turn.action for turn in state.turns)))


async def _step(env: Env[Any], action: str, seconds: float) -> tuple[Any, Any, Any]:
    """Key and screen of the state before ``action``, and what the environment returned for it.

    An environment that decodes an escape of half a character holds text that nothing can encode, and fails at it: a policy
    could choose to be masked. It is therefore shown the action without such escapes, unless it refuses them itself.
    """
    what = "the environment's step"
    action = action if env.refuses_half_escapes else without_half_escapes(action)

    async def awaited() -> tuple[Any, Any, Any]:
        key, scene = env.anchor_key(), env.scene()
        return key, scene, await env.astep(action)

    if env.awaits:
        return await call(what, seconds, awaited)

    # In this order: key and screen are those of the state in which the action was chosen. One call and not three,
    # because each would wait for a thread.
    def stepped() -> tuple[Any, Any, Any]:
        return env.anchor_key(), env.scene(), env.step(action)

    return await call_plain(what, seconds, stepped, owner=type(env))


async def step_env(env: Env[Any], action: str, config: RolloutConfig) -> tuple[Step, int]:
    """What ``action`` leads to, outside of any record, and the characters that its observation had.

    Raises:
        Exception: the environment failed, was late, or gave what cannot be used.
    """
    _, _, given = await _step(env, action, config.deadline_s)
    return checked_step(given, most_chars(config.context_tokens))


def check_way_back(env: Env[Any]) -> None:
    """Refuses an environment that declares that there is no way back in its episodes.

    Raises:
        ConfigurationError: it does.
    """
    if env.capability is StateCapability.NONE:
        raise ConfigurationError(
            f"{type(env).__name__} can neither be captured nor replayed with the options of this run; "
            "a strategy that goes back needs the capability replay at least"
        )


async def capture(state: EpisodeState, seconds: float) -> Snapshot | None:
    """A snapshot of the environment for ``rewind``, taken within ``seconds``; the caller releases it.

    None where it cannot be captured as it stands (a live interpreter with threads), and where that failed and ended the
    episode.

    Raises:
        ConfigurationError: the environment declares that there is no way back.
    """
    check_way_back(state.spec.env)
    taking = state.spec.env.snapshot
    try:
        return await call_plain("the environment's snapshot", seconds, taking)
    except SnapshotRefused:
        return None
    except Exception as error:
        state.fail(EndReason.ENV_FAULT, error)
        return None


async def release(snapshot: Snapshot, seconds: float) -> None:
    """Frees a snapshot within ``seconds``. One that cannot be freed is left to the environment's ``close``."""
    if not snapshot.holds_resources:
        snapshot.release()
        return
    with suppress(Exception):
        await call_plain("the environment's release of a snapshot", seconds, snapshot.release)


async def rewind(state: EpisodeState, snapshot: Snapshot, seconds: float) -> None:
    """Takes the environment back to ``snapshot`` within ``seconds``; a failure ends the episode."""
    going = partial(state.spec.env.restore, snapshot)
    try:
        await call_plain("the environment's restore", seconds, going)
    except Exception as error:
        state.fail(EndReason.ENV_FAULT, error)


async def fork(state: EpisodeState, n: int, seconds: float) -> list[Env[Any]]:
    """``n`` copies of the environment of ``state`` in its present state, made within ``seconds``; the caller closes them.

    None at all where it cannot be captured as it stands, and where that failed and ended the episode.

    Raises:
        ConfigurationError: the environment declares that there is no way back.
    """
    check_way_back(state.spec.env)
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
