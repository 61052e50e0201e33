"""HybridDeepSearcher's summaries (Ko et al. 2025, arXiv:2508.19113) of the pages that each query finds.

A model that is never trained reads the pages of each query, each cut to the part that is most similar to the query, and the
reasoning of the episode, and summarises what helps. The policy sees the summary instead of the passages.
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
"""Number of characters before and after the most similar sentence of a page."""
LAST_STEPS = 4
"""Number of last reasoning steps that a summary always sees."""
NOTHING = "No helpful information found."
EXTRACTIVE = "extractive"
"""The name of the summariser without a model."""

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
    """Summarises the pages of a query for an episode."""

    async def summary(self, reasoning: str, query: str, passages: Sequence[Passage], seed: int) -> str:
        """Returns the summary on one line.

        Raises:
            EnvFault: the model failed.
        """


def words_of(text: str) -> set[str]:
    """Returns the words of ``text`` in lower case without punctuation; for Chinese and Japanese, the characters."""
    return set(apart(text).lower().translate(_PUNCTUATION).split())


def best_sentence(text: str, query: str) -> str | None:
    """Returns the sentence of ``text`` that is most similar to ``query``; None if no similarity is above .2 (published)."""
    wanted = words_of(query)
    rated = [(dice(words_of(one), wanted), one) for one in _SENTENCE.split(text)]
    value, sentence = max(rated, key=lambda pair: pair[0])
    return sentence if value > _LEAST_LIKENESS else None


def around(text: str, query: str, chars: int = CONTEXT_CHARS) -> str:
    """Returns the `best_sentence` of a page with ``chars`` around it; without one, the first 2 ``chars`` of the page.

    The published code compares with the snippet of a web search. A corpus has no snippets, so the query replaces it.
    """
    sentence = best_sentence(text, query)
    if sentence is None:
        return text[: 2 * chars]
    start = text.index(sentence)
    return text[max(0, start - chars) : start + len(sentence) + chars]


def condensed(text: str, blocks: Sequence[tuple[str, str]]) -> str:
    """Writes ``text`` as numbered steps: the first, the last four and the searches are kept, others become "...".

    A step is a line, or a whole block of queries or results. The published code splits blocks into lines too, so only the
    token at their beginning remains.

    Args:
        text: The text of the policy and of its observations.
        blocks: The beginning and end tokens of queries and of results.
    """
    ends = "|".join(f"{re.escape(begin)}.*?(?:{re.escape(end)}|$)" for begin, end in blocks)
    pieces = re.split(f"(?s)({ends})", text)  # every second piece is a block of queries or results
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
    """Returns the text after the last heading of a reply on one line; `NOTHING` without one."""
    _, heading, said = reply.rpartition(_FINAL)
    return " ".join(said.strip("` \n").split()) or NOTHING if heading else NOTHING


class ExtractiveSummarizer:
    """Returns the best sentence of every page; an addition for runs without a model."""

    async def summary(self, reasoning: str, query: str, passages: Sequence[Passage], seed: int) -> str:
        """Returns the sentences with the titles of their pages."""
        found = [(passage.title, best_sentence(passage.text, query)) for passage in passages]
        return " ".join(f"{title}: {said}" for title, said in found if said) or NOTHING


@dataclass(frozen=True)
class ModelSummarizer:
    """Asks a language model. Published: Qwen3-32B at temperature .7, top-p .8, with 2048 tokens."""

    chat: Chat
    temperature: float = 0.7
    top_p: float = 0.8
    tokens: int = 2048

    async def summary(self, reasoning: str, query: str, passages: Sequence[Passage], seed: int) -> str:
        """Returns the model's summary; `NOTHING` if it refuses the policy's text, or that exceeds its context.

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
    """Makes the summariser that ``spec`` names: ``extractive``, or a model as in `make_chat`.

    Raises:
        UnknownName: there is no such kind of policy.
        ConfigurationError: there is no such address, service or option.
        MissingExtra: a package that it needs is not installed.
    """
    check_reached(spec)
    return ExtractiveSummarizer() if spec == EXTRACTIVE else ModelSummarizer(make_chat(spec))


@dataclass(frozen=True, kw_only=True)
class SummarizedSearch(SearchTool):
    """A `SearchTool` that shows a summary for each query instead of passages."""

    summarizer: Summarizer
    blocks: tuple[tuple[str, str], ...]
    """The beginning and end tokens of queries and of results in the text of an episode."""

    async def body(self, found: Sequence[FoundPassages], state: SearchState, action: str) -> str:
        """Returns one line per query: its index in the turn and its summary.

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
    """Returns the seed of a summary, which depends on the query, the turn and the episode."""
    parts = (state.task.id, state.seed, len(state.record), query)
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:4]) >> 1
