"""How a client samples a turn for an environment on a server, and how it sends it: stop strings, tools and native turns.

The policy and its chat format are at the client. Stop strings and declared tools may change within an episode, so the server
sends them with each answer. Only the environment can tell which action a native turn stands for, so the client sends the
parsed turn.
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
    """How the client has to sample the next turn."""

    stop: tuple[str, ...] | None = None
    """All stop strings of the turn, including those of the environment's class; None if the server does not tell."""
    tools: tuple[ToolForm, ...] | None = None
    """The tools to declare; None if the policy uses no native format, or the server does not tell."""

    def turn_stop(self, stop: Sequence[str], usual: Sequence[str]) -> tuple[str, ...]:
        """Returns the environment's changes applied to ``stop``; ``usual`` are the stop strings of its class."""
        if self.stop is None:
            return tuple(stop)
        added = (text for text in self.stop if text not in usual)
        return (*(text for text in stop if text not in usual or text in self.stop), *added)


def asking_out(env: Env[Any], *, opens: bool) -> dict[str, Any]:
    """Returns the entries of ``metadata`` that say how the next turn has to be sampled.

    Args:
        env: An environment within an episode.
        opens: Whether its observation begins a new context, in which tools are declared.
    """
    metadata: dict[str, Any] = {"turn_stop": list(env.turn_stop(tuple(env.stop)))}
    if env.native and opens:
        metadata["native_tools"] = plain([tool.to_openai() for tool in env.native_tools()])
    return metadata


def asking_in(metadata: Mapping[str, Any], before: Asking | None = None) -> Asking:
    """Reads what a server sent; the tools are those of ``before`` until a new context declares others."""
    stop, tools = metadata.get("turn_stop"), metadata.get("native_tools")
    declared = tuple(DeclaredTool(dict(tool)) for tool in tools or ())
    held = None if before is None else before.tools
    return Asking(None if stop is None else tuple(map(str, stop)), held if tools is None else declared)


class TurnAction(str):
    """The action for a remote environment in native format: holds the whole turn; its text is the content."""

    turn: AssistantTurn

    def __new__(cls, turn: AssistantTurn) -> "TurnAction":
        """Makes the action that holds ``turn``."""
        made = super().__new__(cls, turn.content)
        made.turn = turn
        return made


def turn_out(turn: AssistantTurn) -> dict[str, Any]:
    """Returns a turn as JSON: calls in OpenAI's form, malformed calls with a description of what is wrong."""
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
    """A malformed call."""

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
    """Reads a turn from a client.

    Raises:
        ValidationError: the data does not describe a turn.
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
