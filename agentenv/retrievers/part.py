"""A part of what another retriever finds, so that several agents know different documents."""

import hashlib
import zlib
from collections.abc import Sequence

from agentenv.core.protocols import Retriever
from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.errors import ConfigurationError

_SPARE = 8
"""Passages that are asked for beyond the expected number, as the parts of a ranking differ in length."""


class PartRetriever:
    """Searches one of several parts of a corpus; a checksum of its id says which part a document belongs to.

    Args:
        whole: searches all parts.
        number: which part, from 1.
        count: how many parts there are.

    Raises:
        ConfigurationError: there is no such part.
    """

    def __init__(self, whole: Retriever, number: int, count: int) -> None:
        if not 1 <= number <= count:
            raise ConfigurationError(f"part {number} of {count} does not exist; give for example [1, 2]")
        self.whole, self.number, self.count = whole, number, count

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages a query, in the order of the whole.

        There may be fewer than ``k`` although the part has more: of the whole, ``count * k`` and a few more are looked at.

        Raises:
            RetrieverFault: the search of the whole failed.
        """
        found = await self.whole.search(queries, self.count * k + _SPARE)
        return [[passage for passage in ranking if self.holds(passage.id)][:k] for ranking in found]

    def holds(self, document: str) -> bool:
        """Whether the document with this id belongs to the part."""
        return zlib.crc32(document.encode(errors="surrogatepass")) % self.count == self.number - 1

    def info(self) -> RetrieverInfo:
        """The `info` of the whole under a name and fingerprint of its own; the number of documents is that of the whole."""
        whole = self.whole.info()
        name = f"part {self.number} of {self.count} of {whole.name}"
        fingerprint = hashlib.sha256(f"{name}\n{whole.fingerprint}".encode()).hexdigest()
        return RetrieverInfo(name, whole.documents, fingerprint, contextual=whole.contextual)
