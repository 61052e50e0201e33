"""Self-play over a corpus: ``agentenv/SearchProposer-v0`` poses questions, ``agentenv/SearchSolver-v0`` answers them.

Both search and read like ``LocalSearch``. A game decides the value of a proposal; alone, the proposer's environment rewards
proposals that satisfy the rules of ``proposals.py``. ``RoleTurn`` is the single turn of a role that does not search.
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
from agentenv.core.scoring.evidence import contains_phrase
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
_TAG_LIMIT = 10  # SSP: more opening or closing answer tags than this count as spam
SPAM_FACTOR = 0.25
"""Factor of the reward of an answer whose tags count as spam (SSP)."""


@dataclass(frozen=True)
class GameSetup:
    """The inputs of one game, from the sampler that keeps the pool of questions."""

    spare: tuple[str, str] | None = None
    """A question of the pool with its answer, played if the proposer submits none that is accepted."""
    reference: str = ""
    """An example question of the requested kind; empty requests no kind."""
    known: tuple[str, ...] = ()
    """The ``signature`` of every question that would be a duplicate."""


def is_spam(actions: Iterable[str]) -> bool:
    """Whether a solver's actions together have more opening or closing answer tags than an episode may have (SSP)."""
    text = "".join(actions)
    return max(text.count("<answer>"), text.count("</answer>")) > _TAG_LIMIT


def solver_reward(state: SearchState, *, answer: Reward) -> dict[str, float]:
    """SSP: the reward of the answer, or a quarter of it if the answer tags count as spam."""
    spam = state.last.end is EndReason.ANSWERED and is_spam(turn.action for turn in state.record)
    return {name: part * (SPAM_FACTOR if spam else 1.0) for name, part in answer(state).items()}


class SearchSolver(LocalSearch):
    """``LocalSearch`` for questions of a proposer: too many answer tags cost three quarters of the reward (SSP).

    ``info["success"]`` is true only for a right answer without that penalty, so that partial rewards are no success.
    """

    def __init__(self, *, setup: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Makes an environment like ``LocalSearch``.

        Args:
            setup: The fields of the ``GameSetup`` of a game in this environment; the solver itself does not use them.
            options: Arguments of ``LocalSearch``.
        """
        super().__init__(**options)
        self.setup = GameSetup(**(setup or {}))
        self.parts = replace(self.parts, reward=partial(solver_reward, answer=self.answer_reward))

    async def astep(self, action: str) -> Step:
        """Acts like ``LocalSearch.astep``; the last info contains ``success`` if there is an answer."""
        step = await super().astep(action)
        if step.info.get("end_reason") is EndReason.ANSWERED:
            spam = is_spam(turn.action for turn in self.state.record)
            step.info["success"] = step.reward >= self.reward_ceiling and not spam
        return step

    def proposer(self, prompt: str, rules: QuestionRules) -> "SearchProposer":
        """Makes a proposer's environment over the same corpus, with the same budgets."""
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
        """Returns the same environment without search: the first action must be the answer."""
        twin = copy.copy(self)
        twin.max_turns = 0
        return twin

    def posing(self, prompt: str | None, passages: Sequence[str] | None) -> Self:
        """Returns the same environment for a verifier.

        Args:
            prompt: The opening message with ``{question}``; None keeps that of this environment.
            passages: The passages that its search finds, as from `documents_shown`, ranked by BM25; None keeps the corpus.
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
        """Returns the passages that a search of the corpus shows, as a proposer would see them."""
        (ranking,) = await found_by(self.search.retriever, [query], self.search.k)
        return documents_shown([information(self.search.format.passages(ranking))])

    async def noise_passages(self, seed: int, count: int) -> tuple[str, ...]:
        """Returns about ``count`` passages that searches for other topics show, as noise on a verifier's page."""
        drawn = Random(seed).sample(self.tasks, min(count, len(self.tasks)))
        pages = [await self.found(task.question) for task in drawn]
        return tuple(page[0] for page in pages if page)


def topic_prompt(task: Task, *, template: str) -> str:
    """Makes the opening message of a proposer: the topic of ``task`` and its further requirements.

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
    """Ends the episode with a proposal, and records the rule that it violates."""

    rules: QuestionRules

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Records ``proposal`` and ``refused``."""
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
    """Returns 1 for a proposal that satisfies every rule and whose answer is on a page that was shown.

    In SSP, a verifier decides whether a proposal is true. Without a verifier, any words would earn as much as a question. An
    answer that is on no page could not be found by a verifier either.
    """
    last = state.last
    if last.end is not EndReason.SUBMITTED or last.info["refused"] is not None:
        return {"kept_rules": 0.0}
    proposal: Proposal = last.info["proposal"]
    return {"kept_rules": float(any(contains_phrase(proposal.answer, page) for page in proposal.documents))}


class SearchProposer(SearchEnv):
    """Searches a corpus for a topic, which is the task's question, and submits a question with its answer.

    ``Task.data`` may contain ``searches``, the smallest number of searches (1), and ``reference``, an example of the
    requested kind of question. If the task has answers, the first one is the gold answer and the proposer's own is ignored
    (SSP). The last info contains the ``proposal`` and, as ``refused``, the rule that it violates. The reward is 1 if it
    violates none and its answer is on a page that was shown.
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
        """Makes an environment over a corpus.

        Args:
            tasks: Topics; None uses those of a small FictionalWorld, with its questions as the expert's proposals.
            prompt: The opening message. It must contain ``{topic}``.
            rules: The limits of the rules.
            queries: Number of queries that one search may contain. The rules count queries, which equal SSP's searches if a
                search contains one.
            options: Arguments of ``SearchEnv``.

        Raises:
            ConfigurationError: the prompt lacks ``{topic}``.
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
        """Searches once per hop and proposes the world's own question, if the topic was made from one."""
        task = self.state.task
        if "proposal" not in task.data:
            return None
        searches = [written_block("search", hop["entity"]) for hop in task.data["path"]]
        return (*searches, proposal_text(*task.data["proposal"]))


class RoleTurn(Env[Task]):
    """The single turn of a role that does not search; ``info["fields"]`` contains the contents of its tags.

    A field is the content of the last complete pair of its tag in the policy's text. Missing tags have no entry.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        super().__init__()
        self._tags = tuple(tags)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Shows the question of ``options["task"]`` unchanged."""
        super().reset(seed=seed, options=options)
        self.state = (options or {})["task"]
        return (Message("user", self.state.question),), {"task_id": self.state.id}

    def step(self, action: str) -> Step:
        """Ends the episode. The game gives the reward."""
        fields = fields_of(action, self._tags)
        return self.result((), end=EndReason.SUBMITTED, valid=len(fields) == len(self._tags), fields=fields)


def fields_of(text: str, tags: Sequence[str]) -> dict[str, str]:
    """Returns the content of the last complete pair of each tag; a tag without one is missing."""
    found = {tag: re.findall(rf"(?s)<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", text) for tag in tags}
    return {tag: contents[-1].strip() for tag, contents in found.items() if contents}


def opening_of(form: str, topic: str, searches: int, reference: str) -> str:
    """Makes the proposer's opening message."""
    kind = REFERENCE.format(question=reference) if reference else ""
    return filled(form, {"searches": str(searches), "reference": kind, "topic": topic})


def proposal_text(question: str, answer: str) -> str:
    """Writes a proposal in the form that a proposer uses."""
    return f"<question> {question} </question> <answer> {answer} </answer>"


def _is_found(task: Task, retriever: InMemoryRetriever) -> bool:
    """Whether the expert's search of the last hop finds the document with the answer first."""
    last = task.data["path"][-1]
    ((row, _),) = retriever.rank([last["entity"]], 1)[0]
    wanted: str = last["document"]
    return retriever.corpus[row].id == wanted


def _as_topic(task: Task) -> Task:
    path = task.data["path"]
    data = {"searches": len(path), "path": path, "proposal": (task.question, task.answers[0])}
    return Task(f"topic-{task.id}", path[0]["entity"], (), task.split, data)
