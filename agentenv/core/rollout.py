"""The episode loop: the policy and the environment take turns, and every token id is recorded exactly as it was used."""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby

from agentenv.core.acting import act, capture, check_task, fork, opening_of, release, rewind, step_env
from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.concurrency.deadlines import within
from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.conversation import ConversationFormat, Unrenderable
from agentenv.core.episodes import EpisodeSpec, EpisodeState, RolloutConfig, never_fitted, replace_surrogates
from agentenv.core.images import ImageReader, PlacedImage, image_kwargs, images_of, placed
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import Completion, EndReason, Observation, Sampling, as_shown, is_context
from agentenv.errors import ConfigurationError, ContextTooSmall, EnvFault, PolicyFault, PolicyRefusal


async def run_episode(
    spec: EpisodeSpec, policy: Policy, chat: ChatFormat, config: RolloutConfig, *, episode: str
) -> Trajectory:
    """Plays one episode to its end.

    An infrastructure failure ends the episode as an invalid trajectory, and so does an opening prompt that leaves no room
    for a turn. A mistake of the policy is part of the record. If the next prompt would exceed ``context_tokens``, the
    episode ends as ``token_limit``; a prompt is never truncated.

    Raises:
        ConfigurationError: the environment cannot pose this task, the format cannot render it, or the policy
            cannot be asked as it is configured.
    """
    state = await open_episode(spec, policy, chat, config, episode=episode)
    try:
        return await play(state, policy, chat, config)
    finally:
        # Always released, because the sampler keeps the keys and values of an episode until then.
        policy.release(episode)


async def open_episode(
    spec: EpisodeSpec, policy: Policy, chat: ChatFormat, config: RolloutConfig, *, episode: str
) -> EpisodeState:
    """Poses the task. The state that is returned has already ended if the environment failed or the prompt is too long.

    Raises:
        ConfigurationError: the environment cannot pose this task, or the format cannot render it.
    """
    state = EpisodeState(spec, episode)
    spec.env.native = isinstance(chat, ConversationFormat)
    spec.env.use_policy(policy, chat)
    try:
        state.prompt = await opening_of(spec, config)
        ids = _opened(state, chat, state.prompt)
        state.add(SegmentKind.PROMPT, ids, 0, images=_placed(chat, ids, state.prompt))
    except ConfigurationError:
        raise
    except Exception as error:
        state.fail(EndReason.ENV_FAULT, error)
        return state
    if len(state.ids) >= config.context_tokens:
        said = f"the prompt of task {spec.task.id!r} takes {len(state.ids)} tokens and context_tokens is "
        where = "rollout.context_tokens in a training; in an evaluation an endpoint's option or the policy's episode.json"
        state.refuse(ContextTooSmall(f"{said}{config.context_tokens}: raise it ({where})"))
    return state


def _opened(state: EpisodeState, chat: ChatFormat, messages: Observation) -> list[int]:
    """Encodes the ``messages`` that begin a context."""
    if not isinstance(chat, ConversationFormat):
        return chat.prompt(messages)
    tools = [tool.to_openai() for tool in state.spec.env.native_tools()]
    before = state.conversation
    state.conversation, ids = chat.open(messages, tools)
    state.tools_changed |= before is not None and before.tools != state.conversation.tools
    return ids


def _new_context(state: EpisodeState, chat: ChatFormat, messages: Observation) -> list[int]:
    """Encodes a context that replaces the previous one.

    Raises:
        EnvFault: the format cannot render it. The format rendered the opening of this run, so only this context is wrong.
    """
    try:
        return _opened(state, chat, messages)
    except ConfigurationError as error:
        raise EnvFault(f"the environment's new context cannot be shown to the policy: {error}") from error


def _placed(chat: ChatFormat, ids: Sequence[int], messages: Sequence[object]) -> tuple[PlacedImage, ...]:
    """Locates the images of ``messages`` in the ids that ``chat`` made; empty if the format does not support images."""
    reader: ImageReader | None = getattr(chat, "image_reader", None)
    return placed(ids, images_of(messages), reader) if reader is not None else ()


async def play(state: EpisodeState, policy: Policy, chat: ChatFormat, config: RolloutConfig) -> Trajectory:
    """Continues the episode of ``state`` until it ends."""
    while state.ended is None:
        await take_turn(state, policy, chat, config)
        gate = state.spec.gate
        if state.ended is None and gate is not None and not gate(state):
            state.close(0.0, EndReason.ABORTED, {}, "given up while it was played")
    return state.ended


async def take_turn(state: EpisodeState, policy: Policy, chat: ChatFormat, config: RolloutConfig) -> None:
    """Plays one turn: the policy writes an action, the environment executes it, and its observation is appended."""
    completion = await sample(state, policy, config)
    if completion is not None:
        await act_on(completion, state, chat, config)


async def act_on(
    completion: Completion, state: EpisodeState, chat: ChatFormat, config: RolloutConfig
) -> None:
    """The environment executes ``completion``, whose ids are already in ``state``, and its observation is appended."""
    observation = await act(state, completion.text, config, completion.turn)
    if observation is not None:
        observe(state, chat, observation, config.context_tokens)


async def sample(
    state: EpisodeState, policy: Policy, config: RolloutConfig, *, attempt: int = 0
) -> Completion | None:
    """Samples the next action and appends it to ``state``. Returns None if this ended the episode.

    Args:
        state: The episode.
        policy: The policy that acts.
        config: Budgets and sampling.
        attempt: A part of the seed: another number gives other tokens in the same turn.

    Raises:
        ConfigurationError: the policy cannot be queried as it is configured.
    """
    room = config.context_tokens - len(state.ids)
    if room <= 0:
        state.cut(EndReason.TOKEN_LIMIT, {})
        return None
    began = time.perf_counter()
    try:
        completion = await _generate(state, policy, config, room, attempt)
    except ContextTooSmall as error:  # the policy's context may be smaller than the budget
        if state.turns:
            state.cut(EndReason.TOKEN_LIMIT, {})
        else:
            state.refuse(error)
        return None
    except ConfigurationError:  # it concerns every episode: for example a wrong key or model
        raise
    # caused by the policy; masking it would let the policy choose which episodes count
    except PolicyRefusal as error:
        state.cut(EndReason.REFUSED, {}, str(error))
        return None
    # only a scripted policy raises this: its action cannot be written in the native form
    except Unrenderable as error:
        state.cut(EndReason.PARSE_ERROR, {}, str(error))
        return None
    except Exception as error:
        state.fail(EndReason.POLICY_FAULT, error)
        return None
    state.policy_seconds, state.finish = time.perf_counter() - began, completion.finish
    _record_sample(state, completion)
    # An endpoint can return lone surrogates. An environment that repeats them would be held responsible for them.
    return (
        completion
        if completion.text.isascii()
        else replace(completion, text=replace_surrogates(completion.text))
    )


def _record_sample(state: EpisodeState, completion: Completion) -> None:
    """Adds one segment for each run of consecutive ids that the same version of the weights sampled."""
    versions = completion.versions or (completion.version,) * len(completion.ids)
    end = 0
    # The weights may be exchanged while a turn is sampled, and the learner needs the version of each token.
    for version, run in groupby(versions):
        start, end = end, end + len(list(run))
        state.add(
            SegmentKind.POLICY,
            completion.ids[start:end],
            len(state.turns),
            logprobs=completion.logprobs[start:end],
            version=version,
            exact_tokens=completion.exact_tokens,
        )


async def _generate(
    state: EpisodeState, policy: Policy, config: RolloutConfig, room: int, attempt: int
) -> Completion:
    sampling = Sampling(
        max_tokens=min(config.turn_tokens, room),
        temperature=config.temperature,
        top_p=config.top_p,
        # In the native form, only tokens end a turn.
        stop=() if state.conversation is not None else state.spec.env.turn_stop(config.stop),
        # Seeds of episodes are below 2^31, and an episode has far fewer turns than the multiplier, so no two turns share a
        # seed. Further attempts change bits from 52 on, which these numbers do not reach.
        seed=state.spec.seed * 1_000_003 + len(state.turns) + (attempt << 52),
    )
    generating = policy.generate(state.ids, sampling, episode=state.episode, **image_kwargs(state.images))
    # The deadline is held while the episode waits for others of its batch, so that a slow episode delays no other one.
    completion = await within(config.deadline_s, generating, PolicyFault("the policy"))
    if completion.exact_tokens and not all(map(math.isfinite, completion.logprobs)):
        raise PolicyFault("the policy's log-probs are not finite: its weights have diverged or overflow")
    return completion


def observe(state: EpisodeState, chat: ChatFormat, observation: Observation, limit: int) -> None:
    """Appends the observation. Opens a new row if the chat format did not extend the ids so far.

    An observation that begins with a system message replaces the whole context, and the policy continues from it alone. An
    empty system message is not shown. An observation that would exceed the context is not appended; the next turn then has
    no room, and the episode ends. An observation that the format cannot render ends the episode as a failure of the
    environment.

    The episode ends as ``parse_error`` if the policy's turn cannot be part of a prompt in its native form.

    Raises:
        ConfigurationError: the format cannot render any observation.
    """
    try:
        _append(state, chat, observation, limit)
    except Unrenderable as error:
        state.cut(EndReason.PARSE_ERROR, {}, str(error))
    except ConfigurationError:
        raise
    except Exception as error:
        state.fail(EndReason.ENV_FAULT, error)


def _append(state: EpisodeState, chat: ChatFormat, observation: Observation, limit: int) -> None:
    turn = len(state.turns) - 1
    format_tokens = chat.closing(state.ids)
    held = [*state.ids, *format_tokens]
    whole = is_context(observation)
    if whole:
        observation = as_shown(observation)
        extended = _new_context(state, chat, observation)
    elif isinstance(chat, ConversationFormat) and state.conversation is not None:
        state.conversation, extended = chat.go_on(held, state.conversation, observation)
    else:
        extended = chat.extend(held, observation)
    if len(extended) >= limit:
        state.ids = extended
        return
    goes_on = extended[: len(held)] == held
    if goes_on and not whole:
        new = _placed(chat, extended[len(held) :], observation)
        images = (*state.images, *(image.moved(len(held)) for image in new))
    else:
        messages = observation if state.conversation is None else state.conversation.messages
        images = _placed(chat, extended, messages)
    # All images have the same placeholder ids, so equal ids may represent other images than before.
    if not goes_on or images[: len(state.images)] != state.images:
        state.reopen(extended, turn + 1, images)
        return
    added = tuple(image.moved(-len(held)) for image in images[len(state.images) :])
    state.add(SegmentKind.FORMAT, format_tokens, turn)
    state.add(SegmentKind.ENV, extended[len(held) :], turn, images=added)


async def rollout(
    specs: Sequence[EpisodeSpec], policy: Policy, chat: ChatFormat, config: RolloutConfig, *, name: str
) -> list[Trajectory]:
    """Plays all episodes concurrently and returns them in the order of ``specs``.

    Args:
        specs: The episodes.
        policy: The policy that acts.
        chat: How messages become ids.
        config: Budgets and sampling.
        name: Prefix of the episode ids; equal names and seeds give equal records.

    Raises:
        ConfigurationError: a task cannot be posed, or a prompt cannot be rendered.
    """
    deterministic_batcher = DeterministicBatcher() if config.deterministic else None

    async def one(index: int, spec: EpisodeSpec) -> Trajectory:
        with nullcontext() if deterministic_batcher is None else deterministic_batcher.episode(index):
            return await run_episode(spec, policy, chat, config, episode=f"{name}-{index}")

    return await gather_all(one(index, spec) for index, spec in enumerate(specs))


__all__ = [
    "EpisodeSpec",
    "EpisodeState",
    "RolloutConfig",
    "act",
    "capture",
    "check_task",
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
    "step_env",
    "take_turn",
]
