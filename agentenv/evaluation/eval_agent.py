"""The agent that answers in an evaluation, and how missing episodes are played.

A policy that computes in this process plays in batches of fixed composition, because the batch influences the last digits of
floating-point results. A batch that was not finished is played again as a whole. A policy behind a service plays each
episode by itself, several at a time, and each is saved as soon as it is finished.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentenv.core.chat import InlineFormat
from agentenv.core.concurrency.tasks import gather_all, run_to_completion
from agentenv.core.conversation import ConversationFormat
from agentenv.core.env_lifecycle import reason_of
from agentenv.core.native_format import NativeFormat
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import RolloutConfig, never_fitted, rollout
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError, ContextTooSmall, EnvFault, Fault, PolicyFault
from agentenv.evaluation.journal import Journal, log_seconds
from agentenv.evaluation.records import ENDPOINT, TOOL_CALL_FORM, EpisodeRecord
from agentenv.evaluation.runner import Roll, expert_policy, play_batch, to_record, with_byte_budgets
from agentenv.evaluation.task_env import TaskEnv
from agentenv.policies.agent import AgentPolicy
from agentenv.policies.card import EpisodeCard, read_card
from agentenv.policies.conversations import FORMS, ConversationPolicy
from agentenv.policies.extractive import EXTRACTIVE, EXTRACTIVE_CARD, ExtractivePolicy
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.openai import OpenAIPolicy
from agentenv.policies.policy_spec import (
    is_endpoint,
    is_engine,
    is_router,
    make_endpoint_policy,
    make_engine_policy,
    make_policy,
    make_router_policy,
    policy_folder,
    router_parts,
)
from agentenv.policies.tokenizer_digest import tokenizer_digest
from agentenv.policies.vllm import VLLMPolicy

EXPERT = "scripted"
# An evaluation stops after this many consecutive failed episodes, and at least two batches, because a single event can
# fail all episodes of one batch.
_FAILURES_IN_A_ROW = 8

Progress = Callable[[int, dict[str, Any]], None]


@dataclass(frozen=True)
class EvalAgent:
    """A policy with the settings of its episodes."""

    policy: Policy | None
    """None stands for the environment's own expert, whose script is made once the questions are known."""
    tokenizer: Any
    chat: ChatFormat
    """How messages become ids."""
    config: RolloutConfig
    """Greedy sampling within the budgets of the policy."""
    batch: int
    """Number of episodes played at a time."""
    card: EpisodeCard = field(default_factory=EpisodeCard)
    """The card of the policy, with the settings of the episodes that it was trained on."""
    roll: Roll = rollout
    """The function that plays the episodes of a batch."""
    token_ids: bool = False
    """Whether the records of its episodes contain their token ids."""

    def close(self) -> None:
        """Closes the policy if it runs in processes of its own."""
        if isinstance(self.policy, VLLMPolicy):
            self.policy.close()

    @property
    def token_unit(self) -> str:
        """The name of the unit that its tokens count; empty for an agent without tokens, so that nothing is counted."""
        if isinstance(self.policy, AgentPolicy):
            return ""
        if isinstance(self.policy, OpenAIPolicy):
            return "pieces of text"
        return "bytes" if isinstance(self.tokenizer, ByteTokenizer) else "tokens"

    @property
    def record_settings(self) -> dict[str, Any]:
        """Settings needed to interpret its records: the family of native turns, and the tokenizer of the token ids."""
        said: dict[str, Any] = {}
        if isinstance(self.chat, ConversationFormat):
            said[TOOL_CALL_FORM] = self.chat.family.name if isinstance(self.chat, NativeFormat) else ENDPOINT
        if self.token_ids:
            said["token_ids"] = {"tokenizer": tokenizer_digest(self.tokenizer), "format": self.card.format}
        return said

    def count(self, text: str) -> int:
        """Returns the length of an observation in tokens, or in words if tokens are bytes."""
        if isinstance(self.tokenizer, ByteTokenizer):
            return len(text.split())
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    def on(self, task_env: TaskEnv, tasks: Sequence[Task], begin: int, seed: int, name: str) -> "EvalAgent":
        """Returns this agent, or the expert with its script for a batch of questions that begins at index ``begin``."""
        if self.policy is not None:
            return self
        policy = expert_policy(
            task_env.make_env,
            tasks,
            self.batch,
            self.config.deadline_s,
            seed=seed,
            name=name,
            first=begin,
            shown_only=True,
        )
        return replace(self, policy=policy, tokenizer=policy.tokenizer)


def open_eval_agent(spec: str, concurrency: int, stop: tuple[str, ...]) -> EvalAgent:
    """Opens the agent that ``spec`` names.

    Args:
        spec: A policy as ``kind:rest``; ``scripted`` is the environment's own expert.
        concurrency: Number of episodes played at a time.
        stop: Strings that end an action.

    Raises:
        UnknownName: there is no such policy.
        MissingExtra: a package that it needs is not installed.
        CheckpointMismatch: the folder contains no model that can be loaded.
    """
    if spec == EXPERT:
        return _agent(None, EpisodeCard(), ByteTokenizer(), concurrency, stop, deterministic=True)
    if spec == EXTRACTIVE:
        policy = ExtractivePolicy()
        return _agent(policy, EXTRACTIVE_CARD, policy.tokenizer, concurrency, stop, deterministic=True)
    if spec in FORMS:
        conversations = ConversationPolicy(spec)
        return _agent(
            conversations, EpisodeCard(), conversations.tokenizer, concurrency, stop, deterministic=True
        )
    if is_endpoint(spec):
        endpoint = make_endpoint_policy(spec)
        return _agent(endpoint, endpoint.card, endpoint.tokenizer, concurrency, stop, deterministic=False)
    if is_router(spec):
        router = make_router_policy(spec)
        own = read_card(policy_folder(router_parts(spec)[0]))
        return _agent(router, own, router.tokenizer, concurrency, stop, deterministic=True)
    card = read_card(policy_folder(spec))
    if is_engine(spec):
        served = make_engine_policy(spec)
        return _agent(served, card, served.tokenizer, concurrency, stop, deterministic=False)
    loaded = make_policy(spec)
    return _agent(loaded, card, loaded.tokenizer, concurrency, stop, deterministic=True)


def make_eval_agent(policy: Policy, name: str, concurrency: int, stop: tuple[str, ...]) -> EvalAgent:
    """Makes the agent of an existing policy. The caller closes the policy.

    Args:
        policy: A policy with a ``tokenizer``, and with a ``card`` if its episodes differ from the default.
        name: The name of the policy, for errors.
        concurrency: Number of episodes played at a time.
        stop: Strings that end an action.

    Raises:
        ConfigurationError: the policy has no tokenizer.
    """
    tokenizer = getattr(policy, "tokenizer", None)
    if tokenizer is None:
        raise ConfigurationError(
            f"{name} has no attribute `tokenizer`, which turns messages into its tokens; an agent that takes messages is a "
            "plain function of them"
        )
    card = getattr(policy, "card", None) or EpisodeCard()
    by_arrival = isinstance(policy, AgentPolicy | OpenAIPolicy | VLLMPolicy)
    return _agent(policy, card, tokenizer, concurrency, stop, deterministic=not by_arrival)


def _agent(
    policy: Policy | None,
    card: EpisodeCard,
    tokenizer: Any,
    batch: int,
    stop: tuple[str, ...],
    *,
    deterministic: bool,
) -> EvalAgent:
    """Makes an agent within the budgets of its card and of its policy."""
    limit = getattr(policy, "context_tokens", None) or card.context_tokens
    config = RolloutConfig(
        context_tokens=min(card.context_tokens, limit),
        turn_tokens=card.turn_tokens,
        temperature=0.0,
        stop=stop,
        deterministic=deterministic,
        # An endpoint has its own deadline, which does not count the wait for its rate limit.
        deadline_s=3600.0 if isinstance(policy, OpenAIPolicy) else RolloutConfig().deadline_s,
    )
    if isinstance(tokenizer, ByteTokenizer):
        config = with_byte_budgets(config)
    chat: ChatFormat | None = getattr(policy, "chat", None)  # set by a policy that accepts messages
    if chat is None:
        chat = chat_format_of(card, policy, tokenizer)
    return EvalAgent(policy, tokenizer, chat, config, batch, card)


def chat_format_of(card: EpisodeCard, policy: Policy | None, tokenizer: Any) -> ChatFormat:
    """Makes the chat format of ``policy``, with its end-of-turn tokens and image reader; None is a scripted policy."""
    if policy is None and card.format == "inline":
        return InlineFormat(tokenizer, unread=True)
    ends, reader = getattr(policy, "ends", ()), getattr(policy, "image_reader", None)
    return card.chat_format(tokenizer, ends, reader)


def play_missing(
    agent: EvalAgent,
    task_env: TaskEnv,
    journal: Journal,
    *,
    seed: int,
    phase: str,
    directory: Path,
    progress: Progress,
    metrics: Callable[[Sequence[EpisodeRecord]], dict[str, Any]] = lambda records: {},
) -> list[EpisodeRecord]:
    """Plays the questions of ``task_env`` that ``journal`` lacks; returns the records of all questions in order.

    Args:
        agent: The agent that answers.
        task_env: Questions, retriever and environment.
        journal: The finished episodes.
        seed: The seed of the episodes.
        phase: The prefix of the episode ids, and the name in the timings.
        directory: The folder of the evaluation.
        progress: Called with the number of finished episodes and with ``metrics`` of the newest ones.
        metrics: Computes the metrics to show from records.

    Raises:
        ContextTooSmall: every question is too long to leave room for a turn.
        Fault: many episodes in a row ended by an infrastructure failure; episodes finished before are kept.
    """
    tasks = task_env.source.tasks
    progress(len(journal), {})
    last = time.perf_counter()

    def keep(played: Sequence[Trajectory]) -> None:
        nonlocal last
        records = [
            to_record(trajectory, directory, counted=bool(agent.token_unit), token_ids=agent.token_ids)
            for trajectory in played
        ]
        journal.append(records)
        now = time.perf_counter()
        log_seconds(directory, phase, now - last, [_seconds(trajectory) for trajectory in played])
        last = now
        progress(len(journal), metrics(records))

    writer = _EpisodeWriter(keep, max(_FAILURES_IN_A_ROW, 2 * agent.batch), lived=len(journal) > 0)
    if agent.config.deterministic:
        for begin in range(0, len(tasks), agent.batch):
            chunk = tasks[begin : begin + agent.batch]
            if not all(task in journal for task in chunk):
                ready = agent.on(task_env, chunk, begin, seed, phase)
                writer.add(run_to_completion(_batch(ready, task_env, chunk, begin, seed, phase)))
    else:
        run_to_completion(_one_by_one(agent, task_env, journal, seed, phase, writer))
    writer.end()
    return journal.finish(tasks)


async def _batch(
    agent: EvalAgent, task_env: TaskEnv, tasks: Sequence[Task], begin: int, seed: int, phase: str
) -> list[Trajectory]:
    assert agent.policy is not None
    return await play_batch(
        agent.policy,
        agent.chat,
        task_env.make_env,
        tasks,
        agent.config,
        begin,
        seed=seed,
        name=phase,
        roll=agent.roll,
    )


class _EpisodeWriter:
    """Passes finished episodes to the journal. Failures are held back until a later episode is valid.

    A browser or a server that crashes fails all episodes that use it, and then restarts. If it does not restart, every later
    episode fails too, and these should be played again once it is available.
    """

    def __init__(self, keep: Callable[[Sequence[Trajectory]], None], limit: int, *, lived: bool) -> None:
        """Starts without any episodes.

        Args:
            keep: Writes episodes to the journal.
            limit: The number of failures in a row at which the evaluation stops.
            lived: Whether a valid episode was saved before.
        """
        self._keep, self._limit, self._lived = keep, limit, lived
        self._held: list[Trajectory] = []

    def add(self, played: Sequence[Trajectory]) -> None:
        """Adds episodes that finished together.

        Raises:
            Fault: as many episodes in a row as ``limit`` have failed.
        """
        self._held += played
        if any(trajectory.valid for trajectory in played):
            self._lived = True
            self._flush()
        elif len(failed := _infrastructure_failures(self._held)) >= self._limit:
            raise _stop_fault(failed)

    def end(self) -> None:
        """Saves the last failures, which are too few to conclude that the infrastructure is down.

        Raises:
            ContextTooSmall: every question so far was too long to be played.
            Fault: all episodes so far failed.
        """
        if self._held and not self._lived:
            if failed := _infrastructure_failures(self._held):
                raise _stop_fault(failed)
            raise ContextTooSmall(reason_of(self._held[0]).removeprefix(f"{ContextTooSmall.__name__}: "))
        self._flush()

    def _flush(self) -> None:
        if self._held:
            self._keep(self._held)
            self._held = []


def _infrastructure_failures(held: Sequence[Trajectory]) -> list[Trajectory]:
    """Returns the failures among ``held`` that concern the infrastructure, without questions that were too long."""
    return [trajectory for trajectory in held if not never_fitted(trajectory)]


def _stop_fault(failed: Sequence[Trajectory]) -> Fault:
    environment = any(trajectory.end_reason is EndReason.ENV_FAULT for trajectory in failed)
    several = len(failed) > 1
    what = (
        f"{len(failed)} episodes in a row that failed and count"
        if several
        else "an episode that failed and counts"
    )
    return (EnvFault if environment else PolicyFault)(
        f"the evaluation stopped after {what} in no score: "
        f"{reason_of(failed[-1])}; what was finished before is kept, and the same evaluation goes on from there"
    )


async def _one_by_one(
    agent: EvalAgent, task_env: TaskEnv, journal: Journal, seed: int, phase: str, writer: _EpisodeWriter
) -> None:
    """Plays missing episodes with ``agent.batch`` workers, each of which plays one at a time."""
    missing = iter([(i, task) for i, task in enumerate(task_env.source.tasks) if task not in journal])

    async def work() -> None:
        for index, task in missing:
            writer.add(await _batch(agent, task_env, [task], index, seed, phase))

    await gather_all(work() for _ in range(agent.batch))


def _seconds(trajectory: Trajectory) -> float:
    return sum(turn.policy_seconds + turn.env_seconds for turn in trajectory.turns)
