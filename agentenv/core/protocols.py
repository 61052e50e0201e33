"""The protocols between the parts of the package. Implementations need not inherit from them."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentenv.core.types import Completion, Message, Passage, Query, RetrieverInfo, Sampling


@runtime_checkable
class Policy(Protocol):
    """Samples tokens. Implementations form batches themselves, and results never depend on ``episode``.

    A policy that reads images has an ``image_reader`` (`ImageReader`). Its ``generate`` and ``score`` have a further
    argument ``images``, the `PlacedImage` objects of the ids, which is passed only if there are images.
    """

    @property
    def version(self) -> int:
        """Version of the weights, which increases by one with every update."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """Samples tokens after ``prompt_ids``.

        ``episode`` lets an engine keep a cache or a route for the turns of one episode. A fork passes an id of its own.

        Raises:
            PolicyFault: the engine failed.
            ContextTooSmall: the prompt alone fills the context.
        """

    def release(self, episode: str) -> None:
        """Frees everything that was kept for ``episode``."""

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """Returns the log-probability of every token of ``ids`` given those before it; 0 for the first one."""


@runtime_checkable
class ChatFormat(Protocol):
    """Encodes messages as token ids. ``extend`` only appends and never changes earlier ids."""

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Encodes the messages that open an episode, up to the place where the policy writes."""

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Returns ``ids`` followed by the observation, up to the place where the policy writes next."""

    def closing(self, ids: Sequence[int]) -> list[int]:
        """Returns the ids between the policy's turn and the next message: an end-of-turn token that it did not sample."""


@runtime_checkable
class Retriever(Protocol):
    """Finds passages. All retrievers (FAISS, BM25, a server, a web search, a recording) have this interface."""

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` passages for each query, best first; ties are in the order of the corpus.

        Raises:
            RetrieverFault: the backend failed or missed its deadline.
        """

    def info(self) -> RetrieverInfo:
        """Returns the name, size and fingerprint."""
