"""``simulated:SPEC``: a language model in the role of the search engine, useful or noisy (ZeroSearch, Sun et al. 2025).

Question and gold answer come with each query in its context, so that no episode can receive those of another. Gold answers
are passed only for questions of the training split; any other question is refused before a model is asked.
"""

import copy
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, ValidationError

from agentenv.core.types import Passage, Query, QueryContext, RetrieverInfo
from agentenv.core.validation import Frozen
from agentenv.errors import ConfigurationError, Fault, RetrieverFault
from agentenv.policies.policy_spec import check_reached
from agentenv.retrievers.base import texts_of
from agentenv.retrievers.simulation.lossy import chance_of
from agentenv.retrievers.simulation.simulators import (
    Brief,
    SamplingOptions,
    Simulator,
    make_simulator,
)

TRAINING = "train"
"""The only split whose answers a simulator may see."""

_HEAD = r"^[ \t]*Doc(?:ument)?\s*\d+\s*"
_TITLE = r"[^()\n]*(?:\([^()\n]*\)[^()\n]*)*"  # may contain balanced parentheses
_DOCUMENT = re.compile(
    rf"{_HEAD}(?:\(Title:(?P<title>{_TITLE})\)|[.:])[ \t]*(?P<text>.*?)(?={_HEAD}|\Z)",
    re.DOTALL | re.MULTILINE,
)


class SimulationConfig(Frozen):
    """The settings of a simulated search."""

    gold: bool = True
    """Whether the simulator sees the question's answer; it then serves only questions of the training split."""
    noise_start: float = Field(0.0, ge=0, le=1)
    """Probability of noisy documents for a query at the start of training."""
    noise_end: float = Field(0.5, ge=0, le=1)
    """Probability of noisy documents for a query at the end of training."""
    noise_base: float = Field(4.0, gt=0)
    """Shape of the schedule: above 1 the noise increases late, 1 is linear."""
    tokens: int = Field(600, ge=1)
    """Largest number of tokens of one page."""
    temperature: float = Field(0.8, ge=0)
    """Sampling temperature; 0 is greedy."""
    form: Literal["instructions", "compact"] | None = None
    """The prompt of the model: ``instructions`` or ``compact``. None uses the one that a fine-tuned simulator has stored, or
    ``instructions``."""
    tries: int = Field(3, ge=1)
    """How often a page is requested until it contains a readable document."""


def noise_share(
    step: float, steps: float, *, start: float = 0.0, end: float = 0.5, base: float = 4.0
) -> float:
    """Returns ZeroSearch's schedule (eq. 2): p(i) = p_s + (b^(i/m) - 1) / (b - 1) (p_e - p_s), and p_e from step m on.

    Args:
        step: The step i.
        steps: The number of steps m.
        start: The probability p_s.
        end: The probability p_e.
        base: The base b; 1 is the limit, a linear schedule.
    """
    if step >= steps:
        return end
    way = step / steps
    curve = way if base == 1 else (base**way - 1) / (base - 1)
    return start + curve * (end - start)


def check_gold(retriever: object, split: str) -> None:
    """Refuses questions of ``split`` if ``retriever`` would see their answers.

    Raises:
        ConfigurationError: it sees answers, and ``split`` is not the training split.
    """
    if getattr(retriever, "discloses_gold", False) and split != TRAINING:
        raise ConfigurationError(
            f"This simulator is told the answers, and the questions are of the split {split!r}, not {TRAINING!r}: "
            "evaluate with another retriever, or with simulated:gold=no@..."
        )


class SimulatedRetriever:
    """Asks a simulator for one page per query; a random draw decides whether it is useful or noisy.

    The draw depends on the query, and on seed and turn of its episode, so an episode that is played again sees the same
    pages if its simulator samples the same.

    Args:
        simulator: Writes the pages.
        config: The settings of the search.
    """

    def __init__(self, simulator: Simulator, config: SimulationConfig | None = None) -> None:
        self.simulator = simulator
        self.config = config or SimulationConfig()
        self.discloses_gold = self.config.gold
        """Whether answers are sent to the simulator; used by `check_gold`."""
        self.noise = self.config.noise_start
        """Probability of noisy documents for a query."""

    @classmethod
    def parse(cls, rest: str) -> Self:
        """Parses ``SIMULATOR`` or ``OPTION=VALUE,...@SIMULATOR``, with fields of `SimulationConfig` as options.

        Raises:
            ConfigurationError: there is no such option, or its value is wrong.
            UnknownName: there is no such simulator.
            ConfigurationError: no server accepts connections at its address.
        """
        head, at, tail = rest.partition("@")
        given = at and "=" in head and ":" not in head
        words = [word.partition("=") for word in head.split(",")] if given else []
        try:
            config = SimulationConfig.model_validate({name.strip(): value for name, _, value in words})
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigurationError(
                f"simulated:{head}: {first['loc'][0]}: {first['msg']}; got {first['input']!r}."
            ) from error
        draw = SamplingOptions(config.tokens, config.temperature)
        check_reached(tail if given else rest)
        return cls(make_simulator(tail if given else rest, draw, config.form), config)

    def at(self, progress: float) -> Self:
        """Returns the same search at a point of training, where 0 is the start and 1 the end."""
        config, moved = self.config, copy.copy(self)
        moved.noise = noise_share(
            progress, 1.0, start=config.noise_start, end=config.noise_end, base=config.noise_base
        )
        return moved

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` documents per query, as they were written; none for a blank query.

        It also returns none if no written page contains readable documents: a policy's query may cause that, and a failure
        would mask its episode.

        Raises:
            ConfigurationError: the simulator sees the answer, and a question is not of the training split.
            RetrieverFault: the simulator failed.
        """
        texts = texts_of(queries, k)
        briefs = [self._brief(query, text, k) for query, text in zip(queries, texts, strict=True) if text]
        pages = iter(await self._pages(briefs))
        return [next(pages) if text else [] for text in texts]

    def info(self) -> RetrieverInfo:
        """Returns a contextual description, because results depend on the context of the query."""
        identity = f"simulated\n{self.simulator.id}\n{self.config!r}\n{self.noise!r}"
        fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        return RetrieverInfo("simulated", 0, fingerprint, contextual=True)

    def _brief(self, query: Query | str, text: str, k: int) -> Brief:
        context = query.context if isinstance(query, Query) and query.context else QueryContext("")
        chance = chance_of(query, "noise")
        return Brief(
            query=text,
            documents=k,
            useful=chance >= self.noise,
            question=context.question,
            answer=self._gold(context),
            seed=int(chance_of(query, "page") * 2**48),
        )

    def _gold(self, context: QueryContext) -> str:
        if not self.config.gold or not context.answers:
            return ""
        check_gold(self, context.split)
        return context.answers[0]

    async def _pages(self, briefs: Sequence[Brief]) -> list[list[Passage]]:
        found: dict[int, list[Passage]] = {}
        for attempt in range(self.config.tries):
            missing = [n for n in range(len(briefs)) if n not in found]
            asked = [replace(briefs[n], seed=briefs[n].seed + attempt) for n in missing]
            for n, page in zip(missing, await self._write_pages(asked), strict=True):
                if passages := read_documents(page, briefs[n])[: briefs[n].documents]:
                    found[n] = passages
        return [found.get(n, []) for n in range(len(briefs))]

    async def _write_pages(self, briefs: Sequence[Brief]) -> list[str]:
        if not briefs:
            return []
        try:
            return await self.simulator.write(briefs)
        except Fault as error:
            raise RetrieverFault(f"simulator: {error}") from error


def read_documents(page: str, brief: Brief) -> list[Passage]:
    """Parses the documents of a page, ``Doc 1(Title: t) text`` or ``Doc 1: text``; ones without words are left out.

    The score is 1 / rank, and the id a hash of the content, so that equal documents count as one.
    """
    passages: list[Passage] = []
    for match in _DOCUMENT.finditer(page):
        text = " ".join(match["text"].split())
        title = (match["title"] or brief.query).strip()
        if text:
            name = hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:16]
            passages.append(Passage(f"simulated-{name}", title, text, 1 / (len(passages) + 1)))
    return passages
