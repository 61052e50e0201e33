"""Requests of an agent in the form of OpenAI's chat completions, and their replies."""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from agentenv.core.conversation import openai_call
from agentenv.core.episodes import replace_surrogates
from agentenv.core.types import Message, TurnTokens
from agentenv.core.validation import sentence
from agentenv.policies.chat_messages import SentMessage, SentTool, read_messages
from agentenv.web.gate import Refusal

_BAD_REQUEST = 400


@dataclass(frozen=True)
class ChatRequest:
    """One request of an agent. Two requests are equal if they show the same to a model."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    """The tools in OpenAI's form."""
    stop: tuple[str, ...] = ()
    """Stop strings, which are not part of the reply."""
    one_call: bool = False
    """Whether the reply may contain only one tool call."""

    def new_after(
        self, earlier: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Message, ...]:
        """Returns the messages by which the request continues ``earlier``; empty if it starts a new context.

        It also starts a new context if it answers only some calls of the last turn, contains a turn that the model did not
        write, or continues with a system message, because many templates accept one only at the beginning.

        Args:
            earlier: The messages of the previous request, and the model's turn.
            tools: The tools of the previous request.
        """
        old, new = self.messages[: len(earlier)], self.messages[len(earlier) :]
        goes_on = [*map(_normalised_content, old)] == [*map(_normalised_content, earlier)] and [
            *self.tools
        ] == [*tools]
        asked = [call.id for call in earlier[-1].calls]
        answered = [message.call_id for message in new if message.role == "tool"]
        if (
            not goes_on
            or sorted(asked) != sorted(answered)
            or any(m.role in ("assistant", "system") for m in new)
        ):
            return ()
        results = {message.call_id: message for message in new if message.role == "tool"}
        return (*(results[id_] for id_ in asked), *(m for m in new if m.role != "tool"))


NOTHING_ASKED = ChatRequest((), ())


def _normalised_content(message: Message) -> tuple[Any, ...]:
    """Returns the content of a message in a normalised form: frameworks strip texts and reformat the JSON of calls."""
    calls = [(call.name, json.dumps(call.arguments, sort_keys=True)) for call in message.calls]
    return message.role, message.text.strip(), calls


_Stop = Annotated[str, Field(min_length=1)]


class _Body(BaseModel):
    """The body of a request. Unsupported options that would change a reply are refused; sampling options are ignored."""

    messages: list[SentMessage] = Field(min_length=1)
    model: str = ""
    tools: list[SentTool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: Literal[1] | None = None
    stop: _Stop | list[_Stop] | None = None
    logprobs: Literal[False] | None = None
    response_format: dict[str, Any] | None = None
    functions: list[Any] | None = Field(None, max_length=0)


@dataclass(frozen=True)
class Asked:
    """A request with the options that only its reply needs."""

    request: ChatRequest
    model: str
    stream: bool
    usage: bool
    """Whether a stream ends with token counts."""


def read_request(body: bytes) -> Asked:
    """Parses the request in ``body``.

    Raises:
        Refusal: it is no such request, or asks for something unsupported: several choices, log-probs, a forced call, a
            response format, or messages other than text.
    """
    try:
        found = _Body.model_validate_json(_whole_characters(body))
    except ValidationError as error:
        raise Refusal(_BAD_REQUEST, sentence(error), "bad_request") from None
    if (found.response_format or {}).get("type", "text") != "text":
        raise Refusal(_BAD_REQUEST, "response_format is not served: the policy writes text", "bad_request")
    tools = () if found.tool_choice == "none" else found.tools or ()
    request = ChatRequest(
        read_messages(found.messages),
        tuple(tool.form for tool in tools),
        (found.stop,) if isinstance(found.stop, str) else tuple(found.stop or ()),
        found.parallel_tool_calls is False,
    )
    usage = bool((found.stream_options or {}).get("include_usage"))
    return Asked(request, found.model, bool(found.stream), usage)


def _whole_characters(body: bytes) -> bytes | str:
    """Replaces lone surrogates in ``body``, which clients send if they cut a text within a character, by question marks."""
    if b"\\ud" not in body.lower():
        return body
    try:
        return replace_surrogates(json.dumps(json.loads(body), ensure_ascii=False))
    except (ValueError, RecursionError):  # refused with its reason later
        return body


@dataclass(frozen=True)
class Reply:
    """The model's turn, and its token counts."""

    turn: Message
    tokens: TurnTokens

    @property
    def finish(self) -> str:
        """The finish reason in OpenAI's form."""
        return "length" if self.tokens.truncated else "tool_calls" if self.turn.calls else "stop"

    @property
    def usage(self) -> dict[str, int]:
        """The token counts in OpenAI's form."""
        prompt, sampled = self.tokens.prompt, self.tokens.completion
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def completion(asked: Asked, reply: Reply) -> dict[str, Any]:
    """Makes the body of ``reply``."""
    turn = reply.turn
    message: dict[str, Any] = {"role": "assistant", "content": _content(turn)}
    if turn.calls:
        message["tool_calls"] = [openai_call(call) for call in turn.calls]
    choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
    return _reply_header(asked, "chat.completion") | {"choices": [choice], "usage": reply.usage}


def stream_of(asked: Asked, reply: Reply) -> str:
    """Makes the body of ``reply`` as events of a stream. The whole turn is a single event, because it was sampled before."""
    turn = reply.turn
    delta: dict[str, Any] = {"role": "assistant", "content": _content(turn)}
    if turn.calls:
        delta["tool_calls"] = [{"index": place} | openai_call(call) for place, call in enumerate(turn.calls)]
    head = _reply_header(asked, "chat.completion.chunk")
    chunks: list[dict[str, Any]] = [
        head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish}]},
    ]
    if asked.usage:
        chunks.append(head | {"choices": [], "usage": reply.usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def _content(turn: Message) -> str | None:
    # An agent may return the text of a turn without calls, so it has to be a string even if the policy wrote nothing.
    return turn.text or (None if turn.calls else "")


def _reply_header(asked: Asked, kind: str) -> dict[str, Any]:
    id_ = f"chatcmpl-{uuid.uuid4().hex}"
    return {"id": id_, "object": kind, "created": int(time.time()), "model": asked.model}
