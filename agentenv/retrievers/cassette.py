"""``cassette:FILE``: searches recorded from any retriever, and played back byte for byte without it."""

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
    """Answers from a cassette; what it lacks is refused, or asked of ``inner`` and recorded.

    A recorded search is one query at one ``k``, with its context where results depend on it, so batches may be formed
    otherwise in the replay than in the recording.

    Args:
        path: the file.
        inner: the retriever that is asked what the file lacks; None refuses such queries.

    Raises:
        ConfigurationError: no cassette of a retriever, or one of another retriever than ``inner``.
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
        """What the recorded retriever found.

        Raises:
            RetrieverFault: a query is not in the file and there is nobody to ask, or asking failed.
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
        """What the recorded retriever said about itself."""
        return self._info

    def _request(self, query: Query | str, text: str, k: int) -> dict[str, Any]:
        request: dict[str, Any] = {"query": text, "k": k}
        if self._info.contextual and isinstance(query, Query) and query.context is not None:
            request["context"] = asdict(query.context)
        return request
