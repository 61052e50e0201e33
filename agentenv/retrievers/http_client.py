"""Calls over HTTP as every remote retriever makes them: pooled, bounded in time, repeated where repeating helps.

All calls here ask and change nothing, so a call whose connection broke may be made again.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from agentenv.core.concurrency.backoff import backoff, retry_after
from agentenv.errors import ConfigurationError, RetrieverFault

RETRIED = frozenset({429, 502, 503, 504})
_BROKEN = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)
_KEEPALIVE_S = 15.0  # less than servers keep an idle connection, or it closes under our hands
_SHOWN = 200  # characters of a server's own words in an error


@dataclass(frozen=True)
class RetryPolicy:
    """How long a call is waited for and how often it is made."""

    timeout_s: float = 60.0
    """For the call as a whole, every try and pause included."""
    connect_s: float = 5.0
    """For opening a connection."""
    tries: int = 8
    """At least 1."""
    pause_s: float = 0.2
    """Before the second try; doubles from try to try, each time spread by half either way."""
    longest_pause_s: float = 5.0
    """Bounds the pauses; a server's Retry-After may ask for a longer one."""
    hedge_after_s: float | None = None
    """Without an answer after so long, the same try is made a second time beside the first; None never does."""
    connections: int = 64
    """Open at once to one host, in each event loop."""


@dataclass(frozen=True)
class Request:
    """One call, relative to the base address."""

    method: str
    path: str
    body: Any = None
    params: Mapping[str, str] = field(default_factory=dict)


class _RetryableError(Exception):
    """This try failed and another may not."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class HTTPClient:
    """Makes calls to one address. It may be used from several event loops; each has its own connections.

    Args:
        base: the address, http or https.
        retry_policy: bounds.
        headers: sent with every call; never logged, never in an error.
        transport: what carries the calls; None is the network.

    Raises:
        ConfigurationError: ``base`` is no such address.
    """

    def __init__(
        self,
        base: str,
        *,
        retry_policy: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base = base.rstrip("/")
        self.retry_policy = retry_policy or RetryPolicy()
        try:
            url = httpx.URL(self.base)
        except httpx.InvalidURL as error:
            raise ConfigurationError(f"{base!r} is no address: {error}.") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigurationError(f"{base!r} is no address; write http://HOST:PORT.")
        if url.userinfo:  # it would stand in every error
            raise ConfigurationError(
                f"The address of {url.host} holds a password; give it in the environment."
            )
        self._headers = dict(headers or {})
        self._transport = transport
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()
        self._keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = (
            WeakKeyDictionary()
        )
        self._random = random.Random()

    async def call(self, request: Request) -> Any:
        """The JSON that the server answers.

        Raises:
            RetrieverFault: no usable answer in time, or a refusal that no repetition changes.
        """
        began = time.monotonic()
        reason, tries = "", 0
        try:
            async with asyncio.timeout(self.retry_policy.timeout_s):
                for tries in range(1, self.retry_policy.tries + 1):
                    try:
                        return await self._try_hedged(request)
                    except _RetryableError as again:
                        reason, after_s = str(again), again.after_s
                    if tries < self.retry_policy.tries:
                        await asyncio.sleep(self._pause(tries, after_s))
        except TimeoutError:
            reason = reason or "no answer yet"
        raise RetrieverFault(
            f"{self.base}{request.path} did not answer: {tries} tries in {time.monotonic() - began:.1f} s, "
            f"the last ended with: {reason}."
        )

    def call_sync(self, request: Request) -> Any:
        """`call` for code that cannot await, inside a running event loop or outside of one."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self.call(request)).result()

    async def _try_hedged(self, request: Request) -> Any:
        """One try, or the first answer of two."""
        if self.retry_policy.hedge_after_s is None:
            return await self._try(request)
        tries = {asyncio.create_task(self._try(request))}
        try:
            done, _ = await asyncio.wait(tries, timeout=self.retry_policy.hedge_after_s)
            if not done:
                tries.add(asyncio.create_task(self._try(request)))
            pending = set(tries)
            while True:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                good = [task for task in done if task.exception() is None]
                if good or not pending:
                    return (good or list(done))[0].result()
        finally:
            for task in tries:
                task.cancel()

    async def _try(self, request: Request) -> Any:
        client = await self._client()
        try:
            response = await client.request(
                request.method,
                self.base + request.path,
                json=request.body,
                params=dict(request.params) or None,
            )
        except _BROKEN as error:
            raise _RetryableError(f"{type(error).__name__}{f' ({error})' if str(error) else ''}") from error
        except (httpx.HTTPError, UnicodeEncodeError) as error:
            raise RetrieverFault(f"{self.base}{request.path}: {type(error).__name__}: {error}") from error
        if response.status_code in RETRIED:
            raise _RetryableError(_words(response), retry_after(response.headers.get("retry-after")) or 0.0)
        if response.status_code != httpx.codes.OK:
            raise RetrieverFault(f"{self.base}{request.path}: {_words(response)}")
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise RetrieverFault(
                f"{self.base}{request.path} answered with something else than JSON: {response.text[:60]!r}."
            ) from error

    def _pause(self, tries: int, after_s: float) -> float:
        longest_s = self.retry_policy.longest_pause_s
        return max(
            after_s, backoff(tries, first_s=self.retry_policy.pause_s, longest_s=longest_s, rng=self._random)
        )

    async def _client(self) -> httpx.AsyncClient:
        """The client of the running loop, closed when the loop shuts down its asynchronous generators."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            retry_policy = self.retry_policy
            client = httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(retry_policy.timeout_s, connect=retry_policy.connect_s),
                limits=httpx.Limits(
                    max_connections=retry_policy.connections,
                    max_keepalive_connections=retry_policy.connections,
                    keepalive_expiry=_KEEPALIVE_S,
                ),
                transport=self._transport,
            )
            self._clients[loop] = client
            self._keepers[loop] = self._keep(loop, client)
            await anext(self._keepers[loop])
        return self._clients[loop]

    async def _keep(self, loop: asyncio.AbstractEventLoop, client: httpx.AsyncClient) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._clients.pop(loop, None)
            self._keepers.pop(loop, None)
            await client.aclose()


def _words(response: httpx.Response) -> str:
    """The status and what the server says about it."""
    try:
        said = str(response.json()["error"])
    except (ValueError, TypeError, KeyError, RecursionError):
        said = " ".join(response.text.split()) or response.reason_phrase
    return f"status {response.status_code}: {said[:_SHOWN].rstrip('.')}"
