"""``agentenv/LocalSearch-v0``: answer a question by searching a corpus, reading and answering (Search-R1 family).

One action is one chunk of text. Its earliest complete block decides: ``<search>`` runs each of its lines as a query,
``<read>`` shows a passage whole, ``<answer>`` ends the episode. Anything else gets a corrective observation and costs a
turn. After ``max_turns`` turns one last action is left, which must be an answer.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Required

from typing_extensions import TypedDict

from agentenv.core.env import AsyncEnv
from agentenv.core.grammar import Block, earliest_block
from agentenv.core.protocols import Retriever
from agentenv.core.scoring.scorers import Scorer, get_scorer
from agentenv.core.tool_results import passage_lines
from agentenv.core.types import (
    EndReason,
    Info,
    Message,
    Observation,
    Passage,
    Query,
    QueryContext,
    Step,
    Task,
    ToolResult,
    ToolStatus,
)
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.outcomes import Ending, get_outcome
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.retriever_spec import make_retriever

TAGS = ("search", "read", "answer")
STOP = tuple(f"</{tag}>" for tag in TAGS)
"""Stop strings for the engine: nothing after the deciding block is sampled."""

PROMPT = """\
Find the answer to the question below.
Whenever you have learned something new, first think about it between <think> and </think>.
When you lack a fact, write a query between <search> and </search>; several queries go on lines of their own. What the \
search finds comes back between <information> and </information>. To see one of the found documents in full, write its \
title between <read> and </read>. You may search as often as you need.
When you know the answer, write it between <answer> and </answer>, short and without explanation, \
as in <answer> Beijing </answer>.
Question: {question}
"""

CORRECTION = """
My last action was not valid. If I want to search, I have to put the query between <search> and </search>. \
If I want to answer, I have to put the answer between <answer> and </answer>. Let me try again.
"""


class Hop(TypedDict, total=False):
    """One step on the way to an answer: what the expert searches, and what it finds there."""

    query: Required[str]
    answer: str
    entity: str
    relation: str
    document: str
    """Id of the document that holds the answer."""


@dataclass
class SearchState:
    """All that changes within an episode."""

    task: Task
    seed: int
    found: dict[str, Passage] = field(default_factory=dict)
    """Every passage seen so far, by title."""
    by_id: dict[str, Passage] = field(default_factory=dict)
    """The same by id: passages of one document share a title."""
    queries: list[str] = field(default_factory=list)
    """What was searched."""
    pages: list[str] = field(default_factory=list)
    """What searches and readings showed."""
    retrieved: list[list[str]] = field(default_factory=list)
    """Ids of the passages that each query returned, best first."""
    turns: int = 0
    mistakes: int = 0
    """Turns that could not be acted on."""
    shown: bool = False
    """Whether an observation has held an accepted answer."""
    answer: str | None = None


class LocalSearch(AsyncEnv[SearchState]):
    """Search, read, answer; the reward is the score of the answer, and on demand one for the turn that shows it first."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]
    reports_searches: ClassVar[bool] = True
    call_markers: ClassVar[tuple[str, ...]] = ("<search>", "<read>")
    stop: ClassVar[tuple[str, ...]] = STOP
    scorers: ClassVar[tuple[str, ...]] = ("em_squad", "f1_squad")
    client_data: ClassVar[Mapping[str, Any]] = {"path": tuple[Hop, ...]}
    final_tag: ClassVar[str] = "answer"
    """The block that ends the episode."""
    correction: ClassVar[str] = CORRECTION
    """What an action without a complete block is told."""

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
        queries: int | None = None,
        prompt: str = PROMPT,
        count_tokens: Callable[[str], int] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Builds an environment over a corpus.

        Args:
            tasks: Questions with answers; None takes those of a small FictionalWorld.
            retriever: A retriever or its spec, such as ``faiss:DIR``; None searches that world by word overlap.
            k: Passages a query.
            max_turns: Turns before the last one, in which only an answer counts.
            observation_tokens: Bound of one observation; its body is cut so that both tags survive.
            snippet_words: Words of each passage that a search shows, the rest is for ``<read>``; None shows all.
            scorer: Name of the scorer that gives the reward.
            found_reward: Reward of the first turn whose observation holds an accepted answer, for credit by turn (MT-GRPO:
                0.5); of no use where answers are yes or no.
            outcome: Row of `agentenv.envs.search.outcomes.OUTCOMES`: what the end is worth; ``answer`` is the score alone.
            queries: Queries that one turn may ask, further ones are left out; 1 is sequential search, None any number.
            prompt: Opening message; must hold ``{question}``.
            count_tokens: Length of a text in tokens; None counts words.
            render_mode: ``ansi`` or None.

        Raises:
            ConfigurationError: no ``{question}`` in the prompt, or a bound below 1.
            UnknownName: no such outcome.
        """
        super().__init__(render_mode=render_mode)
        if "{question}" not in prompt:
            raise ConfigurationError("the prompt template must hold {question}")
        _check_bounds(k=k, observation_tokens=observation_tokens, queries=queries, max_turns=max_turns)
        tasks, retriever = on_small_world(tasks, retriever)
        self._tasks = tuple(tasks)
        self._retriever = make_retriever(retriever) if isinstance(retriever, str) else retriever
        self._k = k
        self._max_turns = max_turns
        self._observation_tokens = observation_tokens
        self._snippet_words = snippet_words
        self._scorer: Scorer = get_scorer(scorer)
        self._found_reward = found_reward
        self._outcome = get_outcome(outcome)
        self._queries = queries
        self._holds: Scorer = get_scorer("em_cover")
        self._prompt = prompt
        self._count = count_tokens or count_words
        self.tags: tuple[str, ...] = TAGS

    def held_tasks(self) -> Sequence[Task]:
        """The tasks that it was given, or those of its default."""
        return self._tasks

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, or a task drawn by the seed.

        Raises:
            DatasetError: the task has no answers.
        """
        await super().areset(seed=seed, options=options)
        drawn = self._tasks[int(self.np_random.integers(len(self._tasks)))] if self._tasks else None
        task: Task | None = (options or {}).get("task") or drawn
        if task is None:
            raise DatasetError("there is no task to pose")
        self.state = SearchState(task, seed=seed or 0)
        return (Message("user", self._opening(task)),), {"task_id": task.id}

    def _opening(self, task: Task) -> str:
        if not task.answers:
            raise DatasetError(f"task {task.id!r} has no answers to score against")
        return self._prompt.replace("{question}", as_question(task.question))

    async def astep(self, action: str) -> Step:
        """Acts on the earliest complete block of ``action``.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            RetrieverFault: the search failed; this is never the policy's doing.
        """
        self.check_running()
        block = earliest_block(action, self.tags)
        last = self.state.turns >= self._max_turns
        if block and block.tag == self.final_tag:
            return self._finish(action, block)
        if last:
            reward = self._worth(0.0)
            return self.result(
                (), reward=reward, end=EndReason.TURN_LIMIT, truncated=True, valid=False, answer=None
            )
        observation, result = await self._act(block)
        self.state.pages.append(observation)
        self.state.turns += 1
        valid = result.status is ToolStatus.OK
        self.state.mistakes += result.status is ToolStatus.FORMAT_ERROR
        reward = self._found_reward * self._newly_shown(observation) if valid and self._found_reward else 0.0
        return self.result(
            (Message("tool", observation),), reward=reward, valid=valid, tool_results=(result,)
        )

    def _newly_shown(self, observation: str) -> bool:
        before = self.state.shown
        self.state.shown = before or self._holds(observation, self.state.task.answers).value > 0
        return self.state.shown and not before

    async def _act(self, block: Block | None) -> tuple[str, ToolResult]:
        if block and block.tag == "search" and (texts := _lines(block.content)):
            return await self._search(texts[: self._queries])
        if block and block.tag == "read":
            return self._read(block.content)
        return self.correction, ToolResult("none", ToolStatus.FORMAT_ERROR, error_class="no complete action")

    async def _search(self, texts: list[str]) -> tuple[str, ToolResult]:
        task, state = self.state.task, self.state
        context = QueryContext(
            f"{task.id}/{state.seed}", task.question, task.answers, state.turns, task.split, state.seed
        )
        rankings = await self._retriever.search([Query(text, context) for text in texts], self._k)
        ids = [[passage.id for passage in ranking] for ranking in rankings]
        state.retrieved += ids
        state.queries += texts
        passages = list({passage.id: passage for ranking in rankings for passage in ranking}.values())
        state.found |= {passage.title: passage for passage in passages}
        state.by_id |= {passage.id: passage for passage in passages}
        return self._information(self._format(passages)), ToolResult(
            "search", ToolStatus.OK, "\n".join(texts), data={"ids": ids}
        )

    def _format(self, passages: list[Passage]) -> str:
        return format_passages(passages, self._snippet_words)

    def _read(self, title: str) -> tuple[str, ToolResult]:
        passage = self.state.found.get(title)
        if passage is None:
            body = f"No document titled {title!r} was found so far."
            return self._information(body), ToolResult("read", ToolStatus.ERROR, title, "UnknownTitle")
        return self._information(format_passages([passage])), ToolResult(
            "read", ToolStatus.OK, title, data={"ids": [[passage.id]]}
        )

    def _information(self, body: str) -> str:
        return information(self._fitting(body))

    def _fitting(self, body: str) -> str:
        """The longest run of leading words of ``body`` that fits into one observation."""
        room = self._observation_tokens
        if self._count(information(body)) <= room:
            return body
        words = body.split(" ")
        low, high = 0, len(words)
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._count(information(" ".join(words[:middle]))) <= room
            low, high = (middle, high) if fits else (low, middle - 1)
        return " ".join(words[:low])

    def _finish(self, action: str, block: Block) -> Step:
        return self._answer(block.content)

    def _answer(self, text: str) -> Step:
        self.state.answer = text
        score = self._scorer(text, self.state.task.answers)
        return self.result((), reward=self._worth(score.value), end=EndReason.ANSWERED, answer=text)

    def _worth(self, score: float) -> float:
        searches = self.state.turns - self.state.mistakes
        return self._outcome(Ending(score, searches, self.state.mistakes))

    def anchor_key(self) -> str:
        """The question and the set of documents seen: what was asked in between does not matter."""
        seen = sorted({passage.id for passage in self.state.found.values()})
        return hashlib.sha256("\n".join([self.state.task.id, *seen]).encode()).hexdigest()[:16]

    def expert(self) -> Sequence[str] | None:
        """One search a hop where the task carries its path, then the first accepted answer.

        Where ``queries`` names more than one a turn, those that do not wait for each other's answers go together.
        """
        task = self.state.task
        together = as_turns(task.data.get("path", ()), self._queries or 1)
        searches = ["<search>" + "\n".join(queries) + "</search>" for queries in together]
        return (*searches[: self._max_turns], f"<answer>{task.answers[0]}</answer>")

    def expert_gives_up(self) -> str | None:
        """An empty answer, unless every supporting document stands whole on a page.

        Where the task names none: unless a page holds an accepted answer, or any page was shown and the answer is yes or no,
        which no page holds.

        Raises:
            ConfigurationError: the task carries no path of searches, and the expert searched nothing.
        """
        state, seen = self.state, "\n".join(self.state.pages)
        if self.final_tag != TAGS[-1]:
            return None
        if not (state.queries or state.task.data.get("path")):
            raise ConfigurationError(
                f"task {state.task.id!r} carries no data['path'] of searches, so the expert does not know what to search "
                "for and its score is not measured"
            )
        if needed := state.task.data.get("supporting_ids"):
            shown = all(one in state.by_id and self._line(state.by_id[one]) in seen for one in needed)
        elif all(answer.strip().lower() in ("yes", "no") for answer in state.task.answers):
            shown = bool(state.found)
        else:
            shown = self._holds(seen, state.task.answers).value > 0
        return None if shown else f"<{self.final_tag}></{self.final_tag}>"

    def _line(self, passage: Passage) -> str:
        """A passage as a page shows it, without its number."""
        return self._format([passage]).partition("(")[2].strip()

    def render(self) -> str:
        """The question, what was searched and the answer so far."""
        state = self.state
        return f"{as_question(state.task.question)} [{len(state.retrieved)} queries] -> {state.answer}"


def as_turns(path: Sequence[Mapping[str, Any]], most: int) -> list[list[str]]:
    """The queries of a path of hops in turns of at most ``most``: one waits for an answer that stands in it."""
    turns: list[list[str]] = []
    known: list[str] = []  # answers of the present turn
    for hop in path:
        waits = any(answer in hop["query"] for answer in known)
        if turns and not waits and len(turns[-1]) < most:
            turns[-1].append(hop["query"])
        else:
            turns.append([hop["query"]])
            known = []
        if "answer" in hop:
            known.append(hop["answer"])
    return turns


def on_small_world(
    tasks: Sequence[Task] | None, retriever: Retriever | str | None, *, families: tuple[str, ...] = ()
) -> tuple[Sequence[Task], Retriever | str]:
    """What is given; in place of what is None the questions of a small FictionalWorld and its search by word overlap."""
    if tasks is not None and retriever is not None:
        return tasks, retriever
    world = FictionalWorld.generate(WorldConfig(documents=200, questions=50, families=families))
    return tasks or world.questions, retriever or InMemoryRetriever(world.documents)


def _check_bounds(*, k: int, observation_tokens: int, queries: int | None, max_turns: int) -> None:
    if min(k, observation_tokens, 1 if queries is None else queries) < 1 or max_turns < 0:
        raise ConfigurationError(
            f"k={k}, observation_tokens={observation_tokens} and queries={queries} must be at least 1, "
            f"max_turns={max_turns} at least 0"
        )


def as_question(text: str) -> str:
    """``text`` stripped, with a question mark at the end."""
    text = text.strip()
    return text if text.endswith("?") else text + "?"


def information(body: str) -> str:
    """An observation: two newlines on the outside, none inside."""
    return f"\n\n<information>{body.strip()}</information>\n\n"


def format_passages(passages: Sequence[Passage], words: int | None = None) -> str:
    """One line a passage, numbered from 1: ``Doc 1(Title: t) text``."""
    return passage_lines(replace(p, text=" ".join(p.text.split(" ")[:words])) for p in passages)


def count_words(text: str) -> int:
    """Number of words."""
    return len(text.split())


def _lines(content: str) -> list[str]:
    return [line.strip() for line in content.splitlines() if line.strip()]
