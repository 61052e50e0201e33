"""How a policy is asked, and what it writes, where the environment is at a server: stop strings, tools and native turns.

The policy and its chat format are at the client. What ends a turn and which tools are declared may change within an episode,
so the server says it with each answer; what a turn in the model's own form stands for only the environment knows, so the
turn is sent as it was read.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from agentenv.core.assistant_turns import (
    AssistantTurn,
    Call,
    DeclaredTool,
    MalformedCall,
    ToolForm,
)
from agentenv.core.conversation import openai_call
from agentenv.core.env import Env
from agentenv.serving.wire import call_in, plain


@dataclass(frozen=True)
class Asking:
    """How a client asks its policy for the turn that comes."""

    stop: tuple[str, ...] | None = None
    """Which stop strings end it, of those of the environment's class and its own; None where the server does not say."""
    tools: tuple[ToolForm, ...] | None = None
    """The tools to declare; None where the policy does not speak in its model's form, or the server knows of none."""

    def turn_stop(self, stop: Sequence[str], usual: Sequence[str]) -> tuple[str, ...]:
        """``stop`` as the environment wants it, where ``usual`` are the stop strings of its class."""
        if self.stop is None:
            return tuple(stop)
        added = (text for text in self.stop if text not in usual)
        return (*(text for text in stop if text not in usual or text in self.stop), *added)


def asking_out(env: Env[Any], *, opens: bool) -> dict[str, Any]:
    """What ``metadata`` says of how the policy is asked next.

    Args:
        env: Within an episode.
        opens: Whether what it shows is a whole context, in which tools are declared.
    """
    metadata: dict[str, Any] = {"turn_stop": list(env.turn_stop(tuple(env.stop)))}
    if env.native and opens:
        metadata["native_tools"] = plain([tool.to_openai() for tool in env.native_tools()])
    return metadata


def asking_in(metadata: Mapping[str, Any], before: Asking | None = None) -> Asking:
    """What a server said; tools stay those of ``before`` until a context declares others."""
    stop, tools = metadata.get("turn_stop"), metadata.get("native_tools")
    declared = tuple(DeclaredTool(dict(tool)) for tool in tools or ())
    held = None if before is None else before.tools
    return Asking(None if stop is None else tuple(map(str, stop)), held if tools is None else declared)


class TurnAction(str):
    """The action of an environment at a server that a native turn stands for: the turn itself; as text its content."""

    turn: AssistantTurn

    def __new__(cls, turn: AssistantTurn) -> "TurnAction":
        """Takes the turn."""
        made = super().__new__(cls, turn.content)
        made.turn = turn
        return made


def turn_out(turn: AssistantTurn) -> dict[str, Any]:
    """A turn as it is sent: calls in OpenAI's form, and those that cannot be read with what is wrong with them."""
    return {
        "thinking": turn.thinking,
        "content": turn.content,
        "calls": [
            {"text": call.text, "complaint": call.complaint, "id": call.id}
            if isinstance(call, MalformedCall)
            else openai_call(call)
            for call in turn.calls
        ],
        "closed": turn.closed,
    }


class _Function(BaseModel):
    name: str
    arguments: str


class _SentCall(BaseModel):
    """A call in OpenAI's form."""

    id: str
    function: _Function


class _SentMistake(BaseModel):
    """A call that could not be read."""

    model_config = ConfigDict(extra="forbid")

    text: str
    complaint: str
    id: str


class _SentTurn(BaseModel):
    thinking: str | None = None
    content: str
    calls: list[_SentMistake | _SentCall] = []
    closed: bool = True


def turn_in(data: Mapping[str, Any]) -> AssistantTurn:
    """The turn that a client sent.

    Raises:
        ValidationError: it is none.
    """
    sent = _SentTurn.model_validate(data)
    return AssistantTurn(sent.thinking, sent.content, tuple(map(_call, sent.calls)), sent.closed)


def _call(sent: _SentMistake | _SentCall) -> Call:
    if isinstance(sent, _SentMistake):
        return MalformedCall(sent.text, sent.complaint, sent.id)
    try:
        return call_in(sent.model_dump())
    except (ValueError, RecursionError) as error:
        said = json.dumps(sent.function.model_dump())
        return MalformedCall(said, f"the arguments are not JSON: {error}", sent.id)
