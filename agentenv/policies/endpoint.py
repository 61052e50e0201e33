"""A client of models behind endpoints: retries, rate limit, budget, usage.

It asks an address that speaks a wire form of OpenAI, or another service through any-llm (`Endpoint`). Keys are sent to the
named service and stand in no message, file or log.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol, Required, TypedDict, Unpack
from weakref import WeakKeyDictionary

from agentenv.errors import ConfigurationError, ContextTooSmall, EndpointFault, EndpointRefusal
from agentenv.policies.endpoint_spec import KEY_VARIABLE, Endpoint
from agentenv.policies.refusals import Refused, as_refusal, read_refusal
from agentenv.policies.silence import SentRequest, Silence
from agentenv.policies.wires import WIRES, ChatMessage, ModelRequest, Reply, TokenUsage, as_json, error_in
from agentenv.web.client import HTTPClient, Request, Response, bearer
from agentenv.web.retries import GaveUp, RetryPolicy, TryAgain

_WRONG_KEY = 401
_MISCONFIGURED = frozenset({*range(300, 400), _WRONG_KEY, 403, 404})
_RETRIED = frozenset({408, 409, 425, 429, *range(500, 600)})
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_PATIENCE = 2  # deadlines for which a service that has answered before may be silent
_LONGEST_WAIT_S = 20.0  # of one back-off that the server did not ask for


@dataclass(slots=True)
class Usage:
    """What has been asked so far."""

    requests: int = 0
    """Attempts, retries included."""
    retries: int = 0
    failures: int = 0
    """Replies that were given up."""
    refusals: int = 0
    """Requests that a content filter refused."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Tokens of the completions in which the model thought."""
    cached_tokens: int = 0
    """Tokens of the prompts that the service had kept; their price may be lower than what is counted."""
    unmetered: int = 0
    """Replies that came without a count of tokens."""
    cost: float = 0.0
    """By the prices of the endpoint."""


class ChatOptions(TypedDict, total=False):
    """How a reply is sampled; what is left out has the default of `ChatClient.complete`."""

    max_tokens: Required[int]
    temperature: float
    top_p: float
    stop: Sequence[str]
    seed: int | None


class Chat(Protocol):
    """What a judge needs of a model."""

    @property
    def model(self) -> str:
        """Name for results and caches."""

    async def complete(self, messages: Sequence[ChatMessage], **options: Unpack[ChatOptions]) -> Reply:
        """Asks for one reply to ``messages``.

        Raises:
            EndpointFault: no reply could be had.
        """


class Backend(Protocol):
    """Carries one request to a model."""

    async def send(self, body: Mapping[str, Any]) -> Response:
        """One try, whatever the status of the answer.

        Raises:
            TryAgain: the connection broke.
            AgentEnvError: the request could not be sent.
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
    answered: bool = False
    """Whether it has given a reply, so that address, key, model and fields are right."""
    spent: str = ""
    """The budget that has refused a request; empty as long as none has."""

    def __post_init__(self) -> None:
        endpoint = self.endpoint
        self._wire = WIRES[endpoint.wire]
        self._settings = endpoint.request_settings
        self._silence = Silence(_PATIENCE * endpoint.deadline_s)
        self._retry_policy = RetryPolicy(
            timeout_s=endpoint.deadline_s,
            connect_s=endpoint.deadline_s,
            tries=endpoint.retries + 1,
            pause_s=endpoint.backoff_s,
            longest_pause_s=_LONGEST_WAIT_S,
            connections=endpoint.concurrency,
            statuses=_RETRIED,
        )
        self._backend = self._opened()

    def _opened(self) -> Backend:
        if not self.endpoint.provider:
            return _Address(self.endpoint, self._retry_policy)
        from agentenv.policies.providers import Provider

        return Provider(self.endpoint)

    @property
    def model(self) -> str:
        """The model's name and its address."""
        return self.endpoint.name

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
        tools: Sequence[Mapping[str, Any]] = (),
        template_options: Mapping[str, Any] | None = None,
    ) -> Reply:
        """One reply to ``messages``, which are in the form of Chat Completions.

        Raises:
            ContextTooSmall: the endpoint says that the messages do not fit the model's context.
            ConfigurationError: the endpoint refuses the key or a field, has no such address or model, has never been
                reached, or has answered none of its first requests.
            EndpointRefusal: a content filter refuses the messages.
            EndpointFault: it failed or refused, did not answer in time, has stopped answering, or the budget is spent.
        """
        wanted = ModelRequest(messages, max_tokens, temperature, top_p, stop, seed, tools, template_options)
        body, since = self._wire.body(self._settings, wanted), time.monotonic()
        try:
            async with self._slot():
                if (last := self._silence.hopeless(since)) is not None:
                    raise self._unasked(last)
                with self._silence.request() as request:
                    return await self._retry_policy.run(partial(self._attempt, body, len(messages), request))
        except EndpointRefusal:
            self.usage.refusals += 1
            raise
        except EndpointFault:
            self.usage.failures += 1
            raise
        except GaveUp as error:
            self.usage.failures += 1
            raise self._given_up(error) from None

    def _given_up(self, error: GaveUp) -> ConfigurationError | EndpointFault:
        """What is raised for a request that had no reply."""
        address, silence = self.endpoint.address, self._silence
        if not (error.reached or silence.heard):
            return ConfigurationError(
                f"{address} cannot be reached, tried {error.tries} times: {error.reason}; write the address of a server "
                "that runs"
            )
        if silence.lasting and not silence.heard:
            within = f" within {self.endpoint.deadline_s:g} s each" if error.late else ""
            return ConfigurationError(
                f"{address} takes requests and has answered none of {silence.count}{within}; the last time: {error.reason}; "
                "see what its server does, or raise deadline_s of the address"
            )
        said = f"gave no reply within {self.endpoint.deadline_s:g} s; the last time: {error.reason}"
        return EndpointFault(
            f"{address} "
            + (said if error.late else f"failed {error.tries} times; the last time: {error.reason}")
        )

    def _unasked(self, last: GaveUp) -> ConfigurationError | EndpointFault:
        """What is raised for a request that is not sent, as the service is silent: where it always was, the run ends."""
        if not self._silence.heard:
            return self._given_up(last)
        return EndpointFault(
            f"{self.endpoint.address} was not asked: it has not answered the last {self._silence.count} requests, and "
            "one request at a time is tried until it answers"
        )

    async def _start(self) -> None:
        """Waits for its turn under the rate limit, and checks the budget."""
        now = time.monotonic()
        start = max(now, self._next_start)
        if self.endpoint.per_minute:
            # Taken before the wait, so that requests that come meanwhile queue up behind this one.
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
                self.spent = f"The budget of {limit:g} {what} for {self.endpoint.address} is spent."
                raise EndpointFault(self.spent)
        # Counted before it is sent: what is cancelled or lost has been paid for as well.
        self.usage.requests += 1

    async def _attempt(self, body: Mapping[str, Any], sent: int, request: SentRequest, tries: int) -> Reply:
        self.usage.retries += tries > 1
        await self._start()
        request.unanswered = True
        response = await self._backend.send(body)
        request.unanswered = False
        self._silence.end()
        if response.status == 200:
            answer = self._answer(response)
            if not (error := error_in(answer)):
                reply = self._read(answer, sent)
                self.answered = True
                return reply
            response = as_refusal(response, error)
        refused = read_refusal(response)
        self._raise(response, refused, body)
        raise EndpointFault(f"{self.endpoint.address} refuses the request: {refused.said}")

    def _raise(self, response: Response, refused: Refused, body: Mapping[str, Any]) -> None:
        """Raises the error that a refusal stands for, where it stands for one of those that are known."""
        endpoint, said = self.endpoint, refused.said
        if refused.too_long:
            raise ContextTooSmall(f"The messages do not fit the context of {endpoint.model}: {said}")
        if refused.by_filter:
            raise EndpointRefusal(f"A content filter of {endpoint.address} refuses the messages: {said}")
        if not self.answered and (advice := refused.advice(body)):
            raise ConfigurationError(
                f"{endpoint.model!r} does not take a field of the request: {said}; {advice}"
            )
        # A gateway that starts its service again, or refuses one conversation, must not end a run of hours.
        passing = self.answered and response.status != _WRONG_KEY
        if response.status in _MISCONFIGURED and not passing:
            unset = not endpoint.provider and not os.environ.get(KEY_VARIABLE)
            hint = f" (the environment variable {KEY_VARIABLE} is not set)" if unset else ""
            raise ConfigurationError(f"{endpoint.address} refuses {endpoint.model!r}: {said}{hint}")
        if response.status in _RETRIED | _MISCONFIGURED and refused.code != "insufficient_quota":
            # The whole client waits: other requests would be refused as well.
            if response.after_s is not None:
                wait = min(response.after_s, endpoint.deadline_s)  # a header may ask for years
                self._next_start = max(self._next_start, time.monotonic() + wait)
            raise TryAgain(said, response.after_s)

    def _answer(self, response: Response) -> dict[str, Any]:
        """The answer, with what it used booked whether it can be read or not."""
        try:
            answer = as_json(response.text, self._wire.stream)
        except _UNREADABLE as error:
            raise _no_completion(error) from None
        used = self._wire.used(answer)
        self.usage.unmetered += used is None and not error_in(answer)
        # Before the reply is read, because one that cannot be read has its price too.
        self._account(used or TokenUsage())
        return answer

    def _read(self, answer: Mapping[str, Any], sent: int) -> Reply:
        try:
            return self._wire.read(self._settings, answer, sent)
        except _UNREADABLE as error:
            raise _no_completion(error) from None

    def _account(self, used: TokenUsage) -> None:
        """Books what a reply used, and delays the next request by it."""
        endpoint, usage = self.endpoint, self.usage
        usage.prompt_tokens += used.prompt
        usage.completion_tokens += used.completion
        usage.reasoning_tokens += used.reasoning
        usage.cached_tokens += used.cached
        usage.cost += (used.prompt * endpoint.prompt_price + used.completion * endpoint.reply_price) / 1e6
        if endpoint.tokens_per_minute:
            wait = 60.0 * (used.prompt + used.completion) / endpoint.tokens_per_minute
            self._next_start = max(self._next_start, time.monotonic()) + wait

    def _slot(self) -> asyncio.Semaphore:
        """What bounds the requests under way, of the running event loop."""
        return self._slots.setdefault(
            asyncio.get_running_loop(), asyncio.Semaphore(self.endpoint.concurrency)
        )


def _no_completion(error: Exception) -> TryAgain:
    return TryAgain(f"a reply that is no chat completion ({type(error).__name__}: {error})")


class _Address:
    """An address that speaks a wire form of OpenAI."""

    def __init__(self, endpoint: Endpoint, retry_policy: RetryPolicy) -> None:
        self._http = HTTPClient(
            endpoint.request_url,
            retry_policy=retry_policy,
            headers=partial(bearer, KEY_VARIABLE),
            fault=EndpointFault,
        )

    async def send(self, body: Mapping[str, Any]) -> Response:
        """Sends a request once.

        Raises:
            TryAgain: the connection broke.
            EndpointFault: the request could not be sent, or the answer is too long.
        """
        return await self._http.send(Request("POST", "", dict(body)))
