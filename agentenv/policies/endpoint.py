"""A client of OpenAI-compatible chat endpoints: retries, rate limit, budget, usage.

``MODEL@URL#option=value&...`` names an endpoint; the options are the fields of `Endpoint`. The part after #
never leaves this machine. The key comes from the environment variable `KEY_VARIABLE` alone, is sent to the
named address and stands in no message, file or log.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from math import inf
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakKeyDictionary

from agentenv.errors import ConfigurationError, ContextTooSmall, EndpointFault, UnknownName
from agentenv.web.client import HTTPClient, Request, Response, bearer
from agentenv.web.retries import GaveUp, RetryPolicy, TryAgain

KEY_VARIABLE = "OPENAI_API_KEY"

_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_MISCONFIGURED = frozenset({301, 302, 307, 308, 401, 403, 404})
_LONGEST_WAIT_S = 20.0  # of one back-off that the server did not ask for

ChatMessage = Mapping[str, str]


@dataclass(frozen=True)
class Endpoint:
    """Where a model is served, and how hard it may be asked."""

    model: str
    """Name of the model there."""
    url: str
    """Base address; ``/chat/completions`` is appended."""
    concurrency: int = 8
    """Requests under way at a time."""
    per_minute: float = 0.0
    """Requests that may begin in a minute; 0 is no limit."""
    tokens_per_minute: float = 0.0
    """Tokens, of prompts and replies, that may be used in a minute; 0 is no limit. What a reply used delays the next."""
    max_requests: int = 0
    """Requests in all, retries included; 0 is no limit."""
    max_total_tokens: int = 0
    """Tokens in all, of prompts and replies; 0 is no limit. Counted as the endpoint reports them."""
    max_cost: float = 0.0
    """What may be spent in all, in the unit of the prices; 0 is no limit."""
    prompt_price: float = 0.0
    """Price of a million tokens of prompts; 0 counts no cost for them."""
    reply_price: float = 0.0
    """Price of a million tokens of replies."""
    retries: int = 6
    """Further attempts after a failure that may pass."""
    backoff_s: float = 0.5
    """Wait before the first of them; doubles each time, with jitter."""
    deadline_s: float = 300.0
    """Seconds for one reply, retries included; waiting for a free place among the ``concurrency`` is not."""
    limit_field: str = "max_tokens"
    """Field that bounds the reply; newer OpenAI models want ``max_completion_tokens``."""
    turn_tokens: int = 1024
    """Tokens of one reply of a policy."""
    context_tokens: int = 16_384
    """Bound of a policy's episode, estimated as the endpoint's tokens cannot be seen."""

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """The endpoint that ``MODEL@URL#options`` names.

        Raises:
            ConfigurationError: no model or no http address, a key or password in it, or an option that does
                not exist or is no number.
        """
        named, _, options = text.partition("#")
        model, _, url = named.rpartition("@http")
        try:
            parts = urlsplit(f"http{url}")
            whole = bool(model) and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # brackets without their pair, or a port that does not exist
            whole = False
        if not whole:
            raise ConfigurationError(
                f"An endpoint is written MODEL@URL, as in gpt-4.1-mini@https://api.openai.com/v1, not {named!r}."
            )
        if "@" in parts.netloc or "key=" in parts.query.lower():
            raise ConfigurationError(
                f"Leave passwords and keys out of the address: set the environment variable {KEY_VARIABLE}."
            )
        return cls(model, f"http{url}", **_options(options))

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if isinstance(f.default, int | float)):
            value, least = getattr(self, name), 1 if name == "concurrency" else 0
            if not least <= value < inf:
                raise ConfigurationError(
                    f"The {name} of an endpoint is {value}; it must be finite and at least {least}."
                )
        if self.limit_field not in _LIMIT_FIELDS:
            raise UnknownName.among("limit_field of an endpoint", self.limit_field, _LIMIT_FIELDS)
        if self.max_cost and not self.prompt_price + self.reply_price:
            raise ConfigurationError("A budget max_cost needs prompt_price and reply_price.")

    @property
    def chat_url(self) -> str:
        """The address that requests go to, query string included."""
        parts = urlsplit(self.url)
        return parts._replace(path=parts.path.rstrip("/") + "/chat/completions").geturl()


def _options(text: str) -> dict[str, Any]:
    kinds: dict[str, type[Any]] = {
        f.name: type(f.default) for f in fields(Endpoint) if f.name not in ("model", "url")
    }
    found: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in kinds:
            raise UnknownName.among("option of an endpoint", name, kinds)
        try:
            found[name] = kinds[name](value)
        except ValueError:
            raise ConfigurationError(
                f"The option {name} of an endpoint is a number, not {value!r}."
            ) from None
    return found


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answered."""

    text: str
    finish: str
    """As the endpoint says it: ``stop``, ``length``, ..."""
    stop: str | None = None
    """The stop string that ended it, where the endpoint says so (vLLM)."""


@dataclass(slots=True)
class Usage:
    """What has been asked so far."""

    requests: int = 0
    """Attempts, retries included."""
    retries: int = 0
    failures: int = 0
    """Replies that were given up."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unmetered: int = 0
    """Replies that came without a count of tokens."""
    cost: float = 0.0
    """By the prices of the endpoint."""


class Chat(Protocol):
    """What a judge needs of a model."""

    @property
    def model(self) -> str:
        """Name for results and caches."""

    async def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> Reply:
        """One reply.

        Raises:
            EndpointFault: no reply could be had.
        """


@dataclass
class ChatClient:
    """Asks one endpoint. May be used from several event loops in turn."""

    endpoint: Endpoint
    usage: Usage = field(default_factory=Usage)
    _slots: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = field(
        default_factory=WeakKeyDictionary, repr=False
    )
    _next_start: float = 0.0
    spent: str = ""
    """Which budget refused a request; empty as long as none has."""

    def __post_init__(self) -> None:
        endpoint = self.endpoint
        policy = RetryPolicy(
            timeout_s=endpoint.deadline_s,
            connect_s=endpoint.deadline_s,
            tries=endpoint.retries + 1,
            pause_s=endpoint.backoff_s,
            longest_pause_s=_LONGEST_WAIT_S,
            connections=endpoint.concurrency,
            statuses=_RETRIED,
        )
        headers = partial(bearer, KEY_VARIABLE)
        self._http = HTTPClient(endpoint.chat_url, retry_policy=policy, headers=headers, fault=EndpointFault)

    @property
    def model(self) -> str:
        """The model's name and its address."""
        return f"{self.endpoint.model}@{self.endpoint.url}"

    def usage_report(self) -> dict[str, float]:
        """The usage as JSON."""
        return asdict(self.usage)

    async def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> Reply:
        """One reply to ``messages``.

        Raises:
            ContextTooSmall: the endpoint says that the messages do not fit the model's context.
            ConfigurationError: the endpoint refuses the key, or has no such address or model.
            EndpointFault: it failed or refused, did not answer in time, or the budget is spent.
        """
        body = {
            "model": self.endpoint.model,
            "messages": [dict(message) for message in messages],
            self.endpoint.limit_field: max_tokens,
            "temperature": temperature,
        }
        body |= {"top_p": top_p} if top_p != 1.0 else {}
        body |= {"stop": list(stop)} if stop else {}
        body |= {"seed": seed} if seed is not None else {}
        try:
            async with self._slot():
                return await self._http.retry_policy.run(partial(self._attempt, body))
        except (GaveUp, EndpointFault) as error:
            self.usage.failures += 1
            if isinstance(error, EndpointFault):
                raise
            said = f"gave no reply within {self.endpoint.deadline_s:g} s."
            raise EndpointFault(
                f"{self.endpoint.url} "
                + (said if error.late else f"failed {error.tries} times; the last time: {error.reason}")
            ) from None

    async def _start(self) -> None:
        """Waits for its turn under the rate limit, and checks the budget."""
        now = time.monotonic()
        start = max(now, self._next_start)
        if self.endpoint.per_minute:
            self._next_start = start + 60.0 / self.endpoint.per_minute
        if start > now:
            await asyncio.sleep(start - now)
        spent = self.usage.prompt_tokens + self.usage.completion_tokens
        for limit, used, what in (
            (self.endpoint.max_requests, self.usage.requests, "requests"),
            (self.endpoint.max_total_tokens, spent, "tokens"),
            (self.endpoint.max_cost, self.usage.cost, "in cost"),
        ):
            if limit and used >= limit:
                self.spent = f"The budget of {limit:g} {what} for {self.endpoint.url} is spent."
                raise EndpointFault(self.spent)
        self.usage.requests += 1

    async def _attempt(self, body: Mapping[str, Any], tries: int) -> Reply:
        self.usage.retries += tries > 1
        await self._start()
        response = await self._http.send(Request("POST", "", body))
        if response.status == 200:
            return self._read(response)
        reason, code = _reason(response)
        key = os.environ.get(KEY_VARIABLE)
        said = f"{response.status} {reason}".replace(key or "\0", "***")
        if code == "context_length_exceeded" or "maximum context length" in reason:
            raise ContextTooSmall(f"The messages do not fit the context of {self.endpoint.model}: {said}")
        if response.status in _MISCONFIGURED:
            hint = f" (the environment variable {KEY_VARIABLE} is not set)" if not key else ""
            raise ConfigurationError(f"{self.endpoint.url} refuses {self.endpoint.model!r}: {said}{hint}")
        if response.status in _RETRIED and code != "insufficient_quota":
            if (
                response.after_s is not None
            ):  # the whole client waits: other requests would be refused as well
                self._next_start = max(self._next_start, time.monotonic() + response.after_s)
            raise TryAgain(said, response.after_s)
        raise EndpointFault(f"{self.endpoint.url} refuses the request: {said}")

    def _read(self, response: Response) -> Reply:
        try:
            answer = response.json()
            choice = answer["choices"][0]
            text = choice["message"]["content"] or ""
            text = text.encode(errors="replace").decode()  # half a surrogate pair cannot be sent back
            usage = answer.get("usage") or {}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise TryAgain(f"a reply that is no chat completion ({type(error).__name__}: {error})") from None
        self._account(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))
        self.usage.unmetered += not usage
        stop = choice.get("stop_reason")
        return Reply(text, str(choice.get("finish_reason")), stop if isinstance(stop, str) else None)

    def _account(self, prompt_tokens: int, reply_tokens: int) -> None:
        """Books what a reply used, and delays the next request by it."""
        endpoint = self.endpoint
        self.usage.prompt_tokens += prompt_tokens
        self.usage.completion_tokens += reply_tokens
        self.usage.cost += (prompt_tokens * endpoint.prompt_price + reply_tokens * endpoint.reply_price) / 1e6
        if endpoint.tokens_per_minute:
            wait = 60.0 * (prompt_tokens + reply_tokens) / endpoint.tokens_per_minute
            self._next_start = max(self._next_start, time.monotonic()) + wait

    def _slot(self) -> asyncio.Semaphore:
        """What bounds the requests under way, of the running event loop."""
        return self._slots.setdefault(
            asyncio.get_running_loop(), asyncio.Semaphore(self.endpoint.concurrency)
        )


def _reason(response: Response) -> tuple[str, str]:
    """What the server says of its refusal, shortened, and the code of it."""
    with contextlib.suppress(ValueError):
        answer = response.json()
        error = answer.get("error", answer) if isinstance(answer, dict) else answer
        if isinstance(error, dict):
            return " ".join(str(error.get("message", "")).split())[:200], str(error.get("code") or "")
    return " ".join(response.text.split())[:200], ""
