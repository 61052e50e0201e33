"""Calls over HTTP as every client here makes them: bounded in time and size, and made again where that may help.

A redirect is not followed, so that no key reaches another host than the one it is meant for. Keys are sent in headers, and
stand in no error and no log, even where a server repeats them.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.request import proxy_bypass
from weakref import WeakKeyDictionary

import httpx

from agentenv.core.concurrency.backoff import retry_after
from agentenv.errors import AgentEnvError, ConfigurationError, first_line
from agentenv.web.gate import token_in
from agentenv.web.retries import GaveUp, NotReached, RetryPolicy, TryAgain
from agentenv.web.secrets import without_keys

T = TypeVar("T")

_BROKEN = (
    httpx.NetworkError,
    httpx.TimeoutException,
    httpx.RemoteProtocolError,
    httpx.ProxyError,
    httpx.DecodingError,
)
_KEEPALIVE_S = 15.0  # less than servers keep an idle connection, or it closes under our hands
_SHOWN = 200  # characters of a server's own words in an error
_ENCODINGS = ("gzip", "deflate")
_PROXIES = (
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
)
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@dataclass(frozen=True)
class Request:
    """One call, relative to the base address."""

    method: str
    path: str
    body: Any = None
    """Sent as JSON; None sends nothing."""
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """What a server answered, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is something else.
        """
        try:
            return json.loads(self.body)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error

    @property
    def after_s(self) -> float | None:
        """Seconds that the server asks to be left alone; None where it does not say."""
        return retry_after(self.headers.get("retry-after"), self.headers.get("date"))

    @property
    def redirect(self) -> str:
        """Where a redirect leads, as a clause of an error; empty of any other answer."""
        place = self.headers.get("location") if 300 <= self.status < 400 else None
        return f"it leads to {without_keys(place)[:_SHOWN]}, and no redirect is followed" if place else ""

    @property
    def said(self) -> str:
        """The status, and what the server says about it."""
        if self.redirect:
            return f"status {self.status}: {self.redirect}"
        try:
            words = str(self.json()["error"])
        except (ValueError, TypeError, KeyError):
            words = " ".join(self.text.split()) or httpx.codes.get_reason_phrase(self.status)
        return f"status {self.status}: {without_keys(words)[:_SHOWN].rstrip('.')}"


class HTTPClient:
    """Makes calls to one address. It may be used from several event loops; each has its own connections.

    Args:
        base: the address, http or https.
        retry_policy: bounds.
        headers: makes what is sent with every try; never logged, never in an error.
        fault: the error that is raised where the other side fails.
        transport: what carries the calls; None is the network, through the proxies that the environment names.

    Raises:
        ConfigurationError: ``base`` is no such address.
    """

    def __init__(
        self,
        base: str,
        *,
        retry_policy: RetryPolicy | None = None,
        headers: Callable[[], Mapping[str, str]] = dict,
        fault: type[AgentEnvError],
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
        self._headers = headers
        self._fault = fault
        self._transport = transport
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()
        self._keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = (
            WeakKeyDictionary()
        )

    async def call(self, request: Request) -> Any:
        """The JSON that the server answers. The call may be made more than once, so it has to be harmless.

        Raises:
            AgentEnvError: of the kind ``fault``: no usable answer in time, or a refusal that no repetition changes.
        """
        try:
            return await self.retry_policy.run(lambda _: self._hedged(request))
        except GaveUp as error:
            raise self._fault(
                f"{self.base}{request.path} did not answer: {error.tries} tries in {error.seconds:.1f} s, "
                f"the last ended with: {error.reason}."
            ) from None

    def call_sync(self, request: Request) -> Any:
        """`call` for code that cannot await, inside a running event loop or outside of one."""
        return run_in_thread(self.call(request))

    async def send(self, request: Request) -> Response:
        """One try, whatever the status of the answer.

        Raises:
            TryAgain: the connection broke.
            AgentEnvError: of the kind ``fault``: the request could not be sent, or the answer is too long.
        """
        client = await self._client()
        url, most = self.base + request.path, self.retry_policy.most_bytes
        chunks: list[bytes] = []
        try:
            async with client.stream(
                request.method,
                url,
                json=request.body,
                params=dict(request.params) or None,
                headers={"Accept-Encoding": ", ".join(_ENCODINGS)} | dict(self._headers()),
            ) as response:
                self._check_encoding(url, response.headers.get("content-encoding", ""))
                async for chunk in response.aiter_bytes():
                    chunks.append(chunk)
                    # Counted as it comes and not by the header, which may be missing or wrong.
                    most -= len(chunk)
                    if most < 0:
                        raise self._fault(
                            f"{url} answered with more than {self.retry_policy.most_bytes} bytes."
                        )
        except _BROKEN as error:
            said = without_keys(str(error))  # a line of the answer, where that is no HTTP
            said = f" ({said})" if said else ""
            kind = NotReached if isinstance(error, httpx.ConnectError) else TryAgain
            raise kind(f"{type(error).__name__}{said}{through_proxy(url)}") from error
        except (httpx.HTTPError, UnicodeEncodeError) as error:
            raise self._fault(f"{url}: {type(error).__name__}: {error}") from error
        return Response(response.status_code, response.headers, b"".join(chunks))

    def _check_encoding(self, url: str, encoding: str) -> None:
        """Refuses what cannot be unpacked within bounds: a few kilobytes that were packed twice may hold gigabytes.

        Raises:
            AgentEnvError: of the kind ``fault``: the body has another encoding than those that were asked for, or several.
        """
        if encoding.strip().lower() not in ("", "identity", *_ENCODINGS):
            raise self._fault(
                f"{url} answered with the content encoding {without_keys(encoding)[:60]!r}, and only one of "
                f"{', '.join(_ENCODINGS)} is taken."
            )

    async def close(self) -> None:
        """Closes the connections of the running event loop; the next call opens others."""
        if (keeper := self._keepers.get(asyncio.get_running_loop())) is not None:
            await keeper.aclose()

    async def _hedged(self, request: Request) -> Any:
        """One try, or the first answer of two."""
        if self.retry_policy.hedge_after_s is None:
            return await self._try(request)
        tries = {asyncio.create_task(self._try(request))}
        try:
            done, _ = await asyncio.wait(tries, timeout=self.retry_policy.hedge_after_s)
            # Beside the first and not in its place, because the first may still answer before the second.
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
        """The JSON of one try."""
        response = await self.send(request)
        if response.status in self.retry_policy.statuses:
            raise TryAgain(response.said, response.after_s)
        if response.status != httpx.codes.OK:
            raise self._fault(f"{self.base}{request.path}: {response.said}")
        try:
            return response.json()
        except ValueError as error:
            raise self._fault(
                f"{self.base}{request.path} answered with something else than JSON: {response.text[:60]!r}."
            ) from error

    async def _client(self) -> httpx.AsyncClient:
        """The client of the running loop, closed when the loop shuts down its asynchronous generators.

        Raises:
            ConfigurationError: the environment names a proxy or certificates that cannot be used.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            client = self._new_client()
            self._clients[loop] = client
            # A loop closes its generators and knows nothing of clients, so that a generator closes the client.
            self._keepers[loop] = self._keep(loop, client)
            await anext(self._keepers[loop])
        return self._clients[loop]

    def _new_client(self) -> httpx.AsyncClient:
        policy = self.retry_policy
        try:
            return httpx.AsyncClient(
                timeout=httpx.Timeout(policy.timeout_s, connect=policy.connect_s),
                limits=httpx.Limits(
                    max_connections=policy.connections,
                    max_keepalive_connections=policy.connections,
                    keepalive_expiry=_KEEPALIVE_S,
                ),
                transport=self._transport,
            )
        except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
            named = [name for name in (*_PROXIES, *_CERTIFICATES) if os.environ.get(name)]
            raise ConfigurationError(
                f"{self.base} cannot be called: the environment sets {', '.join(named) or 'a proxy'}, and with that no "
                f"connection can be made ({without_keys(first_line(error))}); correct or unset it."
            ) from error

    async def _keep(self, loop: asyncio.AbstractEventLoop, client: httpx.AsyncClient) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._clients.pop(loop, None)
            self._keepers.pop(loop, None)
            await client.aclose()


def through_proxy(url: str) -> str:
    """For an error: by which variable the call went through a proxy; empty where it went there directly."""
    asked = httpx.URL(url)
    if proxy_bypass(asked.netloc.decode()):
        return ""
    schemes = (asked.scheme, "all")
    names = [name for name in _PROXIES if name.lower().partition("_")[0] in schemes and os.environ.get(name)]
    return f" through the proxy of the variable {names[0]}; NO_PROXY names hosts without one" if names else ""


def run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work`` on an event loop of its own, inside a running event loop or outside of one."""
    # In a thread, because a loop that runs already in this one does not let `asyncio.run` start another.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def bearer(variable: str) -> dict[str, str]:
    """The header that carries the token in an environment variable; none where it is not set, or to nothing.

    Raises:
        ConfigurationError: no header can carry it.
    """
    token = token_in(variable) if os.environ.get(variable) else None
    return {"Authorization": f"Bearer {token}"} if token else {}
