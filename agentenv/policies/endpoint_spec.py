"""How a model behind an endpoint is named: its address, how it is asked, and what may be used.

``openai:MODEL@URL#option=value&...`` names a model by an address that speaks a wire form of OpenAI, and
``anyllm:PROVIDER/MODEL#...`` one of another service, which is asked through the library any-llm. The options are fields of
`Endpoint`. The part after # never leaves this machine. The key of an address comes from the environment variable
`KEY_VARIABLE` alone, and that of a service from the variable that the service documents.
"""

from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from agentenv.errors import ConfigurationError, UnknownName, check_known
from agentenv.policies.wires import WIRES, RequestSettings, WireName

KEY_VARIABLE = "OPENAI_API_KEY"
OPENAI, ANYLLM = "openai:", "anyllm:"

_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
CAN_BE_LEFT_OUT = ("temperature", "top_p", "stop", "seed", "include", "stream_options")
_ADDRESS = ("model", "url", "provider")
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class Endpoint:
    """Where a model is served, and the limits of its use."""

    model: str
    """Name of the model there."""
    url: str = ""
    """Base address, to which the path of the wire form is appended; a provider has one of its own."""
    provider: str = ""
    """The service that any-llm asks; empty asks the address itself."""
    wire: WireName = "chat"
    """The form of requests: ``chat`` for Chat Completions, ``responses`` for Responses of OpenAI."""
    stream: bool = False
    """Whether replies are sent piece by piece, for connections that are closed when they are silent for long."""
    leave_out: str = ""
    """Fields that the model refuses, with commas between them: temperature, top_p, stop, seed, include, stream_options."""
    effort: str = ""
    """How much a reasoning model thinks, in its own words (low, medium, high); empty leaves that to the service."""
    send_reasoning: bool = False
    """Whether the thinking of earlier turns is sent back as plain text, which some services ask for and others refuse."""
    images: bool = True
    """Whether the model takes images; an environment that shows some is refused otherwise."""
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
    def of(cls, spec: str) -> "Endpoint":
        """The endpoint that ``openai:MODEL@URL#options`` or ``anyllm:PROVIDER/MODEL[@URL]#options`` names.

        Raises:
            ConfigurationError: it names none.
        """
        if not spec.startswith(ANYLLM):
            return cls.parse(spec.removeprefix(OPENAI))
        named, _, options = spec.removeprefix(ANYLLM).partition("#")
        provider, _, rest = named.partition("/")
        if "@http" in rest:
            return replace(cls.parse(f"{rest}#{options}"), provider=provider)
        if not (provider and rest):
            raise ConfigurationError(
                f"A model of a service is written PROVIDER/MODEL, as in anthropic/claude-sonnet-4-5, not {named!r}."
            )
        return cls(rest, "", provider, **_options(options))

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
        check_known("limit_field of an endpoint", self.limit_field, _LIMIT_FIELDS)
        check_known("wire of an endpoint", self.wire, WIRES)
        for name in self.left_out - {*CAN_BE_LEFT_OUT}:
            raise UnknownName.among("field that an endpoint can leave out:", name, CAN_BE_LEFT_OUT)
        if self.provider and (self.wire != "chat" or self.stream):
            raise ConfigurationError(
                f"The provider {self.provider!r} is asked through any-llm, which takes no wire and no stream."
            )
        if self.max_cost and not self.prompt_price + self.reply_price:
            raise ConfigurationError("A budget max_cost needs prompt_price and reply_price.")

    @property
    def left_out(self) -> frozenset[str]:
        """The fields that requests do not have."""
        return frozenset(name.strip() for name in self.leave_out.split(",") if name.strip())

    @property
    def request_settings(self) -> RequestSettings:
        """What changes the requests to its model."""
        left_out = self.left_out | ({"seed"} if self.provider else set())  # which services do not share
        return RequestSettings(
            self.model, self.limit_field, left_out, self.effort, self.stream, self.send_reasoning
        )

    @property
    def request_url(self) -> str:
        """The address that requests go to, query string included."""
        parts = urlsplit(self.url)
        return parts._replace(path=parts.path.rstrip("/") + WIRES[self.wire].path).geturl()

    @property
    def name(self) -> str:
        """The model and where it is."""
        served = f"{self.provider}/{self.model}" if self.provider else self.model
        return f"{served}@{self.url}" if self.url else served

    @property
    def address(self) -> str:
        """Where it is, for an error."""
        return self.url or self.provider


def _options(text: str) -> dict[str, Any]:
    kinds: dict[str, type[Any]] = {
        f.name: type(f.default) for f in fields(Endpoint) if f.name not in _ADDRESS
    }
    found: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        check_known("option of an endpoint", name, kinds)
        try:
            found[name] = _SWITCHES[value.lower()] if kinds[name] is bool else kinds[name](value)
        except (ValueError, KeyError):
            wanted = "1 or 0" if kinds[name] is bool else "a number"
            raise ConfigurationError(
                f"The option {name} of an endpoint is {wanted}, not {value!r}."
            ) from None
    return found
