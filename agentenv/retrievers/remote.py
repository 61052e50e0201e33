"""``http:URL``: a retriever behind `agentenv retriever serve`, which an environment uses like a local one."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import httpx

from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.errors import RetrieverFault
from agentenv.retrievers.base import passage_of, texts_of
from agentenv.web.client import HTTPClient, Request, bearer
from agentenv.web.retries import RetryPolicy

TOKEN_VARIABLE = "AGENTENV_RETRIEVER_TOKEN"
"""Environment variable with the bearer token that server and client share."""
_NO_SUCH_ROUTE = (404, 405, 501)  # status codes of servers that have only the routes of Search-R1
_PASSAGES = 32_768  # largest number of passages per request; more are fetched by several requests in turn


class SearchReply(NamedTuple):
    """Passages by query, and the shards that did not answer."""

    passages: list[list[Passage]]
    missing: tuple[str, ...] = ()


class RemoteRetriever:
    """Queries a retrieval server. Faults, deadlines and retries are those of `HTTPClient`.

    Args:
        url: The address of the server; ``http://HOST:PORT/corpora/NAME`` selects one of several corpora.
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
            url,
            retry_policy=timeouts,
            headers=partial(bearer, TOKEN_VARIABLE),
            fault=RetrieverFault,
            transport=transport,
        )
        self.url = self._client.base
        self._card: dict[str, Any] | None = None

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` passages per query, best first.

        Raises:
            RetrieverFault: there was no complete answer in time, or the server's index has changed since the first answer.
        """
        return (await self._search(queries, k, partial=False)).passages

    async def search_partial(self, queries: Sequence[Query | str], k: int) -> SearchReply:
        """Like `search`, but if shards behind the server fail, returns what the others found and the failed ones."""
        return await self._search(queries, k, partial=True)

    async def documents(
        self, ids: Sequence[str] = (), urls: Sequence[str] = ()
    ) -> list[dict[str, Any] | None]:
        """Returns whole documents by id, then by address; None for one that the corpus lacks.

        Raises:
            RetrieverFault: there was no answer in time.
        """
        body = {"ids": list(ids), "urls": list(urls)}
        reply = await self._client.call(Request("POST", "/access", body))
        result = self._field(reply, "result", list)
        return self._check_length(result, len(ids) + len(urls))

    def info(self) -> RetrieverInfo:
        """Returns the server's description of its retriever.

        Raises:
            RetrieverFault: there was no answer in time.
        """
        card = self.card()
        fields = ("name", "documents", "fingerprint", "contextual")
        return RetrieverInfo(*(self._field(card, name, object) for name in fields))

    def card(self) -> dict[str, Any]:
        """Returns `info`, and how the index was made if the retriever states it; requested once."""
        if self._card is None:
            try:
                self._card = self._checked_card(self._client.call_sync(Request("GET", "/v1/info")))
            except RetrieverFault as fault:
                if not any(f"status {status}" in str(fault) for status in _NO_SUCH_ROUTE):
                    raise
                raise RetrieverFault(
                    f"{fault}. Name a server of Search-R1 by its route, {self.url}/retrieve"
                ) from None
        return self._card

    async def _search(self, queries: Sequence[Query | str], k: int, *, partial: bool) -> SearchReply:
        texts = texts_of(queries, k)
        if not any(texts):
            return SearchReply([[] for _ in texts])
        if self._card is None:
            self._card = self._checked_card(await self._client.call(Request("GET", "/v1/info")))
        wanted = [_sent_query(query, text, self._card) for query, text in zip(queries, texts, strict=True)]
        most = max(1, _PASSAGES // k)  # servers limit the passages of one request
        parts = [
            await self._ask(wanted[n : n + most], k, partial=partial) for n in range(0, len(wanted), most)
        ]
        missing = dict.fromkeys(shard for part in parts for shard in part.missing)
        return SearchReply([passages for part in parts for passages in part.passages], tuple(missing))

    async def _ask(self, wanted: list[Any], k: int, *, partial: bool) -> SearchReply:
        assert self._card is not None
        body = {"queries": wanted, "k": k, "partial": partial}
        reply = await self._client.call(Request("POST", "/v1/search", body))
        if (index := self._field(reply, "index", str)) != self._card["fingerprint"]:
            raise RetrieverFault(
                f"{self.url} now serves index {index[:12]}, not {self._card['fingerprint'][:12]} as before; "
                f"start again, so that no run mixes the two."
            )
        results = self._check_length(self._field(reply, "results", list), len(wanted))
        try:
            passages = [[passage_of(fields) for fields in found] for found in results]
        except (TypeError, ValueError) as error:
            raise RetrieverFault(f"{self.url} answered with passages of another shape: {error}.") from error
        missing = self._field(reply, "missing", list)
        if not all(isinstance(shard, str) for shard in missing):
            raise RetrieverFault(
                f"{self.url} names missing shards {str(missing)[:80]}, which are no list of names."
            )
        return SearchReply(passages, tuple(missing))

    def _checked_card(self, card: Any) -> dict[str, Any]:
        """Returns ``card`` if it has the form that a retrieval server sends."""
        self._field(card, "fingerprint", str)
        return dict(card)

    def _field(self, reply: Any, name: str, kind: type) -> Any:
        if not isinstance(reply, dict) or not isinstance(reply.get(name), kind):
            raise RetrieverFault(
                f"{self.url} is no retrieval server of this version: no {name!r} in its answer."
            )
        return reply[name]

    def _check_length(self, results: list[Any], length: int) -> list[Any]:
        if len(results) != length:
            raise RetrieverFault(f"{self.url} gave {len(results)} results for {length} questions.")
        return results


def _sent_query(query: Query | str, text: str, card: dict[str, Any]) -> str | dict[str, Any]:
    """Returns what is sent for a query: its context contains gold answers, and is sent only if results depend on it."""
    if card.get("contextual") and isinstance(query, Query) and query.context is not None:
        return {"text": text, "context": asdict(query.context)}
    return text
