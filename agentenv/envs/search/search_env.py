"""The loop of all search environments, and their common options.

A variant defines its parts: how an action is parsed, which tools it may call, what ends the episode, and how a turn is
rewarded. Everything else is common.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Required

from typing_extensions import TypedDict

from agentenv.core.assistant_turns import AssistantTurn
from agentenv.core.env import AsyncEnv
from agentenv.core.protocols import Retriever
from agentenv.core.scoring.evidence import holds_answer, is_yes_or_no
from agentenv.core.scoring.scorers import load_scorer
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task, ToolResult, ToolStatus
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.native_tools import (
    NATIVE_CORRECTION,
    NativeActions,
    NativeTool,
    action_of,
    untagged,
)
from agentenv.envs.search.outcomes import (
    THOUGHTFUL,
    Reward,
    answer_reward,
    get_outcome,
    is_grounded,
    score_of,
)
from agentenv.envs.search.page_format import PageFormat, as_question, count_words
from agentenv.envs.search.search_state import SearchState, TagCall, ToolFunction, ToolReply
from agentenv.envs.search.search_tools import SearchTool, submit_answer
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.retriever_spec import shared_retriever

CORRECTION = """
My last action was not valid. If I want to search, I have to put the query between <search> and </search>. \
If I want to answer, I have to put the answer between <answer> and </answer>. Let me try again.
"""
_NUMBER = re.compile(r"^\W*(?:Doc )?\d+\W+")
"""Matches the number before a passage on a page with numbered passages."""


class Hop(TypedDict, total=False):
    """One step on the way to an answer: the expert's query and what it finds."""

    query: Required[str]
    answer: str
    entity: str
    relation: str
    document: str
    """The id of the document that contains the answer."""


@dataclass(frozen=True)
class SearchParts:
    """The parts of a search environment. They store nothing about an episode, and get its state as an argument."""

    opening: Callable[[Task], str]
    """Makes the first message from a task."""
    parser: Callable[[str], TagCall | None]
    """Parses the text of an action; returns None if it is malformed."""
    tools: Mapping[str, ToolFunction]
    """The tools after which the episode continues, by tag."""
    reward: Reward
    """Returns the named parts of a turn's reward from the state after the turn."""
    submit: ToolFunction = submit_answer
    """The tool of the environment's ``final_tag``, which ends the episode."""
    last_parser: Callable[[str], TagCall | None] | None = None
    """The parser of the turn after the last search; None uses ``parser``."""
    correction: str | None = CORRECTION
    """Shown after a malformed action; None ends the episode there."""
    beside: Callable[[str, Any], Awaitable[Mapping[str, Any]]] | None = None
    """Parses everything else in an action, from its text and the state, as entries of ``info``."""
    state: Callable[[Task, int], SearchState] = SearchState
    """Makes the state of a new episode from a task and a seed."""
    native: NativeActions | None = None
    """The actions as tools for models that call tools in their native form; None if there is no such form."""


class SearchEnv(AsyncEnv[SearchState]):
    """Base class of search environments. A subclass sets ``parts`` in its constructor."""

    reports_searches: ClassVar[bool] = True
    reads_thoughts: ClassVar[bool] = True
    scorers: ClassVar[tuple[str, ...]] = ("em_squad", "f1_squad")
    reward_options: ClassVar[frozenset[str]] = frozenset(
        {"scorer", "found_reward", "outcome", "outcome_options"}
    )
    """Default scorers of evaluations, including that of the reward and those of the paper."""
    client_data: ClassVar[Mapping[str, Any]] = {"path": tuple[Hop, ...]}
    final_tag: ClassVar[str] = "answer"
    """The tag that ends the episode."""
    parts: SearchParts
    _call_replies: tuple[str | None, ...] = ()
    """The reply to each call of the present turn, if it has several; see `CalledAction`."""

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        retriever: Retriever | str | None = None,
        k: int = 3,
        max_turns: int = 4,
        observation_tokens: int = 500,
        snippet_words: int | None = None,
        scorer: str = "em_squad",
        found_reward: float = 0.0,
        outcome: str = "answer",
        outcome_options: Mapping[str, Any] | None = None,
        queries: int | None = None,
        repeat_notice: bool = False,
        count_tokens: Callable[[str], int] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Sets what most variants need: ``tasks``, the tool ``search``, ``scorer`` and ``answer_reward``.

        Args:
            tasks: Questions with answers; None uses those of a small FictionalWorld.
            retriever: A retriever or its spec, such as ``faiss:DIR``; None searches that world by word overlap.
            k: Number of passages per query.
            max_turns: Number of turns before the last one, in which only an answer counts.
            observation_tokens: Largest size of one observation. Its body is cut such that both tags remain.
            snippet_words: Number of words of each passage that a search shows; ``<read>`` shows the rest. None shows all.
            scorer: The name of the scorer that gives the reward.
            found_reward: The reward of the first turn whose observation contains an accepted answer as whole words, for
                credit by turn (MT-GRPO: 0.5). If the answer is yes or no, no turn earns it.
            outcome: A name of `agentenv.envs.search.outcomes.OUTCOMES`, or ``module:name`` of a function of an `Ending`: the
                reward of the end. ``answer`` is the score alone.
            outcome_options: Options of the outcome, such as ``retrieval`` of ``graded_format``.
            queries: Largest number of queries in one turn; further ones are ignored. 1 is sequential, None is no limit.
            repeat_notice: Whether a query that was asked before is answered with a notice instead of a search
                (HybridDeepSearcher).
            count_tokens: Returns the length of a text in tokens; None counts words.
            render_mode: ``ansi`` or None.

        Raises:
            ConfigurationError: a limit is below 1.
            UnknownName: there is no such outcome, option of it, scorer or retriever.
        """
        super().__init__(render_mode=render_mode)
        if min(k, observation_tokens, 1 if queries is None else queries) < 1 or max_turns < 0:
            raise ConfigurationError(
                f"k={k}, observation_tokens={observation_tokens} and queries={queries} must be at least 1, "
                f"max_turns={max_turns} at least 0"
            )
        tasks, retriever = on_small_world(tasks, retriever)
        retriever = shared_retriever(retriever) if isinstance(retriever, str) else retriever
        self.tasks = tuple(tasks)
        self.max_turns = max_turns
        page_format = PageFormat(observation_tokens, count_tokens or count_words, snippet_words)
        self.search = SearchTool(retriever, k, page_format, queries, repeat_notice)
        self.scorer = load_scorer(scorer)
        self.expert_thinks = outcome in THOUGHTFUL
        self._names_flaws = outcome == "flawed_positive"
        ends = get_outcome(outcome, outcome_options)
        self.answer_reward = partial(answer_reward, scorer=self.scorer, outcome=ends, found=found_reward)

    def held_tasks(self) -> Sequence[Task]:
        """Returns the tasks given to the constructor, or the default ones."""
        return self.tasks

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, or a task drawn with the seed.

        Raises:
            DatasetError: there is no task, or the task has no answers.
        """
        await super().areset(seed=seed, options=options)
        task = self.choose_task(options)
        if task is None:
            raise DatasetError(
                "this environment was given no task: give it `tasks`, or options['task'] at reset"
            )
        self.state = self.parts.state(task, seed or 0)
        native = self._native_actions()
        self.state.tagged = native is None
        opening = self.parts.opening(task) if native is None else native.opening(task)
        return (Message("user", opening),), {"task_id": task.id}

    def _native_actions(self) -> NativeActions | None:
        """Returns the actions as tools, if the policy uses its native form."""
        return self.parts.native if self.native else None

    def native_tools(self) -> Sequence[NativeTool]:
        """Returns the actions as tools; empty if they have no native form."""
        return () if self.parts.native is None else self.parts.native.tools

    def native_action(self, turn: AssistantTurn) -> str:
        """Converts the calls of ``turn`` to an action in tags; returns its text if the environment has no native tools."""
        native = self.parts.native
        if native is None:
            return super().native_action(turn)
        called = action_of(turn, native.tags, self.search.queries)
        self._call_replies = called.replies
        return called.text

    async def astep(self, action: str) -> Step:
        """Runs the calls in ``action`` and rewards the results.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            Fault: a tool failed; the policy cannot cause this, and the episode stays in its state.
        """
        # Reset first, because after a fault the next action is another turn.
        answers, self._call_replies = self._call_replies or (None,), ()
        self.check_running(action)
        parts, state = self.parts, self.state
        notes = await parts.beside(action, state) if parts.beside is not None else {}
        is_last = state.turns >= self.max_turns
        reply = await self._reply(
            (parts.last_parser if is_last and parts.last_parser else parts.parser)(action)
        )
        reply = replace(reply, info={**reply.info, **notes}, action=action)
        state.record.append(reply)
        earned = parts.reward(state)
        reward = 0.0
        for part in earned.values():
            reward += part
        if self._names_flaws and reply.end and score_of(state, self.scorer) >= 1:
            reply = replace(reply, info={**reply.info, "flawed": not is_grounded(state)})
        page = reply.page if self._native_actions() is None else untagged(reply.page)
        return self.result(
            tuple(Message("tool", page if answer is None else answer) for answer in answers if reply.page),
            reward=reward,
            end=reply.end,
            truncated=reply.end is EndReason.TURN_LIMIT,
            valid=reply.valid,
            tool_results=(reply.result,) if reply.result else (),
            reward_parts=dict(earned),
            **reply.info,
        )

    def cut_reward(self) -> float:
        """Returns the reward of an episode that reaches the turn limit without an answer."""
        state = self.state
        state.record.append(ToolReply(end=EndReason.TURN_LIMIT))
        try:
            return sum(self.parts.reward(state).values())
        finally:
            state.record.pop()

    async def _reply(self, call: TagCall | None) -> ToolReply:
        parts = self.parts
        if call is not None and call.tag == self.final_tag:
            return await parts.submit(call, self.state)
        if call is None and parts.correction is None:
            return ToolReply(end=EndReason.PARSE_ERROR, info={"answer": None})
        if self.state.turns >= self.max_turns:
            return ToolReply(end=EndReason.TURN_LIMIT, info={"answer": None})
        if call is None:
            error = ToolResult("none", ToolStatus.FORMAT_ERROR, error_class="no complete action")
            correction = parts.correction if self._native_actions() is None else NATIVE_CORRECTION
            return ToolReply(correction or "", error)
        return await parts.tools[call.tag](call, self.state)

    def anchor_key(self) -> str:
        """Returns a key of the question and the set of passages seen; the queries in between do not matter."""
        seen = sorted(self.state.by_id)
        return hashlib.sha256("\n".join([self.state.task.id, *seen]).encode()).hexdigest()[:16]

    def expert_gives_up(self) -> str | None:
        """Returns an empty answer unless every supporting document was shown completely.

        If the task names none, a page has to contain an accepted answer; for yes or no, which no page can contain, any page
        suffices.

        Raises:
            ConfigurationError: the task has no path of searches, and the expert did not search.
        """
        state, seen = self.state, "\n".join(self.state.pages)
        if self.final_tag != "answer":
            return None
        if not (state.queries or state.task.data.get("path")):
            raise ConfigurationError(
                f"task {state.task.id!r} carries no data['path'] of searches, so the expert does not know what to search for"
            )
        if needed := state.task.data.get("supporting_ids"):
            lines = [self.search.format.passages([state.by_id[one]]) for one in needed if one in state.by_id]
            whole = [_NUMBER.sub("", line).strip() in seen for line in lines]
            was_shown = len(whole) == len(needed) and all(whole)
        elif is_yes_or_no(state.task.answers):
            was_shown = bool(state.by_id)
        else:
            was_shown = holds_answer(seen, state.task.answers)
        return None if was_shown else "<answer></answer>"

    def render(self) -> str:
        """Shows the question, the searches and the answer so far."""
        state = self.state
        return f"{as_question(state.task.question)} [{len(state.retrieved)} queries] -> {state.answer}"


def thinking(thought: str, action: str) -> str:
    """Puts ``thought`` in its tags before ``action``."""
    return f"<think>{thought}</think>{action}"


def on_small_world(
    tasks: Sequence[Task] | None, retriever: Retriever | str | None, *, families: tuple[str, ...] = ()
) -> tuple[Sequence[Task], Retriever | str]:
    """Returns the arguments, with the questions of a small FictionalWorld and its search by word overlap for None."""
    if tasks is not None and retriever is not None:
        return tasks, retriever
    world = FictionalWorld.generate(WorldConfig(documents=200, questions=50, families=families))
    return tasks or world.questions, retriever or InMemoryRetriever(world.documents)
