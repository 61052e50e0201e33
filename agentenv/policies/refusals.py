"""What a service says where it refuses a request, and which option of an endpoint helps."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentenv.policies.endpoint_spec import CAN_BE_LEFT_OUT, KEY_VARIABLE
from agentenv.web.client import Response
from agentenv.web.secrets import without_keys

_SHOWN_CHARS = 200
_ERRORS = range(400, 600)
_UNKNOWN = 500  # what a server answers that cannot say what went wrong
_FILTERS = frozenset(
    {
        "content_filter",  # Azure, and what any-llm makes of other services
        "content_policy_violation",
        "invalid_prompt",  # OpenAI's Responses
    }
)
_TOO_LONG = ("maximum context length", "prompt is too long", "input is too long")
_UNSUPPORTED = ("unsupported", "not supported", "unknown parameter", "unrecognized")


@dataclass(frozen=True)
class Refused:
    """A refusal, without any key in it."""

    status: int
    reason: str
    code: str = ""
    field: str = ""
    """Of the request, where the service names it."""
    moderated: bool = False

    @property
    def said(self) -> str:
        """Status and reason."""
        return f"{self.status} {self.reason}"

    @property
    def too_long(self) -> bool:
        """Whether the messages do not fit the model's context."""
        return self.code == "context_length_exceeded" or any(
            words in self.reason.lower() for words in _TOO_LONG
        )

    @property
    def by_filter(self) -> bool:
        """Whether a content filter refuses the messages."""
        return self.moderated or self.code in _FILTERS

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
            details = error.get("metadata")
            return Refused(
                response.status,
                _one_line(str(error.get("message", ""))),
                str(error.get("code") or ""),
                str(error.get("param") or ""),
                isinstance(details, dict) and "flagged_input" in details,  # OpenRouter
            )
    return Refused(response.status, _one_line(f"{response.redirect} {response.text}"))


def as_refusal(response: Response, error: Any) -> Response:
    """A response of status 200 that holds an error, as the refusal that the service meant; see `error_in`."""
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and code in _ERRORS else _UNKNOWN
    return Response(status, response.headers, json.dumps({"error": error}).encode())


def _one_line(words: str) -> str:
    return " ".join(without_keys(words, (KEY_VARIABLE,)).split())[:_SHOWN_CHARS]
