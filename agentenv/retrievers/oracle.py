"""Retrievers that know the supporting documents of each question, as upper bounds and never as systems."""

from collections.abc import Iterable, Mapping, Sequence

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document, Passage, Query, RetrieverInfo, Task
from agentenv.errors import ConfigurationError


class OracleRetriever:
    """Answers any query of an episode with the supporting documents of its question, in the order of the path."""

    def __init__(self, tasks: Iterable[Task], documents: Mapping[str, Document]) -> None:
        """Looks up the gold passages.

        Args:
            tasks: Questions with ``data["supporting_ids"]``.
            documents: The corpus by id.

        Raises:
            ConfigurationError: a question has no supporting documents, or one that the corpus lacks.
        """
        self._gold: dict[str, list[Passage]] = {}
        for task in tasks:
            ids = task.data.get("supporting_ids", ())
            if not ids or any(i not in documents for i in ids):
                raise ConfigurationError(
                    f"question {task.id!r} names no supporting documents of this corpus: its data['supporting_ids'] must "
                    "be ids of them"
                )
            found = [documents[i] for i in ids]
            self._gold[task.question] = [Passage(d.id, d.title, d.text, 1.0) for d in found]

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns all gold passages for each query, regardless of ``k``; none for a query without context."""
        return [list(self.gold(query)) for query in queries]

    def gold(self, query: Query | str) -> list[Passage]:
        """Returns the gold passages of the question behind ``query``; none for a query without context."""
        context = None if isinstance(query, str) else query.context
        return self._gold.get(context.question, []) if context else []

    def info(self) -> RetrieverInfo:
        """Returns a contextual description, because results depend on the question behind the query."""
        return RetrieverInfo("oracle", len(self._gold), "oracle", contextual=True)


class PagedOracleRetriever:
    """A real retriever that never misses: the i-th search of an episode shows the i-th supporting document.

    The page is that of the real retriever, with the same length and distractors. Only if it lacks the required document,
    that becomes the first passage, and the last one is dropped. So a policy sees pages in the form that it knows, unlike a
    page with all gold passages.
    """

    def __init__(self, oracle: OracleRetriever, real: Retriever) -> None:
        self._oracle = oracle
        self._real = real

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` passages per query; each query of a call counts as a search.

        Raises:
            RetrieverFault: the real search failed.
        """
        pages = await self._real.search(queries, k)
        return [
            self._complete(query, page, i, k)
            for i, (query, page) in enumerate(zip(queries, pages, strict=True))
        ]

    def _complete(self, query: Query | str, page: list[Passage], place: int, k: int) -> list[Passage]:
        gold = self._oracle.gold(query)
        step = query.context.step if isinstance(query, Query) and query.context else 0
        if not gold or (due := gold[min(step + place, len(gold) - 1)]).id in {passage.id for passage in page}:
            return page
        return [due, *page][:k]

    def info(self) -> RetrieverInfo:
        """Returns a contextual description, because results depend on the question and on the turn."""
        real = self._real.info()
        return RetrieverInfo(
            "oracle_paged", real.documents, f"oracle_paged {real.fingerprint}", contextual=True
        )
