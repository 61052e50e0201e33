"""What an agent asks of its model in the form of OpenAI's chat completions, and what it is answered."""

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
    """One request of an agent. Two are equal where they show a model the same."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    """In OpenAI's form."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer, and are no part of it."""
    one_call: bool = False
    """Whether the answer may call one tool at most."""

    def new_after(
        self, earlier: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Message, ...]:
        """The messages with which it goes on from ``earlier``; none where it does not, and is a context of its own.

        A context of its own is also what answers some calls of the last turn and not others, what puts words into the
        model's mouth, and what goes on with a system message: many templates take one at the beginning alone.

        Args:
            earlier: The messages of the request before, and the model's turn.
            tools: Those of the request before.
        """
        old, new = self.messages[: len(earlier)], self.messages[len(earlier) :]
        goes_on = [*map(_said, old)] == [*map(_said, earlier)] and [*self.tools] == [*tools]
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


def _said(message: Message) -> tuple[Any, ...]:
    """What a message says, however an agent has spelled it: frameworks strip texts and write the JSON of calls anew."""
    calls = [(call.name, json.dumps(call.arguments, sort_keys=True)) for call in message.calls]
    return message.role, message.text.strip(), calls


_Stop = Annotated[str, Field(min_length=1)]


class _Body(BaseModel):
    """What changes a reply and is not served is refused; sampling is the trainer's, so that its settings are ignored."""

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
    """A request with what only its reply has to know."""

    request: ChatRequest
    model: str
    stream: bool
    usage: bool
    """Whether a stream ends with counts of tokens."""


def read_request(body: bytes) -> Asked:
    """The request in ``body``.

    Raises:
        Refusal: it is none, or asks for what is not served: several choices, log-probs, a forced call, a form of the
            response, or messages other than texts.
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
    """``body`` with a question mark for half of a surrogate pair, as clients send it that cut a text within a character."""
    if b"\\ud" not in body.lower():
        return body
    try:
        return replace_surrogates(json.dumps(json.loads(body), ensure_ascii=False))
    except (ValueError, RecursionError):  # which is refused with its reason later
        return body


@dataclass(frozen=True)
class Reply:
    """The model's turn, and the tokens that it took."""

    turn: Message
    tokens: TurnTokens

    @property
    def finish(self) -> str:
        """Why it ended, as services say it."""
        return "length" if self.tokens.truncated else "tool_calls" if self.turn.calls else "stop"

    @property
    def usage(self) -> dict[str, int]:
        """The tokens, as services count them."""
        prompt, sampled = self.tokens.prompt, self.tokens.completion
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def completion(asked: Asked, reply: Reply) -> dict[str, Any]:
    """The body of ``reply``."""
    turn = reply.turn
    message: dict[str, Any] = {"role": "assistant", "content": _content(turn)}
    if turn.calls:
        message["tool_calls"] = [openai_call(call) for call in turn.calls]
    choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
    return _head(asked, "chat.completion") | {"choices": [choice], "usage": reply.usage}


def stream_of(asked: Asked, reply: Reply) -> str:
    """The body of ``reply`` as the events of a stream; the turn comes in one piece, as it was sampled before."""
    turn = reply.turn
    delta: dict[str, Any] = {"role": "assistant", "content": _content(turn)}
    if turn.calls:
        delta["tool_calls"] = [{"index": place} | openai_call(call) for place, call in enumerate(turn.calls)]
    head = _head(asked, "chat.completion.chunk")
    chunks: list[dict[str, Any]] = [
        head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish}]},
    ]
    if asked.usage:
        chunks.append(head | {"choices": [], "usage": reply.usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def _content(turn: Message) -> str | None:
    # An agent that returns the text of a turn without calls has to get one: the policy may write none, and be scored for it.
    return turn.text or (None if turn.calls else "")


def _head(asked: Asked, kind: str) -> dict[str, Any]:
    id_ = f"chatcmpl-{uuid.uuid4().hex}"
    return {"id": id_, "object": kind, "created": int(time.time()), "model": asked.model}
