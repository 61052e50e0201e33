"""Simulated search and real search in one, the share of each by schedule; and retrievers that change during training."""

import copy
import hashlib
import zlib
from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

from agentenv.core.protocols import Retriever
from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.retrievers.base import found_by


@runtime_checkable
class Scheduled(Protocol):
    """A retriever that changes while a policy is trained."""

    def at(self, progress: float) -> Retriever:
        """The retriever at a point of training: 0 is the start, 1 the end."""


def at_progress(retriever: Retriever, progress: float) -> Retriever:
    """``retriever`` at a point of training; itself where it never changes."""
    return retriever.at(progress) if isinstance(retriever, Scheduled) else retriever


class MixedRetriever:
    """Some episodes search one retriever and some the other. An episode stays with its own.

    Args:
        simulated: searched by the others.
        real: searched by a share of the episodes.
        start: that share at the start of training, 0 to 1.
        end: the share at its end; linear in between.
    """

    def __init__(self, simulated: Retriever, real: Retriever, *, start: float, end: float) -> None:
        self.simulated, self.real = simulated, real
        self.start, self.end = start, end
        self.share = start
        """Share of the episodes that search ``real``."""

    def at(self, progress: float) -> Self:
        """The mixture at a point of training; its parts are at the same."""
        moved = copy.copy(self)
        moved.share = self.start + progress * (self.end - self.start)
        moved.simulated, moved.real = at_progress(self.simulated, progress), at_progress(self.real, progress)
        return moved

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages a query, from the retriever of the episode that asks.

        Raises:
            RetrieverFault: that one failed.
        """
        found: list[list[Passage]] = [[] for _ in queries]
        for part in (self.simulated, self.real):
            mine = [n for n, query in enumerate(queries) if self._of(query) is part]
            answers = await found_by(part, [queries[n] for n in mine], k) if mine else []
            for n, passages in zip(mine, answers, strict=True):
                found[n] = passages
        return found

    def _of(self, query: Query | str) -> Retriever:
        episode = query.context.episode if isinstance(query, Query) and query.context else ""
        # By a digest of the episode: it stays with its retriever from turn to turn, and does so again when a run is
        # resumed.
        return self.real if zlib.crc32(f"real{episode}".encode()) < self.share * 2**32 else self.simulated

    def info(self) -> RetrieverInfo:
        """Contextual: what is found depends on the episode."""
        parts = [self.simulated.info(), self.real.info()]
        identity = "\n".join(["mixed", repr(self.share), *(part.fingerprint for part in parts)])
        fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        name = f"mixed({', '.join(part.name for part in parts)})"
        return RetrieverInfo(name, parts[1].documents, fingerprint, contextual=True)
