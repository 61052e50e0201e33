"""What a service says where it refuses a request, and which option of an endpoint helps."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.policies.endpoint_spec import CAN_BE_LEFT_OUT, KEY_VARIABLE
from agentenv.web.client import Response
from agentenv.web.secrets import without_keys

_SHOWN_CHARS = 200
_READ_CHARS = 20_000  # of a refusal; a web page of an error may be longer
_ERRORS = range(400, 600)
_UNKNOWN = 500  # what a server answers that cannot say what went wrong
_OF_MESSAGES = frozenset({400, 403, 413, 422, _UNKNOWN})
"""With which services refuse messages. With 429 for example they say the same words of a limit for each minute."""
_FILTERS = frozenset(
    {
        "content_filter",  # Azure, Moonshot, and what any-llm makes of other services
        "content_policy_violation",
        "invalid_prompt",  # OpenAI's Responses
        "responsibleaipolicyviolation",  # Azure, within the error
        "data_inspection_failed",  # Alibaba
        "datainspectionfailed",
    }
)
_FILTERED = (
    "content management policy",  # Azure, behind a gateway that leaves out its code
    "content exists risk",  # DeepSeek
    "contentpolicyviolationerror",  # LiteLLM
)
_FULL = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure, Groq
        "exceed_context_size_error",  # llama.cpp
        "model_context_window_exceeded",  # Z.ai
    }
)
_TOO_LONG = (
    "maximum context length",  # OpenAI, vLLM, SGLang, Mistral, DeepSeek, OpenRouter
    "model's context length",  # vLLM where it counts input and output, SGLang, Together
    "longer than the maximum model length",  # the engine of vLLM
    "exceeds the maximum allowed length (",  # SGLang
    "available context size",  # llama.cpp
    "exceed context window",  # llama-cpp-python
    "exceeds the context window",  # OpenAI's Responses
    "exceed context limit",  # Anthropic where it counts input and output, Bedrock
    "prompt is too long",  # Anthropic, Fireworks
    "input is too long",  # Bedrock
    "maximum prompt length is",  # xAI
    "maximum number of tokens allowed",  # Google
    "`inputs` tokens + `max_new_tokens` must be",  # TGI, Together
    "`inputs` must have less than",  # TGI
    "reduce the length of the messages",  # Groq
    "contextwindowexceedederror",  # LiteLLM
)
"""What services say where messages do not fit, in small letters."""
_UNSUPPORTED = ("unsupported", "not supported", "unknown parameter", "unrecognized", "array too long")


@dataclass(frozen=True)
class Refused:
    """A refusal, without any key in it."""

    status: int
    reason: str
    """In full: what tells a refusal from others may stand behind what a gateway says of itself."""
    code: str = ""
    kinds: frozenset[str] = frozenset()
    """Code and type of the error and of an error within it, in small letters."""
    field: str = ""
    """The field of the request that is refused, where the service names it."""
    moderated: bool = False

    @property
    def said(self) -> str:
        """Status and reason, shortened."""
        return f"{self.status} {self.reason[:_SHOWN_CHARS]}"

    @property
    def too_long(self) -> bool:
        """Whether the messages do not fit the model's context."""
        return bool(self.kinds & _FULL) or self._says(_TOO_LONG)

    @property
    def by_filter(self) -> bool:
        """Whether a content filter refuses the messages."""
        return self.moderated or bool(self.kinds & _FILTERS) or self._says(_FILTERED)

    def _says(self, phrases: Sequence[str]) -> bool:
        words = self.reason.lower()
        return self.status in _OF_MESSAGES and any(phrase in words for phrase in phrases)

    def advice(self, body: Mapping[str, Any]) -> str:
        """What to write where the model does not take a field of ``body``; empty where something else is refused."""
        if self.status not in (400, 422):
            return ""
        words = f"{self.code} {self.reason}".lower().replace("_", " ")
        if not any(one in words for one in _UNSUPPORTED):
            return ""
        named = self.field or next(
            (name for name in (*CAN_BE_LEFT_OUT, "max_tokens") if name in self.reason), ""
        )
        if named == "max_tokens":
            return "write limit_field=max_completion_tokens behind the # of the policy"
        known = named.partition(".")[0]
        return (
            f"write leave_out={known} behind the # of the policy"
            if {known} & {*CAN_BE_LEFT_OUT} & {*body}
            else ""
        )


def read_refusal(response: Response) -> Refused:
    """What ``response`` says of itself, shortened."""
    with contextlib.suppress(ValueError):
        answer = response.json()
        error = answer.get("error", answer) if isinstance(answer, dict) else answer
        if isinstance(error, dict):
            details, inner = error.get("metadata"), error.get("innererror")
            named = (
                error.get("code"),
                error.get("type"),
                inner.get("code") if isinstance(inner, dict) else "",
            )
            # The second of FastAPI, which many servers use.
            said = error.get("message") or error.get("detail") or ""
            return Refused(
                response.status,
                _one_line(said if isinstance(said, str) else json.dumps(_without_inputs(said))),
                str(error.get("code") or ""),
                frozenset(str(one).lower() for one in named if one),
                str(error.get("param") or ""),
                isinstance(details, dict) and "flagged_input" in details,  # OpenRouter
            )
    return Refused(response.status, _one_line(f"{response.redirect} {response.text}"))


def as_refusal(response: Response, error: Any) -> Response:
    """A response of status 200 that holds an error, as the refusal that the service meant; see `error_in`."""
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and code in _ERRORS else _UNKNOWN
    return Response(status, response.headers, json.dumps({"error": error}).encode())


def _without_inputs(details: Any) -> Any:
    """``details`` of FastAPI without the values that were sent: a conversation may hold any words of a refusal."""
    if not isinstance(details, list):
        return details
    return [
        {key: value for key, value in one.items() if key not in ("input", "ctx")}
        if isinstance(one, dict)
        else one
        for one in details
    ]


def _one_line(words: str) -> str:
    return " ".join(without_keys(words[:_READ_CHARS], (KEY_VARIABLE,)).split())
