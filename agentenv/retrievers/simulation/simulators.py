"""Simulators of a search engine: a model behind an endpoint, a local model, or a grammar that needs no model.

A simulator is told what is searched, why, and whether the documents shall be of use; it writes a page of documents. It knows
nothing of curricula, splits or faults: that is `agentenv.retrievers.simulation.simulated`.
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
"""How a simulator is asked: in sentences, or in the four lines that a fine-tuned one was trained on."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What a simulator is told of one query."""

    query: str
    documents: int
    """Number of documents to write."""
    useful: bool = True
    """Whether the documents should help with the question, or only look as if they did."""
    question: str = ""
    answer: str = ""
    """The gold; empty where it is not disclosed."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How a model is sampled."""

    tokens: int = 600
    """Largest number of tokens of one page."""
    temperature: float = 0.8
    """Sampling temperature, by default that of ZeroSearch; 0 is greedy."""


class Simulator(Protocol):
    """Writes what a search engine might return."""

    @property
    def id(self) -> str:
        """Differs between simulators that write other pages."""

    async def write(self, briefs: Sequence[Brief]) -> list[str]:
        """One page for each brief, in their order, documents numbered from ``Doc 1``.

        Raises:
            Fault: the model failed, refused, did not answer in time, or its budget is spent.
        """


def ask(brief: Brief, form: Form) -> str:
    """The message that a model gets.

    Question and answer are told in both modes, as to ZeroSearch's fine-tuned simulators: a model that writes documents
    without the answer must know it.
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


async def _unless_its_query_is_refused(write: Callable[[Brief], Awaitable[str]], brief: Brief) -> str:
    """The page of ``brief``, empty where the model takes the brief without its query and refuses it with it.

    The policy writes the query. It may be too long for the model's context, or what the filter of an endpoint does not let
    through, and a failure would mask the episode.

    Raises:
        Fault: the model failed.
        ConfigurationError: the model does not take the brief without its query either, or is not configured.
    """
    try:
        return await write(brief)
    except (ContextTooSmall, EndpointRefusal):
        await write(replace(brief, query=""))
        return ""


class EndpointSimulator:
    """A model behind an OpenAI-compatible endpoint, whose limits bound requests, tokens, cost, retries and time.

    Args:
        chat: asks it.
        draw: how it is sampled.
        form: how it is asked.
    """

    def __init__(self, chat: Chat, draw: SamplingOptions, form: Form = "instructions") -> None:
        self._chat, self._draw, self._form = chat, draw, form
        self.id = f"{chat.model} {form} {draw}"

    async def write(self, briefs: Sequence[Brief]) -> list[str]:
        """One page for each brief.

        Raises:
            EndpointFault: a reply could not be had.
            ConfigurationError: the endpoint refuses the key or has no such model.
        """
        return await gather_all(_unless_its_query_is_refused(self._page, brief) for brief in briefs)

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
        policy: the model.
        draw: how it is sampled.
        form: how it is asked.
        identity: identifies the weights in fingerprints.
    """

    def __init__(self, policy: "HFPolicy", draw: SamplingOptions, form: Form, identity: str) -> None:
        self._policy, self._draw, self._form = policy, draw, form
        self._chat = InlineFormat(policy.tokenizer)
        self.id = f"{identity} {form} {draw}"
        self._batcher: Batcher[tuple[Brief, ...], list[str]] = Batcher(self._run, rank=0)

    async def write(self, briefs: Sequence[Brief]) -> list[str]:
        """One page for each brief.

        Raises:
            PolicyFault: the model failed.
        """
        return await self._batcher.submit(tuple(briefs))

    def _run(self, requests: list[tuple[Brief, ...]]) -> list[list[str]]:
        pages = iter(run_to_completion(self._pages([brief for request in requests for brief in request])))
        return [[next(pages) for _ in request] for request in requests]

    async def _pages(self, briefs: Sequence[Brief]) -> list[str]:
        return await gather_all(_unless_its_query_is_refused(self._page, brief) for brief in briefs)

    async def _page(self, brief: Brief) -> str:
        prompt = self._chat.prompt((Message("user", ask(brief, self._form)),))
        sampling = Sampling(self._draw.tokens, temperature=self._draw.temperature, seed=brief.seed)
        return (await self._policy.generate(prompt, sampling)).text


class CassetteSimulator:
    """Pages from a cassette; what it lacks is refused, or asked of ``inner`` and recorded.

    A recorded call is one brief, so a curriculum replays as it was recorded.

    Args:
        path: the file.
        inner: the simulator that is asked what the file lacks; None refuses such briefs.

    Raises:
        ConfigurationError: no cassette, or one of another simulator than ``inner``.
    """

    def __init__(self, path: Path, inner: Simulator | None = None) -> None:
        self._inner = inner
        about = {"simulator": inner.id} if inner else None
        self._tape = Cassette.record(path, about) if about else Cassette.replay(path)
        self.id = str(self._tape.about.get("simulator"))

    async def write(self, briefs: Sequence[Brief]) -> list[str]:
        """One page for each brief.

        Raises:
            CassetteMiss: a brief is not in the file and there is nobody to ask.
            Fault: asking failed.
        """
        missing = [brief for brief in briefs if asdict(brief) not in self._tape]
        if missing and self._inner is not None:
            for brief, page in zip(missing, await self._inner.write(missing), strict=True):
                self._tape.add(asdict(brief), page)
        return [self._tape.find(asdict(brief)) for brief in briefs]


class GrammarSimulator:
    """Writes in the sentences of a FictionalWorld, without a model; the same for the same brief.

    A useful page states the disclosed answer in its first document; everything else is about invented names. It takes
    every query for one after the answer itself, so it suits questions of one hop.
    """

    id = "grammar"

    async def write(self, briefs: Sequence[Brief]) -> list[str]:
        """One page for each brief."""
        return [self._page(brief) for brief in briefs]

    def _page(self, brief: Brief) -> str:
        rng = Random(f"{brief.seed}/{brief.query}")
        subject, form = _understood(brief.query)
        lines = []
        for number in range(1, brief.documents + 1):
            states = number == 1 and brief.useful and brief.answer
            title = subject if number == 1 else _name(rng)
            text = form.format(s=title, v=brief.answer if states else _name(rng), a=_name(rng))
            lines.append(f"Doc {number}(Title: {title}) {text}")
        return "\n".join(lines)


_SEARCHES = [
    (re.compile(re.escape(relation.search).replace(r"\{s\}", "(.+)")), relation.sentences[0])
    for relations in RELATIONS.values()
    for relation in relations
    if relation.search
]


def _understood(query: str) -> tuple[str, str]:
    """The subject of a query and a sentence with the fact that it is after."""
    for pattern, sentence in _SEARCHES:
        if match := pattern.fullmatch(query):
            return match[1], sentence
    return query, "About {s} it is said: {v}."


def _name(rng: Random) -> str:
    return " ".join(
        "".join(rng.choice("bdgklmprstvz") + rng.choice("aeiou") for _ in range(3)).capitalize()
        for _ in range(2)
    )


FORM_FILE = "simulator.json"
"""Stands beside the weights of a simulator that was fine-tuned, and says how to ask it."""

KINDS = (
    "grammar",
    "hf:PATH",
    "openai:MODEL@URL",
    "anyllm:PROVIDER/MODEL",
    "cassette:FILE",
    "cassette:FILE@SIMULATOR",
)


def make_simulator(spec: str, draw: SamplingOptions, form: Form | None) -> Simulator:
    """The simulator that ``spec`` names: one of `KINDS`.

    Args:
        spec: its kind and where it is.
        draw: how a model is sampled.
        form: how a model is asked; None is as the folder of a local one says, in sentences elsewhere.

    Raises:
        UnknownName: no such kind.
        MissingExtra: torch or transformers is not installed.
        CheckpointMismatch: the folder holds no model.
        ConfigurationError: no such address or option.
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
        return _local(Path(rest), draw, form)
    raise UnknownName.among("simulator", spec, KINDS)


def _local(folder: Path, draw: SamplingOptions, form: Form | None) -> LocalSimulator:
    from agentenv.retrievers.encoder import folder_digest

    with needs_extra("train"):
        from agentenv.policies.hf import HFPolicy
    return LocalSimulator(HFPolicy.load(folder), draw, form or read_form(folder), folder_digest(folder))


def read_form(folder: Path) -> Form:
    """How the simulator in ``folder`` was trained to be asked; in sentences where nothing says so."""
    path = folder / FORM_FILE
    if not path.is_file():
        return "instructions"
    form: Form = read_settings(path).get("form")  # type: ignore[assignment]
    if form not in ("instructions", "compact"):
        raise ConfigurationError(
            f"{path} names the form {form!r}; this version knows instructions and compact."
        )
    return form
