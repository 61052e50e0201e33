"""Simulators of a search engine: a model behind an endpoint, a local model, or a grammar that needs no model.

A simulator gets the query, its purpose, and whether the documents should be useful; it writes a page of documents. It does
not deal with schedules, splits or faults; `agentenv.retrievers.simulation.simulated` does.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal, Protocol

from agentenv.core.chat import InlineFormat
from agentenv.core.concurrency.batching import Batcher
from agentenv.core.concurrency.tasks import gather_all, run_to_completion
from agentenv.core.io.cassette import Cassette
from agentenv.core.io.model_files import read_settings
from agentenv.core.types import Message, Sampling
from agentenv.data.world_grammar import RELATIONS
from agentenv.errors import ConfigurationError, ContextTooSmall, EndpointRefusal, UnknownName, needs_extra
from agentenv.policies.endpoint import Chat, ChatClient
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.policy_spec import is_endpoint

if TYPE_CHECKING:
    from agentenv.policies.hf import HFPolicy

Form = Literal["instructions", "compact"]
"""The prompt of a simulator: sentences, or the four lines that a fine-tuned one was trained on."""


@dataclass(frozen=True, slots=True)
class Brief:
    """The instructions to a simulator for one query."""

    query: str
    documents: int
    """Number of documents to write."""
    useful: bool = True
    """Whether the documents should help with the question, or only appear to."""
    question: str = ""
    answer: str = ""
    """The gold answer; empty if it is not disclosed."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How a model is sampled."""

    tokens: int = 600
    """Largest number of tokens of one page."""
    temperature: float = 0.8
    """Sampling temperature, by default that of ZeroSearch; 0 is greedy."""


class Simulator(Protocol):
    """Writes pages that a search engine might return."""

    @property
    def id(self) -> str:
        """An id that differs between simulators that write different pages."""

    async def write(self, briefs: Sequence[Brief]) -> list[str]:
        """Writes one page for each brief, in order, with documents numbered from ``Doc 1``.

        Raises:
            Fault: the model failed, refused, or did not answer in time, or its budget is used up.
        """


def ask(brief: Brief, form: Form) -> str:
    """Returns the prompt for a model.

    Useful and noisy prompts both contain question and answer, as for ZeroSearch's fine-tuned simulators, because a model
    must know the answer to avoid it.
    """
    mode = "useful" if brief.useful else "noisy"
    if form == "compact":
        return f"{mode}\nQuestion: {brief.question}\nAnswer: {brief.answer}\nQuery: {brief.query}"
    purpose = {
        "useful": "Each document contains information that helps to answer the question.",
        "noisy": "The documents are on the topic of the query but contain nothing that helps to answer the question.",
    }[mode]
    known = [f"The user searches in order to answer this question: {brief.question}"] * bool(brief.question)
    known += [f"Its correct answer is: {brief.answer}"] * bool(brief.answer)
    if brief.answer and not brief.useful:
        known.append("None of the documents may contain this answer.")
    return "\n".join(
        (
            f"You are a search engine. Write {brief.documents} {mode} documents for the query below.",
            purpose,
            *known,
            "A document has about 30 words. Write one a line, as in: Doc 1(Title: a title) the text",
            "Write the documents and nothing else.",
            f"Query: {brief.query}",
            f"{mode.capitalize()} documents:",
        )
    )


async def _page_or_empty_if_refused(write: Callable[[Brief], Awaitable[str]], brief: Brief) -> str:
    """Returns the page of ``brief``; empty if the model refuses the brief, but accepts it without its query.

    The policy writes the query. It may be too long for the model's context, or blocked by the content filter of an endpoint,
    and a failure would mask the episode.

    Raises:
        Fault: the model failed.
        ConfigurationError: the model refuses the brief without its query too, or is not configured correctly.
    """
    try:
        return await write(brief)
    except (ContextTooSmall, EndpointRefusal):
        await write(replace(brief, query=""))
        return ""


class EndpointSimulator:
    """A model behind an OpenAI-compatible endpoint, whose limits bound requests, tokens, cost, retries and time.

    Args:
        chat: The client of the endpoint.
        draw: How the model is sampled.
        form: The form of the prompt.
    """

    def __init__(self, chat: Chat, draw: SamplingOptions, form: Form = "instructions") -> None:
        self._chat, self._draw, self._form = chat, draw, form
        self.id = f"{chat.model} {form} {draw}"

    async def write(self, briefs: Sequence[Brief]) -> list[str]:
        """Writes one page for each brief.

        Raises:
            EndpointFault: the endpoint gave no reply.
            ConfigurationError: the endpoint refuses the key or has no such model.
        """
        return await gather_all(_page_or_empty_if_refused(self._page, brief) for brief in briefs)

    async def _page(self, brief: Brief) -> str:
        reply = await self._chat.complete(
            [{"role": "user", "content": ask(brief, self._form)}],
            max_tokens=self._draw.tokens,
            temperature=self._draw.temperature,
            seed=brief.seed % 2**31,
        )
        return reply.text


class LocalSimulator:
    """A transformers model in this process. Pages of all running episodes are sampled in one batch.

    Args:
        policy: The model.
        draw: How the model is sampled.
        form: The form of the prompt.
        identity: Identifies the weights in fingerprints.
    """

    def __init__(self, policy: "HFPolicy", draw: SamplingOptions, form: Form, identity: str) -> None:
        self._policy, self._draw, self._form = policy, draw, form
        self._chat = InlineFormat(policy.tokenizer)
        self.id = f"{identity} {form} {draw}"
        self._batcher: Batcher[tuple[Brief, ...], list[str]] = Batcher(self._run, rank=0)

    async def write(self, briefs: Sequence[Brief]) -> list[str]:
        """Writes one page for each brief.

        Raises:
            PolicyFault: the model failed.
        """
        return await self._batcher.submit(tuple(briefs))

    def _run(self, requests: list[tuple[Brief, ...]]) -> list[list[str]]:
        pages = iter(run_to_completion(self._pages([brief for request in requests for brief in request])))
        return [[next(pages) for _ in request] for request in requests]

    async def _pages(self, briefs: Sequence[Brief]) -> list[str]:
        return await gather_all(_page_or_empty_if_refused(self._page, brief) for brief in briefs)

    async def _page(self, brief: Brief) -> str:
        prompt = self._chat.prompt((Message("user", ask(brief, self._form)),))
        sampling = Sampling(self._draw.tokens, temperature=self._draw.temperature, seed=brief.seed)
        return (await self._policy.generate(prompt, sampling)).text


class CassetteSimulator:
    """Pages from a cassette. Missing ones are refused, or written by ``inner`` and recorded.

    A recorded call is one brief, so a schedule is replayed as it was recorded.

    Args:
        path: The file.
        inner: The simulator for briefs that the file lacks; None refuses them.

    Raises:
        ConfigurationError: the file is not a cassette, or one of another simulator than ``inner``.
    """

    def __init__(self, path: Path, inner: Simulator | None = None) -> None:
        self._inner = inner
        about = {"simulator": inner.id} if inner else None
        self._tape = Cassette.record(path, about) if about else Cassette.replay(path)
        self.id = str(self._tape.about.get("simulator"))

    async def write(self, briefs: Sequence[Brief]) -> list[str]:
        """Returns one page for each brief.

        Raises:
            CassetteMiss: a brief is not in the file, and there is no ``inner``.
            Fault: ``inner`` failed.
        """
        missing = [brief for brief in briefs if asdict(brief) not in self._tape]
        if missing and self._inner is not None:
            for brief, page in zip(missing, await self._inner.write(missing), strict=True):
                self._tape.add(asdict(brief), page)
        return [self._tape.find(asdict(brief)) for brief in briefs]


class GrammarSimulator:
    """Writes sentences of a FictionalWorld without a model; equal briefs give equal pages.

    The first document of a useful page states the disclosed answer; all others are about invented names. It assumes that
    every query is about the answer itself, so it suits questions with one hop.
    """

    id = "grammar"

    async def write(self, briefs: Sequence[Brief]) -> list[str]:
        """Writes one page for each brief."""
        return [self._page(brief) for brief in briefs]

    def _page(self, brief: Brief) -> str:
        rng = Random(f"{brief.seed}/{brief.query}")
        subject, form = _parse_query(brief.query)
        lines = []
        for number in range(1, brief.documents + 1):
            states = number == 1 and brief.useful and brief.answer
            title = subject if number == 1 else _invent_name(rng)
            text = form.format(s=title, v=brief.answer if states else _invent_name(rng), a=_invent_name(rng))
            lines.append(f"Doc {number}(Title: {title}) {text}")
        return "\n".join(lines)


_SEARCHES = [
    (re.compile(re.escape(relation.search).replace(r"\{s\}", "(.+)")), relation.sentences[0])
    for relations in RELATIONS.values()
    for relation in relations
    if relation.search
]


def _parse_query(query: str) -> tuple[str, str]:
    """Returns the subject of a query, and a sentence with the requested fact."""
    for pattern, sentence in _SEARCHES:
        if match := pattern.fullmatch(query):
            return match[1], sentence
    return query, "About {s} it is said: {v}."


def _invent_name(rng: Random) -> str:
    return " ".join(
        "".join(rng.choice("bdgklmprstvz") + rng.choice("aeiou") for _ in range(3)).capitalize()
        for _ in range(2)
    )


FORM_FILE = "simulator.json"
"""A file beside the weights of a fine-tuned simulator, which states the form of its prompt."""

KINDS = (
    "grammar",
    "hf:PATH",
    "openai:MODEL@URL",
    "anyllm:PROVIDER/MODEL",
    "cassette:FILE",
    "cassette:FILE@SIMULATOR",
)


def make_simulator(spec: str, draw: SamplingOptions, form: Form | None) -> Simulator:
    """Makes the simulator that ``spec`` names, one of `KINDS`.

    Args:
        spec: The kind and location of the simulator.
        draw: How a model is sampled.
        form: The form of the prompt; None uses that of a local model's folder, or else sentences.

    Raises:
        UnknownName: there is no such kind.
        MissingExtra: torch or transformers is not installed.
        CheckpointMismatch: the folder contains no model.
        ConfigurationError: there is no such address or option.
    """
    kind, _, rest = spec.partition(":")
    if spec == GrammarSimulator.id:
        return GrammarSimulator()
    if is_endpoint(spec):
        return EndpointSimulator(ChatClient(Endpoint.of(spec)), draw, form or "instructions")
    if kind == "cassette" and rest:
        file, at, inner = rest.partition("@")
        return CassetteSimulator(Path(file), make_simulator(inner, draw, form) if at else None)
    if kind == "hf" and rest:
        return _local_simulator(Path(rest), draw, form)
    raise UnknownName.among("simulator", spec, KINDS)


def _local_simulator(folder: Path, draw: SamplingOptions, form: Form | None) -> LocalSimulator:
    from agentenv.retrievers.encoder import folder_digest

    with needs_extra("train"):
        from agentenv.policies.hf import HFPolicy
    return LocalSimulator(HFPolicy.load(folder), draw, form or read_form(folder), folder_digest(folder))


def read_form(folder: Path) -> Form:
    """Returns the form of the prompt that the simulator in ``folder`` was trained on; sentences by default."""
    path = folder / FORM_FILE
    if not path.is_file():
        return "instructions"
    form: Form = read_settings(path).get("form")  # type: ignore[assignment]
    if form not in ("instructions", "compact"):
        raise ConfigurationError(
            f"{path} names the form {form!r}; this version knows instructions and compact."
        )
    return form
