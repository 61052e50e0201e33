"""``cassette:FILE``: records the searches of any retriever, and replays them byte for byte without it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentenv.core.io.cassette import Cassette
from agentenv.core.protocols import Retriever
from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.errors import CassetteMiss, ConfigurationError, RetrieverFault
from agentenv.retrievers.base import found_by, passage_of, texts_of


class CassetteRetriever:
    """Answers from a cassette. Missing queries are refused, or searched by ``inner`` and recorded.

    One record is a query with its ``k``, and its context if results depend on it. So a replay may form other batches than
    the recording.

    Args:
        path: The file.
        inner: The retriever for queries that the file lacks; None refuses them.

    Raises:
        ConfigurationError: the file is not a cassette of a retriever, or of another one than ``inner``.
    """

    def __init__(self, path: Path | str, inner: Retriever | None = None) -> None:
        path = Path(path)
        self.inner = inner
        if inner is None:
            self._tape = Cassette.replay(path)
        else:
            self._tape = Cassette.record(path, {"retriever": asdict(inner.info())})
        try:
            self._info = RetrieverInfo(**self._tape.about["retriever"])
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"{path} was not recorded from a retriever.") from error

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns what the recorded retriever found.

        Raises:
            RetrieverFault: a query is not in the file and there is no ``inner``, or that failed.
        """
        texts = texts_of(queries, k)
        requests = [self._request(query, text, k) for query, text in zip(queries, texts, strict=True)]
        missing = [n for n, request in enumerate(requests) if texts[n] and request not in self._tape]
        if missing and self.inner is not None:
            found = await found_by(self.inner, [queries[n] for n in missing], k)
            for n, passages in zip(missing, found, strict=True):
                self._tape.add(requests[n], [asdict(passage) for passage in passages])
        try:
            return [
                [passage_of(fields) for fields in self._tape.find(request)] if text else []
                for text, request in zip(texts, requests, strict=True)
            ]
        except CassetteMiss as error:
            raise RetrieverFault(str(error)) from error
        except (TypeError, ValueError) as error:
            raise RetrieverFault(f"{self._tape.path} holds a reply of another shape: {error}") from error

    def info(self) -> RetrieverInfo:
        """Returns the recorded retriever's description of itself."""
        return self._info

    def _request(self, query: Query | str, text: str, k: int) -> dict[str, Any]:
        request: dict[str, Any] = {"query": text, "k": k}
        if self._info.contextual and isinstance(query, Query) and query.context is not None:
            request["context"] = asdict(query.context)
        return request
