"""The agent that answers in an evaluation, and how its missing episodes are played.

A policy that computes here plays in batches of fixed make-up, since the batch decides the last digit of its floats: a
batch that was not finished is played again as a whole. A policy behind a service answers each episode on its own, several
at a time, and each is kept as soon as it is finished.
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
_FAILURES_IN_A_ROW = (
    8  # and two batches, before what the episodes need is taken for gone: one event can end a batch
)

Progress = Callable[[int, dict[str, Any]], None]


@dataclass(frozen=True)
class EvalAgent:
    """A policy with the form of its episodes."""

    policy: Policy | None
    """None is the environment's own expert, whose script is written when the questions are known."""
    tokenizer: Any
    chat: ChatFormat
    """How messages become ids."""
    config: RolloutConfig
    """Greedy, within the budgets of the policy."""
    batch: int
    """Episodes at a time."""
    card: EpisodeCard = field(default_factory=EpisodeCard)
    """The form of episodes that the policy is used to."""
    roll: Roll = rollout
    """Plays the episodes of a batch."""
    token_ids: bool = False
    """Whether the records of its episodes hold their token ids."""

    def close(self) -> None:
        """Ends the policy where it runs in processes of its own."""
        if isinstance(self.policy, VLLMPolicy):
            self.policy.close()

    @property
    def token_unit(self) -> str:
        """What its tokens are; empty of an agent that shows none, so that nothing is counted."""
        if isinstance(self.policy, AgentPolicy):
            return ""
        if isinstance(self.policy, OpenAIPolicy):
            return "pieces of text"
        return "bytes" if isinstance(self.tokenizer, ByteTokenizer) else "tokens"

    @property
    def record_settings(self) -> dict[str, Any]:
        """What the turns and the token ids in its records mean: the family of native turns, and the tokenizer of the ids."""
        said: dict[str, Any] = {}
        if isinstance(self.chat, ConversationFormat):
            said[TOOL_CALL_FORM] = self.chat.family.name if isinstance(self.chat, NativeFormat) else ENDPOINT
        if self.token_ids:
            said["token_ids"] = {"tokenizer": tokenizer_digest(self.tokenizer), "format": self.card.format}
        return said

    def count(self, text: str) -> int:
        """Length of an observation: in tokens, or in words where tokens are bytes."""
        if isinstance(self.tokenizer, ByteTokenizer):
            return len(text.split())
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    def on(self, task_env: TaskEnv, tasks: Sequence[Task], begin: int, seed: int, name: str) -> "EvalAgent":
        """This agent, or the expert with its script for a batch of questions that begins at the place ``begin``."""
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
    """The agent that ``spec`` names.

    Args:
        spec: a policy as ``kind:rest``; ``scripted`` is the environment's own expert.
        concurrency: episodes at a time.
        stop: texts that end an action.

    Raises:
        UnknownName: no such policy.
        MissingExtra: what it needs is not installed.
        CheckpointMismatch: the folder holds no model that can be loaded.
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
    """The agent of a policy that exists already; the caller closes the policy.

    Args:
        policy: with a ``tokenizer``, and a ``card`` where it is used to episodes of another form than the default.
        name: of the policy, for an error.
        concurrency: episodes at a time.
        stop: texts that end an action.

    Raises:
        ConfigurationError: it has no tokenizer.
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
    """An agent within the budgets of its card and of its policy."""
    limit = getattr(policy, "context_tokens", None) or card.context_tokens
    config = RolloutConfig(
        context_tokens=min(card.context_tokens, limit),
        turn_tokens=card.turn_tokens,
        temperature=0.0,
        stop=stop,
        deterministic=deterministic,
        # An endpoint has a deadline of its own, which does not count the wait for its rate limit.
        deadline_s=3600.0 if isinstance(policy, OpenAIPolicy) else RolloutConfig().deadline_s,
    )
    if isinstance(tokenizer, ByteTokenizer):
        config = with_byte_budgets(config)
    chat: ChatFormat | None = getattr(policy, "chat", None)  # of one that takes messages
    if chat is None:
        chat = chat_format_of(card, policy, tokenizer)
    return EvalAgent(policy, tokenizer, chat, config, batch, card)


def chat_format_of(card: EpisodeCard, policy: Policy | None, tokenizer: Any) -> ChatFormat:
    """How messages become ids of ``policy``, with whatever it knows of ends of turns and of images; None is a script."""
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
    """Plays the questions of ``task_env`` that ``journal`` lacks, and returns the records of all in their order.

    Args:
        agent: what answers.
        task_env: questions, retriever and environment.
        journal: what is finished.
        seed: of the episodes.
        phase: prefix of the episode ids, and the name in the timings.
        directory: the folder of the evaluation.
        progress: called with the number of finished episodes and with ``metrics`` of the newest.
        metrics: what to show of records.

    Raises:
        ContextTooSmall: no question leaves room for a turn.
        Fault: everything that was played lately failed through an infrastructure failure; what was finished before is kept.
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

    finished = _Finished(keep, max(_FAILURES_IN_A_ROW, 2 * agent.batch), lived=len(journal) > 0)
    if agent.config.deterministic:
        for begin in range(0, len(tasks), agent.batch):
            chunk = tasks[begin : begin + agent.batch]
            if not all(task in journal for task in chunk):
                ready = agent.on(task_env, chunk, begin, seed, phase)
                finished.add(run_to_completion(_batch(ready, task_env, chunk, begin, seed, phase)))
    else:
        run_to_completion(_one_by_one(agent, task_env, journal, seed, phase, finished))
    finished.end()
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


class _Finished:
    """Episodes on their way to the journal; failures are held back until a valid episode after them shows that they may.

    A browser or a server that dies takes every episode with it that was using it, and then comes back. One that stays away
    fails every episode after that too, and those are better played again when it is there.
    """

    def __init__(self, keep: Callable[[Sequence[Trajectory]], None], limit: int, *, lived: bool) -> None:
        """Takes what finished episodes are written to, and none of them yet.

        Args:
            keep: writes episodes down.
            limit: failures in a row at which the evaluation stops.
            lived: whether a valid episode was kept before.
        """
        self._keep, self._limit, self._lived = keep, limit, lived
        self._held: list[Trajectory] = []

    def add(self, played: Sequence[Trajectory]) -> None:
        """Takes what was finished together.

        Raises:
            Fault: as many episodes in a row as the limit says have failed.
        """
        self._held += played
        if any(trajectory.valid for trajectory in played):
            self._lived = True
            self._flush()
        elif len(failed := _asked(self._held)) >= self._limit:
            raise _stopping(failed)

    def end(self) -> None:
        """Keeps the failures at the end, which are too few to say that something is gone.

        Raises:
            ContextTooSmall: no question was ever short enough to be played.
            Fault: nothing but failures was ever played.
        """
        if self._held and not self._lived:
            if failed := _asked(self._held):
                raise _stopping(failed)
            raise ContextTooSmall(reason_of(self._held[0]).removeprefix(f"{ContextTooSmall.__name__}: "))
        self._flush()

    def _flush(self) -> None:
        if self._held:
            self._keep(self._held)
            self._held = []


def _asked(held: Sequence[Trajectory]) -> list[Trajectory]:
    """The failures among ``held`` that tell of what all episodes need: a question that is too long fails by itself."""
    return [trajectory for trajectory in held if not never_fitted(trajectory)]


def _stopping(failed: Sequence[Trajectory]) -> Fault:
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
    agent: EvalAgent, task_env: TaskEnv, journal: Journal, seed: int, phase: str, finished: _Finished
) -> None:
    """``agent.batch`` workers, each of which plays one episode at a time."""
    missing = iter([(i, task) for i, task in enumerate(task_env.source.tasks) if task not in journal])

    async def work() -> None:
        for index, task in missing:
            finished.add(await _batch(agent, task_env, [task], index, seed, phase))

    await gather_all(work() for _ in range(agent.batch))


def _seconds(trajectory: Trajectory) -> float:
    return sum(turn.policy_seconds + turn.env_seconds for turn in trajectory.turns)
