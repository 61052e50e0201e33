"""``agentenv/LongSearch-v0``: many turns of searching and of reading whole pages, part by part (ASearcher).

``<search>`` shows documents with their addresses, ``<access>`` the first part of the page at an address and, asked again,
the part after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentenv.core.protocols import Retriever
from agentenv.core.types import ToolResult, ToolStatus
from agentenv.envs.search.native_tools import NativeActions
from agentenv.envs.search.page_format import PageFormat, QuestionPrompt, format_addresses
from agentenv.envs.search.search_env import SearchEnv, SearchParts
from agentenv.envs.search.search_state import SearchState, ToolCall, ToolReply
from agentenv.envs.search.search_tools import TagParser
from agentenv.errors import ConfigurationError
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


@dataclass
class LongState(SearchState):
    """All that changes within an episode."""

    parts: dict[str, int] = field(default_factory=dict)
    """How many parts of each page were shown."""


@dataclass(frozen=True)
class AccessTool:
    """Shows the page at an address part by part: from the corpus or its server, else what searches have shown."""

    retriever: Retriever
    format: PageFormat
    part_chars: int
    """Most characters of a part."""
    most_parts: int
    """Most parts of a page."""
    pages: Pages | None
    """The pages of the corpus, where it is in this process."""

    async def __call__(self, call: ToolCall, state: LongState) -> ToolReply:
        """The next part of the page at the address that is asked for.

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
        body = _headed(shown + 1, len(parts), address) + parts[shown]
        return ToolReply(self.format.page(body), ToolResult("access", ToolStatus.OK, address))

    def parts_of(self, address: str, page: str) -> list[str]:
        """The page in parts, nothing between them lost, each of which fits where an observation holds head and a word."""
        longest = _headed(self.most_parts, self.most_parts, address)
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
        return "\n".join(p.text for p in state.found.values() if address in (p.id, p.title))


def _headed(number: int, total: int, address: str) -> str:
    return f"Part {number} of {total} of {address}:\n"


class LongSearch(SearchEnv):
    """Searching with pages and a long horizon; the published budgets are 128 turns and pages of 25 000 characters."""

    call_markers = ("<search>", "<access>")
    stop = ("</search>", "</access>", "</answer>")
    state: LongState

    def __init__(
        self,
        *,
        max_turns: int = 128,
        k: int = 5,
        part_chars: int = 25_000,
        parts: int = 10,
        observation_tokens: int = 8192,
        prompt: str = PROMPT,
        **options: Any,
    ) -> None:
        """Builds an environment.

        Args:
            max_turns: Turns before the last one, in which only an answer counts.
            k: Documents a query.
            part_chars: Most characters of a page that one turn shows; fewer where an observation holds fewer.
            parts: Most parts of a page; what comes after them is never shown.
            observation_tokens: Bound of one observation.
            prompt: Opening message; must hold ``{question}``.
            **options: Further arguments of `SearchEnv`.

        Raises:
            ConfigurationError: a bound below 1.
        """
        super().__init__(max_turns=max_turns, k=k, observation_tokens=observation_tokens, **options)
        if min(part_chars, parts) < 1:
            raise ConfigurationError(f"part_chars={part_chars} and parts={parts} must be at least 1")
        retriever, page_format = self.search.retriever, replace(self.search.format, write=format_addresses)
        corpus = getattr(retriever, "corpus", None)
        pages = Pages(corpus) if isinstance(corpus, Corpus) else None
        self.search = replace(self.search, format=page_format)
        self.access = AccessTool(retriever, page_format, part_chars, parts, pages)
        self.parts = SearchParts(
            opening=QuestionPrompt(prompt),
            parser=TagParser(("search", "access", "answer")),
            tools={"search": self.search, "access": self.access},
            reward=self.answer_reward,
            state=LongState,
            native=NativeActions.of(("search", "access", "answer"), prompt, PROMPT),
        )

    def expert(self) -> Sequence[str]:
        """For each hop a search and, while its answer was not shown, the page of its document; then the answer."""
        (twin,) = self.fork()
        actions: list[str] = []
        for hop in self.state.task.data.get("path", ()):
            tried = [
                f"<search>{hop['query']}</search>",
                *[f"<access>{hop['document']}</access>"] * self.access.most_parts,
            ]
            for action in tried[: self.max_turns - len(actions)]:
                step = twin.step(action)
                actions.append(action)
                shown = "".join(message.text for message in step.observation)
                if hop["answer"] in shown or step.info["tool_results"][0].status is not ToolStatus.OK:
                    break
        return [*actions, f"<answer>{self.state.task.answers[0]}</answer>"]
