"""Common parts of search environments: the parser of tags, the search and read tools, and the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentenv.core.grammar import earliest_block
from agentenv.core.protocols import Retriever
from agentenv.core.types import EndReason, Passage, Query, QueryContext, ToolResult, ToolStatus
from agentenv.envs.search.page_format import PageFormat, format_passages
from agentenv.envs.search.search_state import SearchState, TagCall, ToolReply
from agentenv.retrievers.base import found_by


@dataclass(frozen=True)
class TagParser:
    """Parses an action: its first complete pair of tags counts."""

    tags: tuple[str, ...]
    """The tags to look for."""
    filled: tuple[str, ...] = ("search",)
    """The tags that are ignored if they are empty."""

    def __call__(self, action: str) -> TagCall | None:
        """Parses ``action``; None if it is malformed."""
        block = earliest_block(action, self.tags)
        if block is None or (block.tag in self.filled and not block.content):
            return None
        return TagCall(block.tag, block.content, action, action[block.end :])


class FoundPassages(NamedTuple):
    """The results of one query of a turn."""

    place: int
    """Index of the query in its turn, from 1."""
    query: str
    passages: Sequence[Passage]


@dataclass(frozen=True)
class SearchTool:
    """Searches for every line of its text as a query, all in one batch."""

    retriever: Retriever
    k: int
    """Number of passages per query."""
    format: PageFormat
    queries: int | None = None
    """Largest number of queries per call; further ones are ignored. None is no limit."""
    repeat_notice: bool = False
    """Whether a query that was asked before is answered with a notice instead of passages."""

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Returns the page of results.

        Raises:
            RetrieverFault: the search failed; the policy cannot cause this.
        """
        lines = [line.strip() for line in call.text.splitlines() if line.strip()]
        return await self.search(lines[: self.queries], state, call.action)

    async def rank(self, texts: Sequence[str], state: SearchState) -> list[list[Passage]]:
        """Returns the results of each of ``texts`` without changing the state.

        Raises:
            RetrieverFault: the search failed.
        """
        task = state.task
        context = QueryContext(
            f"{task.id}/{state.seed}", task.question, task.answers, state.turns, task.split, state.seed
        )
        queries = [Query(text, context) for text in texts]
        return await found_by(self.retriever, queries, self.k) if queries else []

    async def search(self, texts: list[str], state: SearchState, action: str = "") -> ToolReply:
        """Returns the page of results for ``texts``, the queries in ``action``.

        Raises:
            RetrieverFault: the search failed.
        """
        new, notice = dict(enumerate(texts, 1)), ""
        if self.repeat_notice:
            new = new_queries(texts, state.queries)
            repeated = (place for place in range(1, len(texts) + 1) if place not in new)
            notice = "".join(
                f"Query {place}(repeated): It was searched before; look at its results above.\n"
                for place in repeated
            )
        texts = [*new.values()]
        rankings = await self.rank(texts, state)
        found = [FoundPassages(*asked, ranking) for asked, ranking in zip(new.items(), rankings, strict=True)]
        body = notice + await self.body(found, state, action)
        ids = [[passage.id for passage in ranking] for ranking in rankings]
        passages = list({passage.id: passage for ranking in rankings for passage in ranking}.values())
        state.retrieved += ids
        state.queries += texts
        state.add_passages(passages)
        result = ToolResult("search", ToolStatus.OK, "\n".join(texts), data={"ids": ids})
        return ToolReply(self.format.page(body), result)

    async def body(self, found: Sequence[FoundPassages], state: SearchState, action: str) -> str:
        """Returns the body of the page: all passages found, without duplicates.

        It repeats no query, and adds no isolated numbers. A page that contains an accepted answer may be rewarded, so a text
        of the policy on a page could contain its guesses.
        """
        passages = {passage.id: passage for one in found for passage in one.passages}
        return self.format.passages(list(passages.values()))


def new_queries(texts: Sequence[str], before: Sequence[str]) -> dict[int, str]:
    """Returns the queries, by their index from 1, that were asked neither before nor earlier in ``texts``.

    Case and spaces are ignored.
    """
    known = {_plain(query) for query in before}
    new: dict[int, str] = {}
    for place, text in enumerate(texts, 1):
        if _plain(text) not in known:
            new[place] = text
        known.add(_plain(text))
    return new


def _plain(query: str) -> str:
    return " ".join(query.lower().split())


@dataclass(frozen=True)
class ReadTool:
    """Shows the passages found before under a title in full; of a document in parts, each part that was found."""

    format: PageFormat

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Returns the passages with the title in the call."""
        title = call.text
        passages = state.titled(title)
        if not passages:
            page = self.format.page(f"No document titled {title!r} was found so far.")
            return ToolReply(page, ToolResult("read", ToolStatus.ERROR, title, "UnknownTitle"))
        ids = [[passage.id for passage in passages]]
        result = ToolResult("read", ToolStatus.OK, title, data={"ids": ids})
        return ToolReply(self.format.page(format_passages(passages)), result)


async def submit_answer(call: TagCall, state: SearchState) -> ToolReply:
    """Ends the episode with the text of the call as the answer."""
    return answered(call.text, state)


def answered(answer: str, state: SearchState) -> ToolReply:
    """Ends the episode with ``answer``."""
    state.answer = answer
    return ToolReply(end=EndReason.ANSWERED, info={"answer": answer})
