"""``agentenv/LongSearch-v0``: many turns of searching and of reading whole pages part by part (ASearcher).

``<search>`` shows documents with their addresses. ``<access>`` shows the first part of the page at an address, and the next
part each time it is repeated. The reward is that of the answer if every action is well formed. Some of the tasks state that
the question can be answered; there, an answer that doubts the question costs .5. With ``kept_chars``, each part is shown in
full only once: after the turn that sees it, the context is replaced by one with only its beginning. With ``history_chars``,
the context contains only the end of the history. With ``reads_on``, the parts of a page are shown one after another, each
followed by a thought. After ``force_documents`` documents or ``force_turns`` turns, only an answer is accepted.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from agentenv.core.grammar import written_block
from agentenv.core.protocols import Retriever
from agentenv.core.scoring.scorers import Scorer
from agentenv.core.types import Info, Message, Observation, Step, Task, ToolResult, ToolStatus
from agentenv.envs.search.native_tools import NATIVE_PROMPT, NativeActions, untagged
from agentenv.envs.search.outcomes import Reward, is_one_action, score_of
from agentenv.envs.search.page_format import PageFormat, QuestionPrompt, format_addresses
from agentenv.envs.search.page_history import CUT, SHORTENED, has_read, last_chars, short_form, short_history
from agentenv.envs.search.page_reading import (
    END_OF_THOUGHT,
    THOUGHT,
    ReadingParser,
    ReadingThought,
    follows_result,
)
from agentenv.envs.search.search_env import CORRECTION, SearchEnv, SearchParts
from agentenv.envs.search.search_state import SearchState, TagCall, ToolFunction, ToolReply
from agentenv.envs.search.search_tools import TagParser
from agentenv.errors import ConfigurationError, check_known
from agentenv.retrievers.remote import RemoteRetriever
from agentenv.retrievers.service.pages import Pages
from agentenv.retrievers.storage.corpus import Corpus

PROMPT = """\
Find the answer to the question below. It takes many steps: go on until you are sure.
First think between <think> and </think>. Write a query between <search> and </search> to find documents; each comes with \
its address in brackets. Write an address between <access> and </access> to read its page; ask again for its next part.
When you know the answer, write it between <answer> and </answer>, short and without explanation, \
as in <answer> Beijing </answer>.
Question: {question}
"""
DOUBTFUL = "If the question itself is not valid, you may say so in the answer."
CERTAIN = "The question can be answered. If you are not certain, answer with your best guess."
FORCED = "Nothing more can be searched or read. Answer now from what you know, with your best guess."
"""Shown once an episode has used up its documents or turns."""
TAGS = ("search", "access", "answer")

_DOUBTS = re.compile(r"\b(?:questions?|in?valid|valid|in?appropriate|appropriate)\b", re.IGNORECASE)


@dataclass
class LongState(SearchState):
    """All that changes within an episode."""

    parts: dict[str, int] = field(default_factory=dict)
    """Number of parts of each page that were shown."""


def is_well_formed(actions: Sequence[str]) -> bool:
    """Whether the policy's turns have ASearcher's format.

    Every action tag is closed as often as it is opened. A turn has at most one action and at most one end of a thought. No
    role is named ("Assistant", "assistant"), as happens when a model continues with the next turn itself.
    """
    return all(
        is_one_action(action, TAGS)
        and action.count("</think>") <= 1
        and "Assistant" not in action
        and "assistant" not in action
        for action in actions
    )


def holds_doubt(answer: str, accepted: Sequence[str]) -> bool:
    """ASearcher as published: whether ``answer`` contains "question", "appropriate" or "valid" anywhere."""
    return any(word in answer.lower() for word in ("question", "appropriate", "valid"))


def doubts_question(answer: str, accepted: Sequence[str]) -> bool:
    """Whether an answer talks about the question, its validity or appropriateness instead of answering.

    Like `holds_doubt`, but only whole words count, and none that an accepted answer contains too.
    """
    known = {word.lower() for text in accepted for word in _DOUBTS.findall(text)}
    return any(word.lower() not in known for word in _DOUBTS.findall(answer))


DOUBTS: Mapping[str, Callable[[str, Sequence[str]], bool]] = {
    "words": doubts_question,
    "substring": holds_doubt,
}
"""Definitions of a doubt about the question, by name."""
SEARCH_CHARS = 5000
"""Largest number of characters of a document in search results, as published."""


def augmented_score(state: SearchState, scorer: Scorer) -> float:
    """ASearcher: .7 s + .3 max(s, s'), with the score s' against ``data["augmented_answers"]`` if the task has them."""
    score, further = score_of(state, scorer), state.task.data.get("augmented_answers")
    if state.answer is None or not further:
        return score
    return 0.7 * score + 0.3 * max(score, scorer(state.answer, further).value)


def is_certain(task: Task, share: float) -> bool:
    """Whether ``task`` belongs to the ``share`` of tasks that are stated to have an answer, drawn by its id."""
    digest = hashlib.sha256(task.id.encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


@dataclass(frozen=True)
class LongOpening:
    """The opening message of a task, which states whether its question may be doubted."""

    template: str
    share: float
    """Share of the tasks whose question may not be doubted."""

    def __call__(self, task: Task) -> str:
        """Returns the template with the question of ``task``, preceded by one of the two statements."""
        sentence = CERTAIN if is_certain(task, self.share) else DOUBTFUL
        return QuestionPrompt(self.template.replace("Question:", f"{sentence}\nQuestion:"))(task)


def long_reward(
    state: LongState,
    *,
    answer: Reward,
    certain: Callable[[Task], bool],
    doubt_penalty: float,
    doubts: Callable[[str, Sequence[str]], bool] = doubts_question,
) -> dict[str, float]:
    """ASearcher (Gao et al. 2025): the reward of the answer, multiplied by 0 if an action is not well formed.

    If the task states that its question can be answered, an answer that doubts it costs ``-doubt_penalty`` whatever its
    format. Negative parts are kept, so that a malformed turn cannot avoid the penalty.
    """
    ends = state.last.end is not None
    if ends and state.answer and certain(state.task) and doubts(state.answer, state.task.answers):
        return {"doubt": -doubt_penalty}
    gate = not ends or is_well_formed([turn.action for turn in state.record])
    return {name: part if gate else min(part, 0.0) for name, part in answer(state).items()}


@dataclass(frozen=True)
class AccessTool:
    """Shows the page at an address part by part, from the corpus or its server, or else from what searches have shown."""

    retriever: Retriever
    format: PageFormat
    part_chars: int
    """Largest number of characters of a part."""
    most_parts: int
    """Largest number of parts of a page."""
    pages: Pages | None
    """The pages of the corpus, if it is in this process."""

    async def __call__(self, call: TagCall, state: LongState) -> ToolReply:
        """Returns the next part of the page at the address in the call.

        Raises:
            RetrieverFault: the server of the corpus failed.
        """
        address = call.text
        parts = self.parts_of(address, await self._page(address, state))
        shown = state.parts.get(address, 0)
        if shown >= len(parts):
            why = "There is no page at" if not parts else "Every part was shown of the page at"
            error = "UnknownPage" if not parts else "EndOfPage"
            result = ToolResult("access", ToolStatus.ERROR, address, error)
            return ToolReply(self.format.page(f"{why} {address!r}."), result)
        state.parts[address] = shown + 1
        body = _part_heading(shown + 1, len(parts), address) + parts[shown]
        return ToolReply(self.format.page(body), ToolResult("access", ToolStatus.OK, address))

    async def has_more(self, address: str, state: LongState) -> bool:
        """Whether the page at ``address`` has a part that was not shown yet.

        Raises:
            RetrieverFault: the server of the corpus failed.
        """
        parts = self.parts_of(address, await self._page(address, state))
        return state.parts.get(address, 0) < len(parts)

    def parts_of(self, address: str, page: str) -> list[str]:
        """Splits the page into parts without gaps, each of which fits into an observation with a heading and one word."""
        longest = _part_heading(self.most_parts, self.most_parts, address)
        parts: list[str] = []
        while page and len(parts) < self.most_parts:
            chunk = page[: self.part_chars]
            part = self.format.fitting(longest + chunk)[len(longest) :] or chunk
            parts.append(part)
            page = page[len(part) :].lstrip(" ")
        return parts

    async def _page(self, address: str, state: LongState) -> str:
        if self.pages is not None:
            return "\n".join(f"{d.title}\n{d.text}" for d in self.pages.by_url(address))
        if isinstance(self.retriever, RemoteRetriever):
            (document,) = await self.retriever.documents(urls=[address])
            return f"{document['title']}\n{document['text']}" if document else ""
        return "\n".join(p.text for p in state.by_id.values() if address in (p.id, p.title))


@dataclass(frozen=True)
class Forcing:
    """A tool that demands an answer after its last permitted use, and instead of any further one.

    Raises:
        ConfigurationError: a limit is below 1.
    """

    tool: ToolFunction
    documents: int | None
    """Number of documents shown by searches and pages, each counted once, after which an answer is due; None is no limit."""
    turns: int | None
    """Number of turns after which an answer is due; None is no limit."""

    def __post_init__(self) -> None:
        if any(bound is not None and bound < 1 for bound in (self.documents, self.turns)):
            raise ConfigurationError(
                f"force_documents={self.documents} and force_turns={self.turns} must be at least 1"
            )

    async def __call__(self, call: TagCall, state: LongState) -> ToolReply:
        """Returns the reply of the tool, with the demand if an answer is due after it.

        Raises:
            Fault: the tool failed.
        """
        if self.is_due(state, state.turns):
            return ToolReply(FORCED, ToolResult(call.tag, ToolStatus.ERROR, call.text, "AnswerDue"))
        reply = await self.tool(call, state)
        return replace(reply, page=reply.page + FORCED) if self.is_due(state, state.turns + 1) else reply

    def is_due(self, state: LongState, turns: int) -> bool:
        """Whether only an answer is accepted after so many turns."""
        documents = len(state.by_id.keys() | state.parts.keys())
        return (self.documents is not None and documents >= self.documents) or (
            self.turns is not None and turns >= self.turns
        )


def _check_bounds(
    part_chars: int, parts: int, kept: int | None, history: int | None, share: float, penalty: float
) -> None:
    least = min(part_chars, parts, *(1 if chars is None else chars for chars in (kept, history)))
    if least < 1 or not 0 <= share <= 1 or penalty < 0:
        raise ConfigurationError(
            f"part_chars={part_chars}, parts={parts}, kept_chars={kept} and history_chars={history} must be at least 1, "
            f"certain_share={share} in [0, 1] and doubt_penalty={penalty} at least 0"
        )


def _pages_of(retriever: Retriever) -> Pages | None:
    corpus = getattr(retriever, "corpus", None)
    return Pages(corpus) if isinstance(corpus, Corpus) else None


def _contains_ignoring_spaces(shown: str, answer: str) -> bool:
    """Whether ``shown`` contains ``answer``; ignores spaces, because one is lost between two parts of a page."""
    return answer.replace(" ", "") in shown.replace(" ", "")


def _part_heading(number: int, total: int, address: str) -> str:
    return f"Part {number} of {total} of {address}:\n"


class LongSearch(SearchEnv):
    """Search with whole pages and many turns; the published limits are 128 turns and pages of 25 000 characters."""

    call_markers = ("<search>", "<access>")
    stop = ("</search>", "</access>", "</answer>")
    scorers = (*SearchEnv.scorers, "f1_set", "cem")
    reward_options = SearchEnv.reward_options | {"doubt_penalty"}
    client_data: ClassVar[Mapping[str, Any]] = {**SearchEnv.client_data, "augmented_answers": tuple[str, ...]}
    state: LongState

    def __init__(
        self,
        *,
        max_turns: int = 128,
        k: int = 5,
        part_chars: int = 25_000,
        parts: int = 10,
        observation_tokens: int = 8192,
        kept_chars: int | None = None,
        reads_on: bool = False,
        force_documents: int | None = None,
        force_turns: int | None = None,
        history_chars: int | None = None,
        ends_without_action: bool = False,
        certain_share: float = 0.3,
        doubt_penalty: float = 0.5,
        doubt: str = "words",
        prompt: str = PROMPT,
        scorer: str = "f1_set",
        **options: Any,
    ) -> None:
        """Makes an environment.

        Args:
            max_turns: Number of turns before the last one, in which only an answer counts.
            k: Number of documents per query.
            part_chars: Largest number of characters of a page in one turn; fewer if an observation is smaller.
            parts: Largest number of parts of a page; the rest of the page is never shown.
            observation_tokens: Largest size of one observation.
            kept_chars: Number of characters of a part that stay in the context after its turn; 100 as published. Shortening
                starts a new row of the record. None keeps every part.
            reads_on: Whether turns after a result hold only a thought, and all parts of a page follow unrequested.
            force_documents: Number of different documents shown, after which only an answer is accepted; None sets no limit.
            force_turns: Number of turns after which only an answer is accepted; None sets no limit.
            history_chars: Number of last characters of the history that stay in the context; None keeps all. The published
                agent that is prompted and not trained has 20 documents, 32 turns and 25,000 characters.
            ends_without_action: Whether a turn without an action ends the episode, as published; otherwise it is corrected.
            certain_share: Share of the tasks, drawn by their ids, whose opening message states that the question can be
                answered; the others state that it may be doubted. Only the environment's own message contains either.
            doubt_penalty: The penalty of an answer that doubts a question that can be answered.
            doubt: ``words``: whole words that no accepted answer contains are a doubt; ``substring``: the published rule.
            prompt: The opening message with ``{question}``. If it is not the default, nothing counts as a doubt.
            scorer: The name of the scorer that gives the reward; F1 over sets of words as published.
            **options: Further arguments of `SearchEnv`.

        Raises:
            ConfigurationError: a limit is below 1, a share is outside of [0, 1], or the penalty is negative.
            UnknownName: there is no such rule for doubts.
        """
        bounds: dict[str, Any] = {"k": k, "max_turns": max_turns, "observation_tokens": observation_tokens}
        super().__init__(scorer=scorer, **bounds, **options)
        _check_bounds(part_chars, parts, kept_chars, history_chars, certain_share, doubt_penalty)
        self._kept_chars, self._history_chars, self._reads_on = kept_chars, history_chars, reads_on
        page_format = replace(self.search.format, write=partial(format_addresses, chars=SEARCH_CHARS))
        self.search, retriever = replace(self.search, format=page_format), self.search.retriever
        self.access = AccessTool(retriever, page_format, part_chars, parts, _pages_of(retriever))
        check_known("rule for a doubt", doubt, DOUBTS)
        self._forced = Forcing(self.search, force_documents, force_turns)
        charge = partial(long_reward, doubt_penalty=doubt_penalty, doubts=DOUBTS[doubt])
        self.parts = self._parts(prompt, certain_share, charge, ends_without_action)

    def _parts(
        self,
        prompt: str,
        share: float,
        charge: Callable[..., dict[str, float]],
        ends: bool,
    ) -> SearchParts:
        correction = None if ends else CORRECTION
        usual, native = prompt == PROMPT, NativeActions.of(TAGS, prompt, PROMPT)
        if usual:
            native = replace(native, opening=LongOpening(NATIVE_PROMPT, share))
        parser: Callable[[str], TagCall | None] = TagParser(TAGS)
        tools = {"search": self._forced, "access": replace(self._forced, tool=self.access)}
        if self._reads_on:
            parser = ReadingParser(parser, TAGS)
            tools[THOUGHT] = replace(self._forced, tool=ReadingThought(self.access, correction))
        return SearchParts(
            opening=LongOpening(prompt, share) if usual else QuestionPrompt(prompt),
            parser=parser,
            tools=tools,
            reward=partial(
                charge,
                answer=partial(self.answer_reward, score=augmented_score),
                certain=partial(is_certain, share=share if usual else 0.0),
            ),
            correction=correction,
            state=LongState,
            native=native,
        )

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses a task as `SearchEnv` does.

        Raises:
            ConfigurationError: pages are to be shortened or read part by part, but the policy uses its native form.
            DatasetError: there is no task, or the task has no answers.
        """
        if (self._kept_chars is not None or self._history_chars is not None) and self.native:
            raise ConfigurationError(
                f"kept_chars={self._kept_chars} and history_chars={self._history_chars} write the context anew, with "
                "earlier actions in tags: take the chat format inline or template, or leave both out"
            )
        if self._reads_on and self.native:
            raise ConfigurationError(
                "reads_on ends a turn with its thought: take the chat format inline or template, or leave reads_on out"
            )
        return await super().areset(seed=seed, options=options)

    def turn_stop(self, stop: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the usual stop strings; with ``reads_on``, also the end of the thought in a turn after a result.

        If only an answer is accepted, it follows the thought in the same turn.
        """
        state = self.state
        answers = state.turns >= self.max_turns or self._forced.is_due(state, state.turns)
        return (*stop, END_OF_THOUGHT) if self._reads_on and not answers and follows_result(state) else stop

    async def astep(self, action: str) -> Step:
        """Acts like `SearchEnv`, and returns the whole context whenever it is replaced.

        The context is replaced if the previous page or the history is longer than what is kept of it.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            Fault: a tool failed; the policy cannot cause this, and the episode stays in its state.
        """
        step = await super().astep(action)
        if not step.observation or not (self._must_shorten() or self._must_cut_history()):
            return step
        return Step(self._context(), *step[1:])

    def _must_shorten(self) -> bool:
        record = self.state.record
        if self._kept_chars is None or len(record) < 2 or not has_read(record[-2]):
            return False
        return short_form(record[-2].page, self._kept_chars) != record[-2].page

    def _must_cut_history(self) -> bool:
        return self._history_chars is not None and self._history_chars < sum(
            len(message.text) for message in self._history()
        )

    def _history(self) -> list[Message]:
        """Returns all turns except the latest page, with earlier pages shortened if only their beginnings are kept."""
        record = self.state.record
        pages = (
            [turn.page for turn in record]
            if self._kept_chars is None
            else short_history(record, self._kept_chars)
        )
        messages: list[Message] = []
        for turn, page in zip(record, pages, strict=True):
            messages += [Message("assistant", turn.action), Message("tool", page)]
        return messages[:-1]

    def _context(self) -> Observation:
        """Returns the opening message, the history or its end, and the latest page."""
        history, head = self._history(), SHORTENED
        if self._history_chars is not None and self._must_cut_history():
            history, head = last_chars(history, self._history_chars), CUT
        opening = Message("user", self.parts.opening(self.state.task))
        return (Message("system", head), opening, *history, Message("tool", self.state.last.page))

    def expert(self) -> Sequence[str]:
        """Searches once per hop and, until its answer was shown, reads the page of its document; then answers.

        A page is read only if a search has shown its address. If no page contains the answer, the answer is empty.
        """
        (twin,) = self.fork()
        actions: list[str] = []
        for hop in self.state.task.data.get("path", ()):
            opening = written_block("access", hop["document"])
            shown = ""
            for action in (written_block("search", hop["query"]), *[opening] * self.access.most_parts):
                if len(actions) == self.max_turns or (action == opening and hop["document"] not in shown):
                    break
                step = twin.step(action)
                actions.append(action)
                page = untagged("".join(message.text for message in step.observation))
                shown += page.partition("\n")[2] if action == opening else page
                if (
                    _contains_ignoring_spaces(shown, hop["answer"])
                    or step.info["tool_results"][0].status is not ToolStatus.OK
                ):
                    break
            if not _contains_ignoring_spaces(shown, hop["answer"]):
                return [*actions, written_block("answer", "")]
        return [*actions, written_block("answer", self.state.task.answers[0])]
