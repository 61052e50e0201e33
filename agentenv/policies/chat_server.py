"""A local model behind an OpenAI-compatible chat endpoint, for simulators and for clients of other libraries."""

import asyncio
import time
import uuid
from dataclasses import replace
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, Field, ValidationError

from agentenv.core.assistant_turns import AssistantTurn, MalformedCall, NativeCall
from agentenv.core.chat import InlineFormat
from agentenv.core.conversation import openai_call
from agentenv.core.native_format import NativeFormat
from agentenv.core.protocols import Policy
from agentenv.core.types import FinishReason, Sampling
from agentenv.core.validation import sentence
from agentenv.errors import ConfigurationError, ContextTooSmall, needs_extra
from agentenv.policies.chat_messages import SentMessage, SentTool, read_messages
from agentenv.web.gate import Gate, Refusal
from agentenv.web.http import body_within, unless_gone

_OVERLOADED, _TOO_MANY, _BAD_REQUEST = 503, 429, 400
_BODY_BYTES, _BODY_S = 2**20, 10.0
_AT_ONCE = 64  # requests that wait for the model or are computed; their caches are held in memory
MAX_TOKENS = 4_096
"""Tokens of one reply."""
_Stop = Annotated[str, Field(min_length=1)]


class ServedPolicy(Policy, Protocol):
    """A policy with a tokenizer of its own."""

    tokenizer: Any


class ChatRequest(BaseModel):
    """What we know of a request.

    Fields that would change the reply and are not served (several choices, streams, forced calls, penalties, log-probs) are
    refused unless they ask for nothing; other fields are ignored.
    """

    messages: list[SentMessage] = Field(min_length=1)
    model: str = ""
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    stop: _Stop | Annotated[list[_Stop], Field(max_length=16)] | None = None
    seed: int | None = Field(None, ge=0, lt=2**63)
    n: Literal[1] | None = None
    stream: Literal[False] | None = None
    logprobs: Literal[False] | None = None
    tools: list[SentTool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    frequency_penalty: float | None = Field(None, ge=0, le=0)
    presence_penalty: float | None = Field(None, ge=0, le=0)

    @property
    def declared(self) -> tuple[dict[str, Any], ...]:
        """The tools that may be called, in OpenAI's form."""
        return () if self.tool_choice == "none" else tuple(tool.form for tool in self.tools or ())

    @property
    def sampling(self) -> Sampling:
        """How to draw the reply."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        limit = self.max_completion_tokens or self.max_tokens or 512
        seed = time.monotonic_ns() if self.seed is None else self.seed
        temperature = 1.0 if self.temperature is None else self.temperature
        return Sampling(limit, temperature, 1.0 if self.top_p is None else self.top_p, tuple(stop), seed)


async def chat_completion(policy: ServedPolicy, name: str, request: ChatRequest) -> dict[str, Any]:
    """The reply of ``policy``, in the shape that OpenAI documents; the stop string that ended it is left out.

    With tools the conversation is shown, and calls are read, in the form in which the model was trained.

    Raises:
        ContextTooSmall: the messages fill the model's context.
        PolicyFault: the model failed.
        Refusal: the chat template of the model cannot show the conversation or its tools.
    """
    messages, conversation = read_messages(request.messages), None
    try:
        # Also to end a conversation in which tools were called: the other format leaves out the calls.
        if request.declared or any(message.calls or message.role == "tool" for message in messages):
            native = NativeFormat(policy.tokenizer, ends=getattr(policy, "ends", ()))
            conversation, prompt = native.open(messages, request.declared)
        else:
            prompt = InlineFormat(policy.tokenizer).prompt(messages)
    except ConfigurationError as error:
        raise Refusal(_BAD_REQUEST, str(error), "bad_request") from error
    sampling = request.sampling
    completion = await policy.generate(prompt, sampling)
    text, reason = completion.text, None
    if completion.finish is FinishReason.STOP:
        reason = next(stop for stop in sampling.stop if text.endswith(stop))
        text = text.removesuffix(reason)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if conversation is not None and request.declared:
        message = _said(conversation.read(text), one_call=request.parallel_tool_calls is False)
    ended = "tool_calls" if "tool_calls" in message else "stop"
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "length" if completion.finish is FinishReason.LENGTH else ended,
        "stop_reason": reason,
    }
    tokens = {"prompt_tokens": len(prompt), "completion_tokens": len(completion.ids)}
    usage = tokens | {"total_tokens": sum(tokens.values())}
    told = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": int(time.time())}
    return told | {"model": name, "choices": [choice], "usage": usage}


def _said(turn: AssistantTurn, *, one_call: bool) -> dict[str, Any]:
    """The turn as a message; a call that could not be read stands in the content as it was written."""
    malformed = [call.text for call in turn.calls if isinstance(call, MalformedCall)]
    content = "\n".join(text for text in (turn.content, *malformed) if text)
    calls = [call for call in turn.calls if isinstance(call, NativeCall)][: 1 if one_call else None]
    # Nine letters and digits, which Mistral's templates ask for where the client shows the call again.
    named = [call if call.id else replace(call, id=uuid.uuid4().hex[:9]) for call in calls]
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if named else "")}
    if turn.thinking:
        message["reasoning_content"] = turn.thinking
    return message | ({"tool_calls": [openai_call(call) for call in named]} if named else {})


def make_chat_app(
    policy: ServedPolicy, name: str, gate: Gate | None = None, *, at_once: int = _AT_ONCE
) -> Any:
    """The FastAPI application: POST /v1/chat/completions, GET /v1/models and /health.

    Args:
        policy: answers.
        name: of the model.
        gate: lets callers in; None lets everybody in.
        at_once: requests that wait for the model or are computed; more are refused.

    Raises:
        MissingExtra: FastAPI is not installed.
    """
    with needs_extra("serve"):
        from fastapi import FastAPI, Request
        from starlette.responses import JSONResponse
    app = FastAPI(title="agentenv chat")
    places = asyncio.Semaphore(at_once)  # taken once a body has arrived
    if gate is None:
        gate = Gate()
        gate.ready()

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> JSONResponse:
        gate.active += 1
        try:
            gate.admit(request.headers.get("authorization", ""))
            body = await body_within(request, gate, _BODY_BYTES, _BODY_S)
            if places.locked():
                raise Refusal(_TOO_MANY, f"{at_once} requests are being answered; try again.", "rate_limited")
            async with places:
                asked = ChatRequest.model_validate_json(body)
                answer = asyncio.ensure_future(chat_completion(policy, name, asked))
                return JSONResponse(await unless_gone(answer, request))
        except Refusal as error:
            return refused(error.status, str(error), error.kind)
        except ValidationError as error:
            return refused(_BAD_REQUEST, sentence(error), "bad_request")
        except ContextTooSmall as error:
            return refused(_BAD_REQUEST, str(error), "context_length_exceeded")
        except Exception as error:
            return refused(_OVERLOADED, f"{type(error).__name__}: {error}", "model_failed")
        finally:
            gate.active -= 1
            gate.answered += 1

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"}]}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    def refused(status: int, message: str, code: str) -> JSONResponse:
        return JSONResponse({"error": {"message": message, "code": code}}, status)

    return app
