"""HybridDeepSearcher's summaries (Ko et al. 2025, arXiv:2508.19113): what the pages of a query say for the reasoning so far.

A model that is never trained reads the pages of each query, each cut to the part that fits the query best, and the reasoning
of the episode, and writes what helps. The policy is shown that in place of the passages.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.scoring.likeness import dice
from agentenv.core.scoring.normalize import apart
from agentenv.core.types import Passage
from agentenv.envs.search.search_state import SearchState
from agentenv.envs.search.search_tools import FoundPassages, SearchTool
from agentenv.errors import ContextTooSmall, EndpointRefusal, EnvFault, Fault
from agentenv.policies.endpoint import Chat
from agentenv.policies.model_chat import make_chat
from agentenv.policies.policy_spec import check_reached

CONTEXT_CHARS = 1024
"""Characters of a page before and behind the sentence that fits best."""
LAST_STEPS = 4
"""Steps of reasoning at the end that a summary always sees."""
NOTHING = "No helpful information found."
EXTRACTIVE = "extractive"
"""The summariser that needs no model."""

_FINAL = "**Final Information**"
_LEAST_LIKENESS = 0.2
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

PROMPT = """\
You read web pages for somebody who reasons about a question and has searched for a part of it. Find what the pages say \
that answers the search query and takes the reasoning further. Keep to what stands on the pages.
Write {final} on a line of its own and what helps behind it, or, where nothing on the pages helps: {nothing}

Reasoning so far:
{reasoning}

Search query: {query}

Web pages:
{pages}
"""


class Summarizer(Protocol):
    """Says what the pages of a query hold for an episode."""

    async def summary(self, reasoning: str, query: str, passages: Sequence[Passage], seed: int) -> str:
        """The summary, in one line.

        Raises:
            EnvFault: the model failed.
        """


def words_of(text: str) -> set[str]:
    """The words of ``text`` in lower case, without punctuation; of Chinese and Japanese the characters."""
    return set(apart(text).lower().translate(_PUNCTUATION).split())


def best_sentence(text: str, query: str) -> str | None:
    """The sentence of ``text`` most like ``query``, the first of equals; None where none is above .2 (as published)."""
    wanted = words_of(query)
    rated = [(dice(words_of(one), wanted), one) for one in _SENTENCE.split(text)]
    value, sentence = max(rated, key=lambda pair: pair[0])
    return sentence if value > _LEAST_LIKENESS else None


def around(text: str, query: str, chars: int = CONTEXT_CHARS) -> str:
    """The `best_sentence` of a page with ``chars`` before and behind it; without one, the first 2 ``chars`` of the page.

    Published code compares with the snippet of a web search; a search of a corpus has none, and the query takes its place.
    """
    sentence = best_sentence(text, query)
    if sentence is None:
        return text[: 2 * chars]
    start = text.index(sentence)
    return text[max(0, start - chars) : start + len(sentence) + chars]


def condensed(text: str, blocks: Sequence[tuple[str, str]]) -> str:
    """``text`` as numbered steps, of which the first, the last four and the searches stay; others become "...".

    A step is a line, or a whole block of queries or results: published code takes such a block line by line as well, so
    that only the token at its beginning stays.

    Args:
        text: What the policy wrote and was shown.
        blocks: What begins and what ends queries, and results.
    """
    ends = "|".join(f"{re.escape(begin)}.*?(?:{re.escape(end)}|$)" for begin, end in blocks)
    pieces = re.split(f"(?s)({ends})", text)  # every second piece is a block
    found = [
        (part, bool(place % 2))
        for place, piece in enumerate(pieces)
        for part in ([piece] if place % 2 else piece.split("\n"))
        if part.strip()
    ]
    kept: list[str] = []
    for place, (part, searches) in enumerate(found):
        if searches or place == 0 or place >= len(found) - LAST_STEPS:
            kept.append(f"Step {place + 1}: {part.strip()}")
        elif kept[-1] != "...":
            kept.append("...")
    return "\n\n".join(kept)


def final_information(reply: str) -> str:
    """What stands behind the last heading of a reply, in one line; `NOTHING` where there is none."""
    _, heading, said = reply.rpartition(_FINAL)
    return " ".join(said.strip("` \n").split()) or NOTHING if heading else NOTHING


class ExtractiveSummarizer:
    """Takes the best sentence of every page, and needs no model (of this project, for runs without one)."""

    async def summary(self, reasoning: str, query: str, passages: Sequence[Passage], seed: int) -> str:
        """The sentences with the titles of their pages."""
        found = [(passage.title, best_sentence(passage.text, query)) for passage in passages]
        return " ".join(f"{title}: {said}" for title, said in found if said) or NOTHING


@dataclass(frozen=True)
class ModelSummarizer:
    """Asks a language model; published: Qwen3-32B at temperature .7, top-p .8, with 2048 tokens."""

    chat: Chat
    temperature: float = 0.7
    top_p: float = 0.8
    tokens: int = 2048

    async def summary(self, reasoning: str, query: str, passages: Sequence[Passage], seed: int) -> str:
        """What the model writes; `NOTHING` where it refuses what the policy has written, or that does not fit its context.

        Raises:
            EnvFault: the model failed.
        """
        pages = "\n".join(
            f"**Web Page {i}:** {p.title}\n{around(p.text, query)}" for i, p in enumerate(passages, 1)
        )
        asked = PROMPT.format(final=_FINAL, nothing=NOTHING, reasoning=reasoning, query=query, pages=pages)
        try:
            reply = await self.chat.complete(
                [{"role": "user", "content": asked}],
                max_tokens=self.tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                seed=seed,
            )
        except (ContextTooSmall, EndpointRefusal):
            return NOTHING
        except Fault as error:
            raise EnvFault(f"the summariser: {error}") from error
        return final_information(reply.text)


def make_summarizer(spec: str) -> Summarizer:
    """The summariser that ``spec`` names: ``extractive``, or a model as `make_chat` takes it.

    Raises:
        UnknownName: no such kind of policy.
        ConfigurationError: no such address, service or option.
        MissingExtra: what it needs is not installed.
    """
    check_reached(spec)
    return ExtractiveSummarizer() if spec == EXTRACTIVE else ModelSummarizer(make_chat(spec))


@dataclass(frozen=True, kw_only=True)
class SummarizedSearch(SearchTool):
    """`SearchTool` that shows a summary for each query in place of passages."""

    summarizer: Summarizer
    blocks: tuple[tuple[str, str], ...]
    """What begins and what ends queries, and results, in the text of an episode."""

    async def body(self, found: Sequence[FoundPassages], state: SearchState, action: str) -> str:
        """One line a query: its place in the turn and what its pages say.

        Raises:
            EnvFault: the summariser failed.
        """
        written = "".join(turn.action + turn.page for turn in state.record) + action
        reasoning = condensed(written, self.blocks)
        summaries = await gather_all(
            self.summarizer.summary(reasoning, one.query, one.passages, _seed_of(state, one.query))
            for one in found
        )
        return "".join(
            f"Query {one.place}(summary): {said}\n" for one, said in zip(found, summaries, strict=True)
        )


def _seed_of(state: SearchState, query: str) -> int:
    """The same for the same query of the same turn of an episode."""
    parts = (state.task.id, state.seed, len(state.record), query)
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:4]) >> 1
