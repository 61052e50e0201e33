"""Services with a wire form of their own (Anthropic, Google, Amazon Bedrock, ...), asked through the library any-llm.

The library takes and gives what Chat Completions takes and gives, and keeps what a service wants back, such as the signature
of its thinking, in fields of the message. Its own retries are off where it can turn them off: those of the client count and
wait.
"""

import asyncio
import contextlib
import inspect
import json
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from agentenv.errors import ConfigurationError, MissingExtra, needs_extra
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.web.client import Response
from agentenv.web.gate import token_in
from agentenv.web.retries import TryAgain
from agentenv.web.secrets import without_keys

_EXTRA = "providers"
_BAD_REQUEST, _UNAUTHORISED, _NOT_FOUND, _TOO_MANY = 400, 401, 404, 429


class Provider:
    """Asks the service that an endpoint names.

    Raises:
        MissingExtra: any-llm, or what the service needs beside it, is not installed.
        ConfigurationError: there is no such service, or it cannot be asked as it is set up.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        self._keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = (
            WeakKeyDictionary()
        )
        self._open()

    async def send(self, body: Mapping[str, Any]) -> Response:
        """One try, its answer as an address would give it that speaks Chat Completions.

        Raises:
            TryAgain: the service could not be reached, or its answer cannot be read.
            ConfigurationError: any-llm cannot ask this service for what is asked.
        """
        from any_llm.exceptions import AnyLLMError

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = self._open()
            # A loop closes its generators and knows nothing of clients, so that a generator closes the client.
            self._keepers[loop] = self._keep(loop, self._clients[loop])
            await anext(self._keepers[loop])
        try:
            answer = await self._clients[loop].acompletion(**body)
        except AnyLLMError as error:
            return _refusal(error)
        except ValidationError as error:  # which the library lets through
            raise TryAgain(f"an answer that any-llm cannot read: {error.errors()[0]['msg']}") from None
        except NotImplementedError as error:
            raise ConfigurationError(
                f"{self._endpoint.provider!r} cannot be asked for this: {error}"
            ) from error
        return Response(200, {}, answer.model_dump_json(exclude_none=True).encode(errors="replace"))

    async def _keep(self, loop: asyncio.AbstractEventLoop, client: Any) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._clients.pop(loop, None)
            self._keepers.pop(loop, None)
            await _close(client)

    def _open(self) -> Any:
        """The library's own client, which is bound to one event loop."""
        with needs_extra(_EXTRA):
            from any_llm import AnyLLM
            from any_llm.exceptions import AnyLLMError
        logging.getLogger("any_llm").setLevel(logging.ERROR)  # it warns at each request of some services
        name, address = self._endpoint.provider, self._endpoint.url or None
        try:
            service = AnyLLM.get_provider_class(name)
            retries = service.MAX_RETRIES_SUPPORT in ("native", "mapped")
            options = {"max_retries": 0} if retries else {}
            key = _key(service.ENV_API_KEY_NAME)
            return AnyLLM.create(name, api_key=key, api_base=address, unified_exceptions=True, **options)
        except AnyLLMError as error:
            raise ConfigurationError(f"{name!r} cannot be asked: {without_keys(str(error))}") from error
        except ImportError as error:
            raise MissingExtra.of(f"What any-llm needs for {name!r}", _EXTRA) from error


async def _close(client: Any) -> None:
    """Closes the connections of a client of any-llm, which has no method for it: those of the service's library have."""
    library = getattr(client, "client", None)
    library = getattr(library, "aio", library)  # of Google's, which has a half of each kind
    close = getattr(library, "aclose", None) or getattr(library, "close", None)
    if close is not None:
        with contextlib.suppress(Exception):  # it is given up in any case
            if inspect.isawaitable(closing := close()):
                await closing


def _key(variables: str) -> str | None:
    """The key in the first of ``variables``, as in ``A/B``, that is set; None leaves it to any-llm to find another or none.

    Raises:
        ConfigurationError: no header can carry it, which any-llm tells as a broken connection.
    """
    return next((token_in(name) for name in variables.split("/") if os.environ.get(name)), None)


def _refusal(error: Any) -> Response:
    """An error of any-llm as the answer that an address would have given.

    Raises:
        TryAgain: the service could not be reached.
    """
    from any_llm import exceptions as known

    kind = type(error)
    codes = {
        known.ContentFilterError: "content_filter",
        known.ContextLengthExceededError: "context_length_exceeded",
        known.UnsupportedParameterError: "unsupported_parameter",
    }
    statuses = dict.fromkeys((*codes, known.InvalidRequestError), _BAD_REQUEST)
    statuses |= {known.AuthenticationError: _UNAUTHORISED, known.ModelNotFoundError: _NOT_FOUND}
    statuses |= {known.RateLimitError: _TOO_MANY}
    status = error.status_code or _boto_status(error.original_exception) or statuses.get(kind)
    if status is None:
        raise TryAgain(f"{kind.__name__}: {without_keys(error.message)}")
    field = getattr(error, "parameter_name", error.param)
    said = {"message": error.message, "code": codes.get(kind, error.code), "param": field}
    after = getattr(error, "retry_after", None)
    return Response(status, {"retry-after": after} if after else {}, json.dumps({"error": said}).encode())


def _boto_status(error: Any) -> int | None:
    """The status in an error of Amazon's library; None of another."""
    answer = getattr(error, "response", None)
    metadata = answer.get("ResponseMetadata", {}) if isinstance(answer, dict) else {}
    status: int | None = metadata.get("HTTPStatusCode")
    return status
