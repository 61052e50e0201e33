"""Searches for many queries in blocks, because each search of a retriever has a deadline, however many queries it has."""

from collections.abc import Iterator, Sequence

from agentenv.core.env import run_sync
from agentenv.core.protocols import Retriever
from agentenv.core.types import Passage
from agentenv.retrievers.base import found_by

_AT_ONCE = 256


def search_all(retriever: Retriever, queries: Sequence[str], k: int) -> Iterator[list[Passage]]:
    """Yields at most ``k`` passages for each of ``queries``, in order.

    Raises:
        RetrieverFault: a search failed or missed its deadline.
    """
    for start in range(0, len(queries), _AT_ONCE):
        yield from run_sync(found_by(retriever, queries[start : start + _AT_ONCE], k))
