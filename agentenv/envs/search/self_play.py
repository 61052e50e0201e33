"""Self-play over a corpus: ``agentenv/SearchProposer-v0`` poses questions, ``agentenv/SearchSolver-v0`` answers them.

Both search and read as ``LocalSearch`` does. What a proposal is worth, others decide: alone, the proposer's environment
rewards keeping the rules of ``proposals.py``. ``RoleTurn`` is the one written turn of a role that does not search.
"""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, ClassVar, Self

from agentenv.core.env import Env
from agentenv.core.grammar import between, earliest_block, written_block
from agentenv.core.prompt_templates import require_placeholder
from agentenv.core.scoring.evidence import stands_in
from agentenv.core.scoring.scorers import check_answers
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.local_search import STOP, LocalSearch
from agentenv.envs.search.outcomes import Reward
from agentenv.envs.search.page_format import QuestionPrompt, filled, information
from agentenv.envs.search.proposals import (
    Proposal,
    QuestionRules,
    as_documents,
    documents_shown,
    refusal,
)
from agentenv.envs.search.search_env import SearchEnv, SearchParts
from agentenv.envs.search.search_state import SearchState, TagCall, ToolReply
from agentenv.envs.search.search_tools import ReadTool, TagParser
from agentenv.retrievers.base import found_by
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.fakes import InMemoryRetriever

PROPOSER_PROMPT = """\
Pose a question about {topic} that can only be answered by searching.
First gather facts: write a query between <search> and </search>, and what the search finds comes back between \
<information> and </information>. Search at least {searches} times, each time for something new, going on from what you \
have found.
Then write the question between <question> and </question> and right after it its answer, short, between <answer> and \
</answer>. The question must have one answer only, must not contain it, and must need every search.{reference}
"""

CORRECTION = """
My last action was not valid. If I want to search, I have to put the query between <search> and </search>. If I know \
enough, I have to put the question between <question> and </question> and its answer between <answer> and </answer>. \
Let me try again.
"""

REFERENCE = "\nWanted is a question of this kind: {question}"
GIVEN = "\nThe answer has to be: {answer}"
_TAG_LIMIT = 10  # SSP: more opening or closing answer tags than this are spam
SPAM_FACTOR = 0.25
"""Share of the reward that is left to an answer whose tags are spam (SSP)."""


@dataclass(frozen=True)
class GameSetup:
    """What one game is dealt from outside: by the sampler that keeps the pool."""

    spare: tuple[str, str] | None = None
    """A question of the pool with its answer, played where the proposer hands in none that is accepted."""
    reference: str = ""
    """A question of the kind that is wanted; empty asks for none."""
    known: tuple[str, ...] = ()
    """``signature`` of every question that would be a duplicate."""


def is_spam(actions: Iterable[str]) -> bool:
    """Whether a solver's actions have more opening or more closing answer tags together than an episode may (SSP)."""
    text = "".join(actions)
    return max(text.count("<answer>"), text.count("</answer>")) > _TAG_LIMIT


def solver_reward(state: SearchState, *, answer: Reward) -> dict[str, float]:
    """SSP: the reward of the answer, a quarter of it where the answer's tags are spam."""
    spam = state.last.end is EndReason.ANSWERED and is_spam(turn.action for turn in state.record)
    return {name: part * (SPAM_FACTOR if spam else 1.0) for name, part in answer(state).items()}


class SearchSolver(LocalSearch):
    """``LocalSearch`` for questions of a proposer: answer tags in excess cost three quarters of the reward (SSP).

    ``info["success"]`` is true for a right answer without that penalty only, so that a fraction of a reward is no success.
    """

    def __init__(self, *, setup: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Builds an environment as ``LocalSearch`` does.

        Args:
            setup: The fields of the ``GameSetup`` of a game on this environment; of no use to the solver itself.
            options: Those of ``LocalSearch``.
        """
        super().__init__(**options)
        self.setup = GameSetup(**(setup or {}))
        self.parts = replace(self.parts, reward=partial(solver_reward, answer=self.answer_reward))

    async def astep(self, action: str) -> Step:
        """Acts as ``LocalSearch.astep`` does; the last info holds ``success`` where there is an answer."""
        step = await super().astep(action)
        if step.info.get("end_reason") is EndReason.ANSWERED:
            spam = is_spam(turn.action for turn in self.state.record)
            step.info["success"] = step.reward >= self.reward_ceiling and not spam
        return step

    def proposer(self, prompt: str, rules: QuestionRules) -> "SearchProposer":
        """A proposer's environment over the same corpus, with the same budgets."""
        pages = self.search.format
        return SearchProposer(
            tasks=self.tasks,
            retriever=self.search.retriever,
            k=self.search.k,
            max_turns=self.max_turns,
            observation_tokens=pages.tokens,
            snippet_words=pages.words,
            count_tokens=pages.count,
            prompt=prompt,
            rules=rules,
        )

    def closed_book(self) -> Self:
        """The same environment without a search: the first action must be the answer."""
        twin = copy.copy(self)
        twin.max_turns = 0
        return twin

    def posing(self, prompt: str | None, passages: Sequence[str] | None) -> Self:
        """The same environment as a verifier plays it.

        Args:
            prompt: Opening message with ``{question}``; None keeps this environment's.
            passages: All that its search finds, as `documents_shown` gives them, ranked by BM25; None keeps the corpus.
        """
        twin = copy.copy(self)
        if passages is not None:
            twin.search = replace(self.search, retriever=BM25Retriever.build(as_documents(passages)))
        twin.parts = replace(
            self.parts,
            opening=QuestionPrompt(prompt) if prompt else self.parts.opening,
            tools={**self.parts.tools, "search": twin.search},
        )
        return twin

    async def found(self, query: str) -> tuple[str, ...]:
        """The passages that a search of the corpus shows, as a proposer would see them."""
        (ranking,) = await found_by(self.search.retriever, [query], self.search.k)
        return documents_shown([information(self.search.format.passages(ranking))])

    async def noise_passages(self, seed: int, count: int) -> tuple[str, ...]:
        """About ``count`` passages that searches for other topics show: noise for a verifier's page."""
        drawn = Random(seed).sample(self.tasks, min(count, len(self.tasks)))
        pages = [await self.found(task.question) for task in drawn]
        return tuple(page[0] for page in pages if page)


def topic_prompt(task: Task, *, template: str) -> str:
    """The opening message of a proposer: the topic of ``task``, and what else the task asks for.

    Raises:
        DatasetError: the task has answers that are not text.
    """
    if task.answers:
        check_answers(task.answers)
    given = GIVEN.format(answer=task.answers[0]) if task.answers else ""
    searches = int(task.data.get("searches", 1))
    return opening_of(template, task.question, searches, task.data.get("reference", "")) + given


@dataclass(frozen=True)
class ProposalTool:
    """Ends the episode with a proposal, and notes the rule that it breaks."""

    rules: QuestionRules

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Notes ``proposal`` and ``refused``."""
        own = earliest_block(call.rest, ("answer",))
        gold = state.task.answers[0] if state.task.answers else own.content if own else ""
        actions = [*(turn.action for turn in state.record), call.action]
        thoughts = [thought.strip() for text in actions for thought in between(text, "<think>", "</think>")]
        proposal = Proposal(
            call.text, gold, tuple(state.queries), documents_shown(state.pages), tuple(thoughts)
        )
        state.answer = call.text
        info = {"proposal": proposal, "refused": refusal(proposal, self.rules)}
        return ToolReply(end=EndReason.SUBMITTED, info=info)


def proposer_reward(state: SearchState) -> dict[str, float]:
    """1 for a proposal that keeps every rule and whose answer stands on a page that was shown.

    SSP leaves to a verifier whether a proposal is true. Alone nobody asks one, and any words would earn as much as a
    question; what stands on no page, no verifier would find there either.
    """
    last = state.last
    if last.end is not EndReason.SUBMITTED or last.info["refused"] is not None:
        return {"kept_rules": 0.0}
    proposal: Proposal = last.info["proposal"]
    return {"kept_rules": float(any(stands_in(proposal.answer, page) for page in proposal.documents))}


class SearchProposer(SearchEnv):
    """Searches a corpus about a topic, the task's question, and hands in a question with its answer.

    ``Task.data`` may hold ``searches``, the fewest that are asked for (1), and ``reference``, a question of the kind that is
    wanted. Where the task has answers, the first of them is the gold and the proposer's own is ignored (SSP). The last info
    holds the ``proposal`` and, as ``refused``, the rule that it breaks; the reward is 1 where it breaks none and its answer
    stands on a page that was shown.
    """

    final_tag: ClassVar[str] = "question"
    call_markers: ClassVar[tuple[str, ...]] = ("<search>", "<read>")
    stop: ClassVar[tuple[str, ...]] = STOP
    client_data: ClassVar[Mapping[str, Any]] = {"searches": int, "reference": str}

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        prompt: str = PROPOSER_PROMPT,
        rules: QuestionRules | None = None,
        queries: int | None = 1,
        **options: Any,
    ) -> None:
        """Builds an environment over a corpus.

        Args:
            tasks: Topics; None takes those of a small FictionalWorld, with its questions as the expert's proposals.
            prompt: Opening message; must hold ``{topic}``.
            rules: Bounds of the rules.
            queries: Queries that one search may ask. The rules count queries, which are the searches of SSP as long as a
                search asks one.
            options: Those of ``SearchEnv``.

        Raises:
            ConfigurationError: no ``{topic}`` in the prompt.
        """
        require_placeholder(prompt, "topic")
        if tasks is None:
            world = FictionalWorld.generate(
                WorldConfig(documents=200, questions=50, families=("lookup", "bridge"))
            )
            words = InMemoryRetriever(world.documents)
            tasks = [_as_topic(task) for task in world.questions if _is_found(task, words)]
            options = {"retriever": words} | options
        super().__init__(tasks=tasks, queries=queries, **options)
        self.parts = SearchParts(
            opening=partial(topic_prompt, template=prompt),
            parser=TagParser(("search", "read", "question")),
            tools={"search": self.search, "read": ReadTool(self.search.format)},
            submit=ProposalTool(rules or QuestionRules()),
            reward=proposer_reward,
            correction=CORRECTION,
        )

    def expert(self) -> Sequence[str] | None:
        """One search a hop and the world's own question, where the topic was made from one."""
        task = self.state.task
        if "proposal" not in task.data:
            return None
        searches = [written_block("search", hop["entity"]) for hop in task.data["path"]]
        return (*searches, proposal_text(*task.data["proposal"]))


class RoleTurn(Env[Task]):
    """One written turn of a role that does not search; ``info["fields"]`` holds what stands in its tags.

    A field is the content of the last complete pair of its tag in the policy's own text; what is missing is absent.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        super().__init__()
        self._tags = tuple(tags)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Shows the question of ``options["task"]`` as it stands."""
        super().reset(seed=seed, options=options)
        self.state = (options or {})["task"]
        return (Message("user", self.state.question),), {"task_id": self.state.id}

    def step(self, action: str) -> Step:
        """Ends the episode; the reward is given by the game."""
        fields = fields_of(action, self._tags)
        return self.result((), end=EndReason.SUBMITTED, valid=len(fields) == len(self._tags), fields=fields)


def fields_of(text: str, tags: Sequence[str]) -> dict[str, str]:
    """The content of the last complete pair of each tag; a tag without one is absent."""
    found = {tag: re.findall(rf"(?s)<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", text) for tag in tags}
    return {tag: contents[-1].strip() for tag, contents in found.items() if contents}


def opening_of(form: str, topic: str, searches: int, reference: str) -> str:
    """The proposer's opening message."""
    kind = REFERENCE.format(question=reference) if reference else ""
    return filled(form, {"searches": str(searches), "reference": kind, "topic": topic})


def proposal_text(question: str, answer: str) -> str:
    """A proposal as a proposer writes it."""
    return f"<question> {question} </question> <answer> {answer} </answer>"


def _is_found(task: Task, retriever: InMemoryRetriever) -> bool:
    """Whether the expert's search of the last hop shows the document with the answer first."""
    last = task.data["path"][-1]
    ((row, _),) = retriever.rank([last["entity"]], 1)[0]
    wanted: str = last["document"]
    return retriever.corpus[row].id == wanted


def _as_topic(task: Task) -> Task:
    path = task.data["path"]
    data = {"searches": len(path), "path": path, "proposal": (task.question, task.answers[0])}
    return Task(f"topic-{task.id}", path[0]["entity"], (), task.split, data)
