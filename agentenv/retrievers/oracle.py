"""``OracleRetriever``: the supporting documents of whatever question is asked. An upper bound, never a system."""

from collections.abc import Iterable, Mapping, Sequence

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
            ConfigurationError: a question names no supporting document, or one that the corpus lacks.
        """
        self._gold: dict[str, list[Passage]] = {}
        for task in tasks:
            ids = task.data.get("supporting_ids", ())
            if not ids or any(i not in documents for i in ids):
                raise ConfigurationError(f"question {task.id!r} names no supporting documents of this corpus")
            found = [documents[i] for i in ids]
            self._gold[task.question] = [Passage(d.id, d.title, d.text, 1.0) for d in found]

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """The gold passages for each query, however many; nothing for a query without context."""
        contexts = [None if isinstance(query, str) else query.context for query in queries]
        return [list(self._gold.get(context.question, [])) if context else [] for context in contexts]

    def info(self) -> RetrieverInfo:
        """Contextual: results depend on the question behind the query."""
        return RetrieverInfo("oracle", len(self._gold), "oracle", contextual=True)
