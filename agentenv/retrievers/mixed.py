"""Mixes simulated and real search, with shares by a schedule; and the interface of retrievers that change in training."""

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
    """A retriever that changes during training."""

    def at(self, progress: float) -> Retriever:
        """Returns the retriever at a point of training, where 0 is the start and 1 the end."""


def at_progress(retriever: Retriever, progress: float) -> Retriever:
    """Returns ``retriever`` at a point of training; a retriever that never changes is returned itself."""
    return retriever.at(progress) if isinstance(retriever, Scheduled) else retriever


class MixedRetriever:
    """Some episodes search one retriever and some the other. An episode always uses the same one.

    Args:
        simulated: The retriever of the other episodes.
        real: The retriever of a share of the episodes.
        start: That share at the start of training, 0 to 1.
        end: That share at the end; it changes linearly.
    """

    def __init__(self, simulated: Retriever, real: Retriever, *, start: float, end: float) -> None:
        self.simulated, self.real = simulated, real
        self.start, self.end = start, end
        self.share = start
        """The share of episodes that search ``real``."""

    def at(self, progress: float) -> Self:
        """Returns the mixture at a point of training, with its parts at the same point."""
        moved = copy.copy(self)
        moved.share = self.start + progress * (self.end - self.start)
        moved.simulated, moved.real = at_progress(self.simulated, progress), at_progress(self.real, progress)
        return moved

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` passages per query, from the retriever of the query's episode.

        Raises:
            RetrieverFault: the retriever failed.
        """
        found: list[list[Passage]] = [[] for _ in queries]
        for part in (self.simulated, self.real):
            mine = [n for n, query in enumerate(queries) if self._chosen(query) is part]
            answers = await found_by(part, [queries[n] for n in mine], k) if mine else []
            for n, passages in zip(mine, answers, strict=True):
                found[n] = passages
        return found

    def _chosen(self, query: Query | str) -> Retriever:
        episode = query.context.episode if isinstance(query, Query) and query.context else ""
        # By a digest of the episode, so that it uses the same retriever in every turn, also after a run is resumed.
        return self.real if zlib.crc32(f"real{episode}".encode()) < self.share * 2**32 else self.simulated

    def info(self) -> RetrieverInfo:
        """Returns a contextual description, because results depend on the episode."""
        parts = [self.simulated.info(), self.real.info()]
        identity = "\n".join(["mixed", repr(self.share), *(part.fingerprint for part in parts)])
        fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        name = f"mixed({', '.join(part.name for part in parts)})"
        return RetrieverInfo(name, parts[1].documents, fingerprint, contextual=True)
