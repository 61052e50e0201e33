"""``http://HOST:PORT/retrieve``: any server with Search-R1's interface, which does not describe its index."""

import hashlib
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import httpx

from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.errors import RetrieverFault
from agentenv.retrievers.base import texts_of
from agentenv.retrievers.remote import TOKEN_VARIABLE
from agentenv.retrievers.storage.corpus import title_and_text
from agentenv.web.client import HTTPClient, Request, bearer
from agentenv.web.retries import RetryPolicy

ROUTE = "/retrieve"


class SearchR1Retriever:
    """Queries a server that answers ``POST /retrieve`` with ``{"result": [[{"document": ..., "score": ...}]]}``.

    A server may omit scores, as Search-R1's servers for web search do; its passages then have the score 0.

    The interface does not identify the index, so a change of the server's index is not noticed.

    Args:
        url: The address of the route, such as ``http://127.0.0.1:8000/retrieve``.
        timeouts: Time limits and retries of a call.
        transport: The HTTP transport; None uses the network.

    Raises:
        ConfigurationError: ``url`` is not an address.
    """

    def __init__(
        self,
        url: str,
        *,
        timeouts: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._client = HTTPClient(
            url.rstrip("/").removesuffix(ROUTE),
            retry_policy=timeouts,
            headers=partial(bearer, TOKEN_VARIABLE),
            fault=RetrieverFault,
            transport=transport,
        )
        self.url = f"{self._client.base}{ROUTE}"

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` passages per query, in the server's order; none for a blank query.

        Raises:
            RetrieverFault: there was no answer in time, or one with another form.
        """
        texts = texts_of(queries, k)
        if not (asked := [text for text in texts if text]):
            return [[] for _ in texts]
        found = iter(self._rankings(await self._client.call(_request(asked, k)), len(asked)))
        return [next(found)[:k] if text else [] for text in texts]

    def check(self) -> None:
        """Asks one question, so that an unusable server is reported before the first episode.

        Raises:
            RetrieverFault: there was no answer in time, or one with another form.
        """
        self._rankings(self._client.call_sync(_request(["test"], 1)), 1)

    def info(self) -> RetrieverInfo:
        """Returns the address; the documents behind it are unknown."""
        return RetrieverInfo(self.url, 0, hashlib.sha256(f"search-r1\n{self.url}".encode()).hexdigest())

    def _rankings(self, reply: Any, queries: int) -> list[list[Passage]]:
        """Parses the passages for each query from ``reply``."""
        rankings = reply.get("result") if isinstance(reply, dict) else None
        if not isinstance(rankings, list) or len(rankings) != queries:
            raise RetrieverFault(
                f"{self.url} does not speak the interface of Search-R1: no list of {queries} rankings under 'result'."
            )
        try:
            return [[_passage(entry) for entry in ranking] for ranking in rankings]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise RetrieverFault(
                f"{self.url} answered with passages of another form than "
                f'{{"document": {{"contents": TEXT}}, "score": NUMBER}}: {str(rankings)[:80]}.'
            ) from error


def _request(queries: list[str], k: int) -> Request:
    return Request("POST", ROUTE, {"queries": queries, "topk": k, "return_scores": True})


def _passage(entry: Any) -> Passage:
    """Makes a passage of one entry; a document without an id gets one derived from its text.

    Raises:
        TypeError, ValueError, KeyError or AttributeError: the entry has another form.
    """
    document, score = entry["document"], float(entry.get("score", 0.0))
    title, text = document.get("title") or "", document.get("text") or ""
    if not text:
        title, text = title_and_text(title, document["contents"])
    named = next((document[name] for name in ("id", "_id", "docid") if name in document), None)
    key = str(named) if named is not None else hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:12]
    if not (isinstance(title, str) and isinstance(text, str) and math.isfinite(score)):
        raise TypeError("a document has texts, and a score is a number")
    return Passage(key, title, text, score)
