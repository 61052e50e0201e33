"""A retriever over a part of another one's documents, so that several agents know different documents."""

import hashlib
import zlib
from collections.abc import Sequence

from agentenv.core.protocols import Retriever
from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.errors import ConfigurationError

_EXTRA_PASSAGES = 8
"""Number of additional passages beyond the expected number, because the parts of a ranking differ in length."""


class PartRetriever:
    """Searches one of several parts of a corpus. A checksum of its id decides to which part a document belongs.

    Args:
        whole: The retriever over all parts.
        number: The index of the part, from 1.
        count: The number of parts.

    Raises:
        ConfigurationError: there is no such part.
    """

    def __init__(self, whole: Retriever, number: int, count: int) -> None:
        if not 1 <= number <= count:
            raise ConfigurationError(f"part {number} of {count} does not exist; give for example [1, 2]")
        self.whole, self.number, self.count = whole, number, count

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` passages per query, in the order of the whole.

        There may be fewer than ``k`` although the part has more: only the first ``count * k`` results of the whole, plus a
        few, are used.

        Raises:
            RetrieverFault: the search of the whole failed.
        """
        found = await self.whole.search(queries, self.count * k + _EXTRA_PASSAGES)
        return [[passage for passage in ranking if self.holds(passage.id)][:k] for ranking in found]

    def holds(self, document: str) -> bool:
        """Whether the document with this id belongs to the part."""
        return zlib.crc32(document.encode(errors="surrogatepass")) % self.count == self.number - 1

    def info(self) -> RetrieverInfo:
        """Returns the `info` of the whole, including its number of documents, with another name and fingerprint."""
        whole = self.whole.info()
        name = f"part {self.number} of {self.count} of {whole.name}"
        fingerprint = hashlib.sha256(f"{name}\n{whole.fingerprint}".encode()).hexdigest()
        return RetrieverInfo(name, whole.documents, fingerprint, contextual=whole.contextual)
