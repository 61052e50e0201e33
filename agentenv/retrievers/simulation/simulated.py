"""``simulated:SPEC``: a language model plays the search engine, useful or noisy on demand (ZeroSearch, Sun et al. 2025).

Question and gold answer come with each query, in its context, so that no episode can be told another one's. The gold is told
for questions of the training split alone: any other one is refused before a model is asked.
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
"""The one split whose answers a simulator may be told."""

_HEAD = r"^[ \t]*Doc(?:ument)?\s*\d+\s*"
_TITLE = r"[^()\n]*(?:\([^()\n]*\)[^()\n]*)*"  # parentheses within it come in pairs
_DOCUMENT = re.compile(
    rf"{_HEAD}(?:\(Title:(?P<title>{_TITLE})\)|[.:])[ \t]*(?P<text>.*?)(?={_HEAD}|\Z)",
    re.DOTALL | re.MULTILINE,
)


class SimulationConfig(Frozen):
    """How a simulated search behaves."""

    gold: bool = True
    """Whether the simulator is told the question's answer; such a one serves questions of the training split only."""
    noise_start: float = Field(0.0, ge=0, le=1)
    """Chance of a query to get noisy documents at the start of training."""
    noise_end: float = Field(0.5, ge=0, le=1)
    """Chance of a query to get noisy documents at the end of training."""
    noise_base: float = Field(4.0, gt=0)
    """Shape of the way between: above 1 the noise comes late, 1 is a straight line."""
    tokens: int = Field(600, ge=1)
    """Largest number of tokens of one page."""
    temperature: float = Field(0.8, ge=0)
    """Sampling temperature; 0 is greedy."""
    form: Literal["instructions", "compact"] | None = None
    """How the model is asked: ``instructions`` or ``compact``. None takes what a fine-tuned simulator has recorded,
    otherwise ``instructions``."""
    tries: int = Field(3, ge=1)
    """How often a page without a readable document is asked for."""


def noise_share(
    step: float, steps: float, *, start: float = 0.0, end: float = 0.5, base: float = 4.0
) -> float:
    """ZeroSearch's curriculum (eq. 2): p(i) = p_s + (b^(i/m) - 1) / (b - 1) (p_e - p_s), and p_e from step m on.

    Args:
        step: i.
        steps: m.
        start: p_s.
        end: p_e.
        base: b; at 1 its limit, a straight line.
    """
    if step >= steps:
        return end
    way = step / steps
    curve = way if base == 1 else (base**way - 1) / (base - 1)
    return start + curve * (end - start)


def check_gold(retriever: object, split: str) -> None:
    """Refuses questions of ``split`` where ``retriever`` would be told their answers.

    Raises:
        ConfigurationError: it is told answers, and ``split`` is not the training split.
    """
    if getattr(retriever, "discloses_gold", False) and split != TRAINING:
        raise ConfigurationError(
            f"This simulator is told the answers, and the questions are of the split {split!r}, not {TRAINING!r}: "
            "evaluate with another retriever, or with simulated:gold=no@..."
        )


class SimulatedRetriever:
    """Asks a simulator for a page a query; each query is useful or noisy by a draw of its own.

    The draw depends on the query and on seed and turn of its episode, so an episode that is played again meets the same
    pages if its simulator samples alike.

    Args:
        simulator: writes the pages.
        config: how it behaves.
    """

    def __init__(self, simulator: Simulator, config: SimulationConfig | None = None) -> None:
        self.simulator = simulator
        self.config = config or SimulationConfig()
        self.discloses_gold = self.config.gold
        """Whether answers leave for the simulator; `check_gold` asks."""
        self.noise = self.config.noise_start
        """Chance of a query to get noisy documents."""

    @classmethod
    def parse(cls, rest: str) -> Self:
        """``SIMULATOR`` or ``OPTION=VALUE,...@SIMULATOR``; the options are the fields of `SimulationConfig`.

        Raises:
            ConfigurationError: no such option, or its value is wrong.
            UnknownName: no such simulator.
            ConfigurationError: nobody takes connections at its address.
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
        """The same search at a point of training, 0 at its start and 1 at its end."""
        config, moved = self.config, copy.copy(self)
        moved.noise = noise_share(
            progress, 1.0, start=config.noise_start, end=config.noise_end, base=config.noise_base
        )
        return moved

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """At most ``k`` documents a query, as they were written; none for a blank query.

        None either where no page that was written can be read as documents: a policy may write a query that brings that
        about, and a failure here would mask its episode.

        Raises:
            ConfigurationError: the simulator is told the answer, and a question is not of the training split.
            RetrieverFault: the simulator failed.
        """
        texts = texts_of(queries, k)
        briefs = [self._brief(query, text, k) for query, text in zip(queries, texts, strict=True) if text]
        pages = iter(await self._pages(briefs))
        return [next(pages) if text else [] for text in texts]

    def info(self) -> RetrieverInfo:
        """Contextual: what is found depends on who asks."""
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
    """The documents of a page, ``Doc 1(Title: t) text`` or ``Doc 1: text`` each; one without words is left out.

    The score is 1 / rank, the id a hash of the content, so that equal documents are one.
    """
    passages: list[Passage] = []
    for match in _DOCUMENT.finditer(page):
        text = " ".join(match["text"].split())
        title = (match["title"] or brief.query).strip()
        if text:
            name = hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:16]
            passages.append(Passage(f"simulated-{name}", title, text, 1 / (len(passages) + 1)))
    return passages
