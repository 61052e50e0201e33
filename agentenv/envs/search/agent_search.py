"""``agentenv/AgentSearch-v0``: an agent that HierSearch's planner asks; it searches with the tools that it is given.

``chunk_search``, ``graph_search`` and ``get_adjacent_passages`` use the local corpus. ``web_search`` and ``browse_url`` use
another corpus that represents the web. Each kind of agent is trained here before the planner.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentenv.core.grammar import written_block
from agentenv.core.protocols import Retriever
from agentenv.core.types import Passage, Task, ToolResult, ToolStatus
from agentenv.envs.search.fact_graph import FactGraph, fact_graph
from agentenv.envs.search.hierarchical_rewards import HierarchicalState, hierarchical_parts
from agentenv.envs.search.page_format import PageFormat, QuestionPrompt
from agentenv.envs.search.page_graph import PageGraph, page_graph
from agentenv.envs.search.search_env import SearchEnv, on_small_world, thinking
from agentenv.envs.search.search_state import SearchState, TagCall, ToolFunction, ToolReply
from agentenv.envs.search.search_tools import SearchTool
from agentenv.envs.search.synonyms import SIMILARITY
from agentenv.errors import ConfigurationError, check_known
from agentenv.retrievers.rerank import Reranker, make_reranker
from agentenv.retrievers.retriever_spec import shared_retriever
from agentenv.retrievers.storage.corpus import Corpus

LOCAL_TOOLS = ("chunk_search", "graph_search", "get_adjacent_passages")
WEB_TOOLS = ("web_search", "browse_url")
TOOLS = {
    "chunk_search": "a query between <chunk_search> and </chunk_search> finds passages of our documents",
    "graph_search": "a query between <graph_search> and </graph_search> finds pages that are linked with what it finds",
    "get_adjacent_passages": "a title between <get_adjacent_passages> and </get_adjacent_passages> shows its page and the "
    "pages that are linked with it",
    "web_search": "a query between <web_search> and </web_search> finds the beginnings of pages of the web",
    "browse_url": "a title and a question, as in <browse_url>title | question</browse_url>, show a page of the web",
}
PROMPT = """\
Find the answer to the question below. First think between <think> and </think>. You have these tools; what they find comes \
back between <information> and </information>: {tools}.
When you know the answer, write it between <answer> and </answer>, short and without explanation, \
as in <answer> Beijing </answer>.
Question: {question}
"""
PASSAGES = 10
"""Number of passages per query that HierSearch's agents see."""
OBSERVATION_TOKENS = 1500
"""Enough for ten passages of 100 words."""
_SNIPPET_WORDS = 40
_SEPARATORS = "|\uff5c,\uff0c"


@dataclass(frozen=True)
class GraphSearch:
    """Finds pages that are linked with those that a search finds."""

    search: SearchTool
    graph: PageGraph

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Returns the page of results.

        Raises:
            RetrieverFault: the search failed.
        """
        (ranking,) = await self.search.rank([call.text], state)
        seeds: dict[str, float] = {}
        for place, passage in enumerate(ranking, 1):
            seeds[passage.title] = seeds.get(passage.title, 0.0) + 1 / place
        return passages_reply(call, state, self.search.format, self.graph.rank(seeds, self.search.k))


@dataclass(frozen=True)
class FactSearch:
    """Finds passages by the facts that match a query, and by what these facts are linked with (HippoRAG)."""

    search: SearchTool
    graph: FactGraph
    judge: Reranker

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Returns the page of results.

        Raises:
            RetrieverFault: the search failed.
        """
        (ranking,) = await self.search.rank([call.text], state)
        rank = partial(self.graph.rank, call.text, ranking, self.search.k, self.judge)
        return passages_reply(call, state, self.search.format, await asyncio.to_thread(rank))


@dataclass(frozen=True)
class AdjacentPassages:
    """Shows a page and those that are linked with it."""

    format: PageFormat
    graph: PageGraph | FactGraph
    k: int

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Returns the passages next to the title in the call."""
        near = self.graph.near(call.text)
        if not near:
            page = self.format.page(f"No page is titled {call.text!r}.")
            return ToolReply(page, ToolResult(call.tag, ToolStatus.ERROR, call.text, "UnknownTitle"))
        found = [Passage(d.id, d.title, d.text, 1 / place) for place, d in enumerate(near, 1)]
        return passages_reply(call, state, self.format, found[: self.k + 1])


@dataclass(frozen=True)
class BrowseTool:
    """Shows the whole text of a page that a search found, by its title or id; a question may follow after a bar."""

    format: PageFormat

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Returns the page that the call names."""
        for address in addresses_in(call.text):
            known = state.titled(address) or [state.by_id[one] for one in (address,) if one in state.by_id]
            if known:
                return passages_reply(call, state, self.format, known)
        page = self.format.page(f"No search has found a page {call.text!r}.")
        return ToolReply(page, ToolResult(call.tag, ToolStatus.ERROR, call.text, "UnknownPage"))


def addresses_in(text: str) -> list[str]:
    """Returns the possible addresses in ``text``, longest first: all of it, and the part before each separator.

    Titles may contain commas, and questions any separator, so only the found pages decide where the address ends.
    """
    ends = [len(text), *(end for end in range(len(text) - 1, -1, -1) if text[end] in _SEPARATORS)]
    return [text[:end].strip() for end in ends]


def passages_reply(
    call: TagCall, state: SearchState, format: PageFormat, found: Sequence[Passage]
) -> ToolReply:
    """Makes the reply with ``found``, which is also recorded in the state."""
    ids = [[passage.id for passage in found]]
    state.retrieved += ids
    state.add_passages(found)
    result = ToolResult(call.tag, ToolStatus.OK, call.text, data={"ids": ids})
    return ToolReply(format.page(format.passages(found)), result)


@dataclass(frozen=True)
class CountedTool:
    """A tool whose calls are recorded in the state."""

    tool: ToolFunction

    async def __call__(self, call: TagCall, state: HierarchicalState) -> ToolReply:
        """Returns the tool's reply.

        Raises:
            RetrieverFault: its search failed.
        """
        reply = await self.tool(call, state)
        state.calls.append(call.tag)
        return reply


class AgentSearch(SearchEnv):
    """Searches with the tools of a HierSearch agent; the reward is token F1, or a small one for trying all tools."""

    call_markers = tuple(f"<{tool}>" for tool in TOOLS)
    stop = (*(f"</{tool}>" for tool in TOOLS), "</answer>")
    scorers = (*SearchEnv.scorers, "f1_squad_guard")
    reward_options = SearchEnv.reward_options | {"local_first"}
    no_expert = "what has to be searched depends on the tools"
    state: HierarchicalState

    def __init__(
        self,
        *,
        tools: Sequence[str] = LOCAL_TOOLS,
        web: Retriever | str | None = None,
        facts: str = "",
        fact_judge: Reranker | str = "overlap",
        synonyms: str = "",
        synonym_similarity: float = SIMILARITY,
        local_first: bool = False,
        k: int = PASSAGES,
        max_turns: int = 8,
        observation_tokens: int = OBSERVATION_TOKENS,
        scorer: str = "f1_squad_guard",
        frame: str = "information",
        prompt: str = PROMPT,
        tasks: Sequence[Task] | None = None,
        retriever: Retriever | str | None = None,
        **options: Any,
    ) -> None:
        """Makes an environment.

        Args:
            tools: The tools of the policy: by default the local ones; ``["web_search", "browse_url"]`` for a web agent.
            web: The retriever of the web tools, or its spec; None uses that of the other tools.
            facts: What the graph tools search: a file of `agentenv retriever facts` (as in HierSearch), ``titles`` for facts
                that a rule derives from titles, or empty for the links between pages.
            fact_judge: Scores facts against a query: ``overlap``, ``encoder:SPEC``, or a folder with a cross-encoder.
            synonyms: The encoder of the names in facts, such as ``minilm`` or ``bge:PATH``. Names with similar vectors are
                linked as synonyms. Empty links none.
            synonym_similarity: The cosine from which on two names are synonyms, within (0, 1].
            local_first: Whether an answer with a score is charged the `local_first_penalty` for an early call of a web tool.
            k: Number of passages per query.
            max_turns: Number of turns before the last one, in which only an answer counts.
            observation_tokens: Largest size of one observation. Its body is cut such that both tags remain.
            scorer: The name of the scorer of answers.
            frame: The tags around a page: ``information`` or, as published, ``result``. The prompt names them.
            prompt: The opening message. It must contain ``{question}``, and may contain ``{tools}``.
            tasks: Questions with answers; None uses those of a small FictionalWorld.
            retriever: The retriever of the local tools, or its spec. Graph tools need its corpus in this process.
            **options: Further arguments of `SearchEnv`.

        Raises:
            ConfigurationError: there are no tools, a graph is requested over a remote corpus, synonyms are requested without
                facts, or ``local_first`` without tools of both kinds.
            DatasetError: the facts cannot be read, or belong to another corpus.
            UnknownName: there is no such tool, encoder or frame.
        """
        tasks, retriever = on_small_world(tasks, retriever)
        bounds: dict[str, Any] = {"k": k, "max_turns": max_turns, "observation_tokens": observation_tokens}
        super().__init__(tasks=tasks, retriever=retriever, scorer=scorer, **bounds, **options)
        self.search = replace(self.search, format=self.search.format.framed(frame))
        _check_tools(tools, local_first)
        _check_synonyms(synonyms, facts, synonym_similarity)
        made = shared_retriever(web) if isinstance(web, str) else web
        self._facts = facts
        self._synonyms = (synonyms, synonym_similarity)
        self._judge = make_reranker(fact_judge) if isinstance(fact_judge, str) else fact_judge
        self._make_parts(tools, made, prompt.replace("information>", f"{frame}>"), local_first)

    def _make_parts(
        self, tools: Sequence[str], web: Retriever | None, prompt: str, local_first: bool
    ) -> None:
        """Makes the parts of an environment with ``tools``."""
        opening = prompt.replace("{tools}", "; ".join(TOOLS[name] for name in tools))
        late = WEB_TOOLS if local_first else ()
        counted = {name: CountedTool(tool) for name, tool in self._tools(web).items() if name in tools}
        self.parts = hierarchical_parts(self, QuestionPrompt(opening), counted, tuple(tools), late)
        if missing := [name for name in tools if name not in self.parts.tools]:
            raise ConfigurationError(
                f"{missing[0]} needs the corpus of its retriever in this process, and {self.search.retriever.info().name} "
                "keeps it elsewhere: leave the tool out"
            )

    def _tools(self, web: Retriever | None) -> dict[str, ToolFunction]:
        """Makes every tool that the corpora support."""
        search = self.search
        far = replace(
            search, retriever=web or search.retriever, format=replace(search.format, words=_SNIPPET_WORDS)
        )
        tools: dict[str, ToolFunction] = {
            "chunk_search": search,
            "web_search": far,
            "browse_url": BrowseTool(search.format),
        }
        corpus = getattr(search.retriever, "corpus", None)
        if isinstance(corpus, Corpus) and self._facts:
            facts = fact_graph(corpus, self._facts, *self._synonyms)
            tools["graph_search"] = FactSearch(search, facts, self._judge)
            tools["get_adjacent_passages"] = AdjacentPassages(search.format, facts, search.k)
        elif isinstance(corpus, Corpus):
            graph = page_graph(corpus)
            tools["graph_search"] = GraphSearch(search, graph)
            tools["get_adjacent_passages"] = AdjacentPassages(search.format, graph, search.k)
        return tools

    def expert(self) -> Sequence[str] | None:
        """Thinks, and searches for every hop with the first tool, if the task has its path; then answers."""
        task, tool = self.state.task, next(iter(self.parts.tools))
        path = task.data.get("path", ())
        if tool not in ("chunk_search", "web_search"):
            return None
        searches = [thinking("I have to look this up.", written_block(tool, hop["query"])) for hop in path]
        return (
            *searches[: self.max_turns],
            thinking("I know it now.", written_block("answer", task.answers[0])),
        )


def _check_tools(tools: Sequence[str], local_first: bool) -> None:
    if not tools:
        raise ConfigurationError("an agent needs tools, not []")
    for name in tools:
        check_known("tool", name, TOOLS)
    if local_first and not (set(tools) & set(LOCAL_TOOLS) and set(tools) & set(WEB_TOOLS)):
        raise ConfigurationError(
            f"local_first compares calls of local tools and of web tools, and tools={list(tools)} are of one kind alone"
        )


def _check_synonyms(encoder: str, facts: str, similarity: float) -> None:
    if (encoder and not facts) or not 0 < similarity <= 1:
        raise ConfigurationError(
            f"synonyms={encoder!r} needs facts, not {facts!r}, and a synonym_similarity in (0, 1], not {similarity}"
        )
