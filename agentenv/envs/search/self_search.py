"""``agentenv/SelfSearch-v0``: the policy acts as its own search engine (SSRL, Fan et al. 2025), optionally with real search.

After a query the environment returns nothing, and the policy continues with an ``<information>`` block of its own, as in an
uninterrupted generation; or a real search writes that block. The option ``real`` decides between these. Use the inline
format, because a chat template would put an end of turn in between.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan, log2
from typing import Any, Literal, get_args

from agentenv.core.grammar import Block, written_block
from agentenv.core.scoring.scorers import Scorer
from agentenv.core.types import ToolResult, ToolStatus
from agentenv.envs.search.outcomes import score_of
from agentenv.envs.search.page_format import LAYOUTS, QuestionPrompt, information
from agentenv.envs.search.search_env import SearchEnv, SearchParts
from agentenv.envs.search.search_state import SearchState, TagCall, ToolReply
from agentenv.envs.search.search_tools import SearchTool, TagParser
from agentenv.errors import ConfigurationError, check_known
from agentenv.retrievers.prefixes import PrefixRetriever

Real = Literal["never", "first", "entropy", "always"]

PROMPT = """\
Answer the question below from what you know, as if you searched for it.
First think between <think> and </think>. When a fact is needed, write a query of one line between <search> and </search> \
and then, as a search engine would, what is known about it between <information> and </information>; think again after it. \
Repeat this as often as you need.
When you know the answer, write it between <answer> and </answer>, short and without explanation, \
as in <answer> Beijing </answer>.
Question: {question}
"""

TAGS = ("think", "search", "information", "answer")
_TAG = re.compile(r"<(/?)([^\s<>][^<>]*|\s*[^\s<>]+\s*)>")
"""Matches anything between angle brackets except comparisons: text between a distant < and > is not a tag."""
_PLACEHOLDERS = ("your query", "your thoughts", "your answer", "your information")
_MOST_THOUGHTS = 8
_EARLIEST, _ANSWER = TagParser(("search", "answer")), TagParser(("answer",))


def format_reward(text: str) -> float:
    """SSRL's format reward in closed form: 0 for a malformed text, else min(n_think / 2, 1) rho.

    rho is 1 if every search is followed by a thought (n_think = n_search + 1), and otherwise the smaller of the two numbers
    divided by the larger. A text is malformed if it has any other tag, unbalanced or empty blocks, placeholder words of the
    prompt, a query with several lines, a search without information right after it or the reverse, or more than 8 thoughts,
    or if it does not begin with a thought and end with an answer.

    Args:
        text: The whole text of the policy and of the observations in between.
    """
    blocks = _blocks(text)
    if not blocks:
        return 0.0
    names = [block.tag for block in blocks]
    pairs = zip(names, [*names[1:], ""], strict=True)
    malformed = (
        names[0] != "think"
        or names[-1] != "answer"
        or any(not block.content for block in blocks)
        or any(block.tag == "search" and "\n" in block.content for block in blocks)
        or any(words in text.lower() for words in _PLACEHOLDERS)
        or any(name == "search" and after != "information" for name, after in pairs)
        or names.count("search") != names.count("information")
        or names.count("think") > _MOST_THOUGHTS
    )
    if malformed:
        return 0.0
    thoughts, wanted = names.count("think"), names.count("search") + 1
    return min(0.5 * thoughts, 1.0) * min(thoughts, wanted) / max(thoughts, wanted)


def _blocks(text: str) -> list[Block]:
    """Returns the blocks of ``text`` in order; empty if tags are unknown, nested or open, or text is outside of them."""
    text = text.strip()
    tags = list(_TAG.finditer(text))
    openings, closings = tags[::2], tags[1::2]
    alternate = len(openings) == len(closings) and all(
        not a[1] and b[1] and a[2] == b[2] and a[2] in TAGS for a, b in zip(openings, closings, strict=True)
    )
    if not tags or not alternate or tags[0].start() > 0 or tags[-1].end() < len(text):
        return []
    return [
        Block(a[2], text[a.end() : b.start()].strip(), b.end())
        for a, b in zip(openings, closings, strict=True)
    ]


@dataclass
class SelfSearchState(SearchState):
    """All that changes within an episode."""

    entropies: list[float] = field(default_factory=list)
    """The entropy of each query, if it is provided."""

    @property
    def text(self) -> str:
        """The policy's text so far, with a dot in place of the results of each real search.

        The format is the policy's responsibility, but pages of a corpus may be empty, or contain tags and "your answer".
        """
        return "".join(turn.action + (information(".") if turn.page else "") for turn in self.record)


@dataclass(frozen=True)
class SelfSearchTool:
    """Returns nothing, so that the policy continues from its own knowledge; or makes a real search."""

    search: SearchTool
    real: Real
    first: int = 1
    """Number of first searches that are real in the modes ``first`` and ``entropy`` (K in SSRL)."""

    async def __call__(self, call: TagCall, state: SelfSearchState) -> ToolReply:
        """Returns nothing, or the page of a real search for the query as one line.

        Raises:
            RetrieverFault: a real search failed.
            ConfigurationError: real search depends on entropies, which are not provided.
        """
        if self.is_real(state.turns, state.entropies):
            return await self.search.search([" ".join(call.text.split())], state)
        return ToolReply(result=ToolResult("self_search", ToolStatus.OK, call.text))

    def is_real(self, searches: int, entropies: Sequence[float]) -> bool:
        """Whether the search after ``searches`` others is a real one.

        Raises:
            ConfigurationError: it depends on entropies, which are not provided or which the policy does not have.
        """
        if self.real != "entropy" or searches < self.first:
            return self.real != "never" and (self.real == "always" or searches < self.first)
        if len(entropies) <= searches:
            raise ConfigurationError(
                "real='entropy' needs to be told the entropy of each query: use the strategy 'self_search'"
            )
        if isnan(entropies[searches]):
            raise ConfigurationError(
                "real='entropy' needs the log-probs of the policy's queries, which this policy does not give: take a "
                "model that runs here (hf:PATH or vllm:PATH), or another mode of real"
            )
        return entropies[searches] > entropies[searches - 1]


def self_search_reward(state: SelfSearchState, *, scorer: Scorer) -> dict[str, float]:
    """SSRL: at the end, 0.9 of the score and 0.1 of the format."""
    if state.last.end is None:
        return {}
    return {"answer": 0.9 * score_of(state, scorer), "format": 0.1 * format_reward(state.text)}


def answer_first(action: str) -> TagCall | None:
    """Parses an action of the last turn: an answer counts even after a query, as in SSRL's program."""
    return _ANSWER(action) or _EARLIEST(action)


class SelfSearch(SearchEnv):
    """Thoughts, queries and self-written information, then an answer; the reward is 0.9 score and 0.1 format."""

    call_markers = ("<search>",)
    stop = ("</search>", "</answer>")
    state: SelfSearchState

    def __init__(
        self,
        *,
        real: Real = "never",
        first: int = 1,
        prefix: bool = False,
        layout: str = "documents",
        max_turns: int = 8,
        prompt: str = PROMPT,
        **options: Any,
    ) -> None:
        """Makes an environment.

        Args:
            real: Which searches are real: none, the first ones, those whose query is less certain than the previous one, or
                all. With the third (SSRL's entropy-guided search), the first search is always real, and the strategy
                ``self_search`` provides the entropies.
            first: Number of first searches that are real with ``first`` and ``entropy``: SSRL's K of 1, 2 or 3.
            prefix: Whether a real search shows a random prefix of its results, at least one passage, as SSRL's sim-to-real
                searches do. The draw depends on the question, the seed and the turn.
            layout: How a real search writes its results: as ``documents``, or as a model writes its own information in the
                sim-to-real searches: ``numbered`` lines (Llama), one ``paragraph`` (Qwen 3B) or ``bullets`` (Qwen 7B).
            max_turns: Number of searches of an episode.
            prompt: The opening message. It must contain ``{question}``.
            **options: Further arguments of `SearchEnv`. Its retriever makes the real searches.

        Raises:
            UnknownName: there is no such mode or layout.
            ConfigurationError: ``first`` is below 1.
        """
        check_known("layout of search results", layout, LAYOUTS)
        check_known("mode of real search", real, get_args(Real))
        super().__init__(max_turns=max_turns, **options)
        if first < 1:
            raise ConfigurationError(f"first={first} must be at least 1; to search nothing, set real='never'")
        self.search = replace(self.search, format=replace(self.search.format, write=LAYOUTS[layout]))
        if prefix:
            self.search = replace(self.search, retriever=PrefixRetriever(self.search.retriever))
        self.tool = SelfSearchTool(self.search, real, first)
        self.parts = SearchParts(
            opening=QuestionPrompt(prompt),
            parser=_EARLIEST,
            last_parser=answer_first,
            tools={"search": self.tool},
            reward=partial(self_search_reward, scorer=self.scorer),
            correction=None,
            state=SelfSearchState,
        )

    def turn_stop(self, stop: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the usual stop strings; in the last turn a query does not end the turn, because an answer may follow."""
        is_last = self.state.turns >= self.max_turns
        return tuple(one for one in stop if one != "</search>") if is_last else stop

    def tell_entropy(self, entropy: float) -> None:
        """Provides the uncertainty of the query in the next action; see `query_entropy`."""
        self.state.entropies.append(entropy)

    def expert(self) -> Sequence[str] | None:
        """Thinks, searches and writes the result for every hop, if the task has its path; then answers."""
        if self.tool.real == "entropy":
            return None
        task, actions, known = self.state.task, [], ""
        for number, hop in enumerate(task.data.get("path", ())[: self.max_turns]):
            actions.append(f"{known}<think>What comes next?</think>" + written_block("search", hop["query"]))
            real = self.tool.real == "always" or (self.tool.real == "first" and number < self.tool.first)
            known = "" if real else written_block("information", f"{hop['query']}: {hop['answer']}")
        return (*actions, f"{known}<think>I know it.</think>" + written_block("answer", task.answers[0]))


def query_entropy(probabilities: Sequence[float]) -> float:
    """SSRL's measure of a query's uncertainty in bits: the mean of -p log2 p over its tokens; 0 without tokens.

    Args:
        probabilities: The probability of each token when it was sampled.
    """
    return sum(-p * log2(p) for p in probabilities if p != 0) / max(1, len(probabilities))
