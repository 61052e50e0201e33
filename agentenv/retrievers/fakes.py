"""A retriever for a few documents, which needs no library and no index, and one for tests that fails on chosen calls."""

import re
from collections.abc import Collection, Iterable, Sequence

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document, Passage, Query, RetrieverInfo
from agentenv.errors import RetrieverFault
from agentenv.retrievers.base import CorpusRetriever, Hit, in_pairs, passage_text
from agentenv.retrievers.storage.corpus import as_corpus


class InMemoryRetriever(CorpusRetriever):
    """Ranks documents by the number of distinct words that they share with the query; without any, they are no hits.

    For Chinese and Japanese, pairs of neighbouring characters count as words.

    Args:
        documents: A corpus, or its documents.
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        super().__init__(as_corpus(documents), name="memory", settings="word overlap")
        self._words = [_words(passage_text(document)) for document in self.corpus]

    def rank(self, texts: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most ``k`` hits for each text, best first, ties by row."""
        return [self._rank_one(_words(text), k) for text in texts]

    def _rank_one(self, query: set[str], k: int) -> list[Hit]:
        hits = [(row, float(len(query & words))) for row, words in enumerate(self._words) if query & words]
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:k]


class FaultyRetriever:
    """Passes searches to another retriever, and fails on chosen calls.

    Args:
        inner: The retriever that answers the other calls.
        fail_on: The numbers of the calls of `search`, counted from 0, that raise `RetrieverFault`.
    """

    def __init__(self, inner: Retriever, fail_on: Collection[int]) -> None:
        self.inner = inner
        self.fail_on = fail_on
        self.calls = 0

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns the results of the inner retriever.

        Raises:
            RetrieverFault: this call is one of ``fail_on``.
        """
        call, self.calls = self.calls, self.calls + 1
        if call in self.fail_on:
            raise RetrieverFault(f"Search call {call} was told to fail.")
        return await self.inner.search(queries, k)

    def info(self) -> RetrieverInfo:
        """Returns the inner retriever's description of itself."""
        return self.inner.info()


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", in_pairs(text.lower())))
