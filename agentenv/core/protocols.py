"""The protocols between the parts of the package, from which implementations need not inherit."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentenv.core.types import Completion, Message, Passage, Query, RetrieverInfo, Sampling


@runtime_checkable
class Policy(Protocol):
    """Samples tokens. Batching happens inside; results never depend on ``episode``.

    One that reads images has an ``image_reader`` (`ImageReader`). Its ``generate`` and ``score`` take a further argument
    ``images``, the `PlacedImage` of the ids, which is given only where there are some.
    """

    @property
    def version(self) -> int:
        """Version of the weights; grows by one with every update."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """Samples one chunk after ``prompt_ids``.

        ``episode`` lets an engine keep a cache or a route for the turns of one episode; a fork passes its own
        id.

        Raises:
            PolicyFault: the engine failed.
            ContextTooSmall: the prompt alone fills the context.
        """

    def release(self, episode: str) -> None:
        """Forgets what was kept for ``episode``."""

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """Log-probability of every token of ``ids`` given the ones before it, at a temperature; the first is 0."""


@runtime_checkable
class ChatFormat(Protocol):
    """Turns messages into token ids. ``extend`` appends and never rewrites."""

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The ids that open an episode, up to the place where the policy writes."""

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """``ids`` followed by the observation, up to the place where the policy writes next."""

    def closing(self, ids: Sequence[int]) -> list[int]:
        """Ids between what the policy wrote and the next message: an end-of-turn mark that it left out."""


@runtime_checkable
class Retriever(Protocol):
    """Finds passages; FAISS, BM25, a server, a web search and a recording are all the same to an environment."""

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages a query, best first, ties broken by corpus order.

        Raises:
            RetrieverFault: the backend failed or missed its deadline.
        """

    def info(self) -> RetrieverInfo:
        """Name, size and fingerprint."""
