"""``web:NAME``: a web search engine with a JSON API, which an environment uses like a corpus.

Results change over time and may contain a benchmark's answers verbatim: record them with a cassette, and block hosts if this
matters.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.errors import ConfigurationError, RetrieverFault, check_known
from agentenv.retrievers.base import texts_of
from agentenv.web.client import HTTPClient, Request
from agentenv.web.retries import RetryPolicy

BLOCKED_VARIABLE = "AGENTENV_WEB_BLOCKED"
"""Environment variable with hosts, separated by commas, whose pages are never returned."""

_MOST_CONCURRENT = 8  # largest number of concurrent queries to one engine
_MAX_PAGE = 100  # largest number of results of one query
# engines refuse longer queries, which may be part of an address; a refusal would mask the episode
_QUERY_CHARS = 500


@dataclass(frozen=True)
class SearchEngine:
    """How one engine is queried, and how its answer is parsed."""

    key_variable: str | None
    """The environment variable with the key; None if no key is needed."""
    key_header: str
    """The header with the key."""
    url_variable: str
    """The environment variable with the address."""
    url: str | None
    """The address if the variable is not set; None makes the variable mandatory."""
    request: Callable[[str, int], Request]
    """Makes a request from a query and k."""
    results: str
    """The field of the answer that contains the list of results."""
    fields: tuple[str, str, str]
    """The fields of a result with address, title and text."""


ENGINES: Mapping[str, SearchEngine] = {
    "serper": SearchEngine(
        key_variable="SERPER_API_KEY",
        key_header="X-API-KEY",
        url_variable="SERPER_URL",
        url="https://google.serper.dev",
        request=lambda text, k: Request("POST", "/search", {"q": text, "num": min(k, _MAX_PAGE)}),
        results="organic",
        fields=("link", "title", "snippet"),
    ),
    "searxng": SearchEngine(
        key_variable=None,
        key_header="",
        url_variable="SEARXNG_URL",
        url=None,
        request=lambda text, k: Request("GET", "/search", params={"q": text, "format": "json"}),
        results="results",
        fields=("url", "title", "content"),
    ),
}


class WebRetriever:
    """Asks a search engine, one call per query. A passage is a result, with its address as the id and its snippet as text.

    The score is 1 / rank, because engines return no comparable scores.

    Args:
        name: One of `ENGINES`.
        client: Makes the calls.
        blocked: Hosts whose pages, and those of their subdomains, are left out.
    """

    def __init__(self, name: str, client: HTTPClient, *, blocked: Collection[str] = ()) -> None:
        self._name = name
        self._engine = ENGINES[name]
        self._client = client
        self._blocked = tuple(host.lower().lstrip(".") for host in blocked if host)

    @classmethod
    def named(
        cls,
        name: str,
        *,
        retry_policy: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> Self:
        """Makes the retriever of the engine ``name``, with key and address from environment variables.

        Raises:
            UnknownName: there is no such engine.
            ConfigurationError: the variables contain no key or no address for it.
        """
        check_known("search engine", name, ENGINES)
        engine = ENGINES[name]
        url = os.environ.get(engine.url_variable) or engine.url
        if url is None:
            raise ConfigurationError(f"web:{name} needs the address of an instance in {engine.url_variable}.")
        headers = {}
        if engine.key_variable is not None:
            key = os.environ.get(engine.key_variable)
            if not key:
                raise ConfigurationError(f"web:{name} needs a key in {engine.key_variable}.")
            headers = {engine.key_header: key}
        blocked = os.environ.get(BLOCKED_VARIABLE, "").replace(" ", "").split(",")
        client = HTTPClient(
            url, retry_policy=retry_policy, headers=lambda: headers, fault=RetrieverFault, transport=transport
        )
        return cls(name, client, blocked=blocked)

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` results per query, in the engine's order; none for a blank query.

        Raises:
            RetrieverFault: the engine did not answer, refused, or answered in another form.
        """
        texts = tuple(text[:_QUERY_CHARS].rstrip() for text in texts_of(queries, k))
        places = asyncio.Semaphore(_MOST_CONCURRENT)

        async def ask(text: str) -> list[Passage]:
            async with places:
                return self._read(await self._client.call(self._engine.request(text, k)), k)

        distinct = [text for text in dict.fromkeys(texts) if text]
        # The first failure cancels the others, because nobody waits for them any more, and each may cost money.
        found = dict(zip(distinct, await gather_all(map(ask, distinct)), strict=True))
        return [list(found.get(text, ())) for text in texts]

    def info(self) -> RetrieverInfo:
        """Returns the engine's name; the size of the web is unknown."""
        settings = "\n".join(["web", self._name, *sorted(self._blocked)])
        return RetrieverInfo(self._name, 0, hashlib.sha256(settings.encode()).hexdigest())

    def _read(self, answer: Any, k: int) -> list[Passage]:
        results = answer.get(self._engine.results, []) if isinstance(answer, dict) else None
        if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
            raise RetrieverFault(f"{self._name} answered in another shape: no list {self._engine.results!r}.")
        passages: dict[str, Passage] = {}
        for result in results:
            url, title, text = (str(result.get(name) or "") for name in self._engine.fields)
            if url and url not in passages and not self._is_blocked(url):
                passages[url] = Passage(url, title, text, 1 / (len(passages) + 1))
        return list(passages.values())[:k]

    def _is_blocked(self, url: str) -> bool:
        try:
            host = (urlsplit(url).hostname or "").lower()
        except ValueError:
            return True
        return any(host == blocked or host.endswith(f".{blocked}") for blocked in self._blocked)
