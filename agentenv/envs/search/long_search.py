"""``agentenv/LongSearch-v0``: many turns of searching and of reading whole pages, part by part (ASearcher).

``<search>`` shows documents with their addresses, ``<access>`` the first part of the page at an address and, asked again,
the part after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentenv.core.grammar import Block
from agentenv.core.types import Info, Observation, Passage, ToolResult, ToolStatus
from agentenv.envs.search.local_search import LocalSearch, SearchState
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


class LongSearch(LocalSearch):
    """`LocalSearch` with pages and a long horizon; the published budgets are 128 turns and pages of 25 000 characters."""

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
            **options: Further arguments of `LocalSearch`.

        Raises:
            ConfigurationError: a bound below 1.
        """
        super().__init__(
            max_turns=max_turns, k=k, observation_tokens=observation_tokens, prompt=prompt, **options
        )
        if min(part_chars, parts) < 1:
            raise ConfigurationError(f"part_chars={part_chars} and parts={parts} must be at least 1")
        self.tags = ("search", "access", "answer")
        self._part_chars, self._parts = part_chars, parts
        corpus = getattr(self._retriever, "corpus", None)
        self._pages = Pages(corpus) if isinstance(corpus, Corpus) else None

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """As `LocalSearch`."""
        opening = await super().areset(seed=seed, options=options)
        self.state = LongState(self.state.task, self.state.seed)
        return opening

    async def _act(self, block: Block | None) -> tuple[str, ToolResult]:
        if block and block.tag == "access":
            return self._access(block.content, await self._page(block.content))
        return await super()._act(block)

    def _format(self, passages: list[Passage]) -> str:
        return "".join(f"[Doc {i}]({p.id}): {p.title}. {p.text}\n" for i, p in enumerate(passages, 1))

    def _access(self, address: str, page: str) -> tuple[str, ToolResult]:
        shown = self.state.parts.get(address, 0)
        parts = self._parts_of(address, page)
        if shown >= len(parts):
            why = "There is no page at" if not parts else "Every part was shown of the page at"
            return self._information(f"{why} {address!r}."), ToolResult(
                "access", ToolStatus.ERROR, address, "UnknownPage" if not parts else "EndOfPage"
            )
        self.state.parts[address] = shown + 1
        body = _headed(shown + 1, len(parts), address) + parts[shown]
        return self._information(body), ToolResult("access", ToolStatus.OK, address)

    def _parts_of(self, address: str, page: str) -> list[str]:
        """The page in parts, nothing between them lost, each of which fits where an observation holds head and a word."""
        longest = _headed(self._parts, self._parts, address)
        parts: list[str] = []
        while page and len(parts) < self._parts:
            chunk = page[: self._part_chars]
            part = self._fitting(longest + chunk)[len(longest) :] or chunk
            parts.append(part)
            page = page[len(part) :].lstrip(" ")
        return parts

    async def _page(self, address: str) -> str:
        """The page at an address: from the corpus or its server, where one is searched, else what searches showed."""
        if self._pages is not None:
            return "\n".join(f"{d.title}\n{d.text}" for d in self._pages.by_url(address))
        if isinstance(self._retriever, RemoteRetriever):
            (document,) = await self._retriever.documents(urls=[address])
            return f"{document['title']}\n{document['text']}" if document else ""
        return "\n".join(p.text for p in self.state.found.values() if address in (p.id, p.title))

    def expert(self) -> Sequence[str]:
        """For each hop a search and, while its answer was not shown, the page of its document; then the answer."""
        (twin,) = self.fork()
        actions: list[str] = []
        for hop in self.state.task.data.get("path", ()):
            tried = [
                f"<search>{hop['query']}</search>",
                *[f"<access>{hop['document']}</access>"] * self._parts,
            ]
            for action in tried[: self._max_turns - len(actions)]:
                step = twin.step(action)
                actions.append(action)
                shown = "".join(message.text for message in step.observation)
                if hop["answer"] in shown or step.info["tool_results"][0].status is not ToolStatus.OK:
                    break
        return [*actions, f"<answer>{self.state.task.answers[0]}</answer>"]


def _headed(number: int, total: int, address: str) -> str:
    return f"Part {number} of {total} of {address}:\n"
