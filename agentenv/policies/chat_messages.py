"""Messages, calls and tools as a client sends them in the form of OpenAI's chat completions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, field_validator

from agentenv.core.assistant_turns import NativeCall
from agentenv.core.grammar import encodable
from agentenv.core.types import Message, Role

_SYSTEM = {"developer": "system"}  # as newer clients call it


class _Function(BaseModel):
    name: str
    arguments: str = "{}"


class _Call(BaseModel):
    id: str = ""
    type: Literal["function"] = "function"
    function: _Function

    @property
    def read(self) -> NativeCall:
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = self.function.arguments
        return NativeCall(self.function.name, arguments, self.id)


class _TextPart(BaseModel):
    type: Literal["text"]
    text: str


class SentMessage(BaseModel):
    """One message of a request."""

    role: Role | Literal["developer"]
    content: str | list[_TextPart] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    def message(self, names: Mapping[str, str]) -> Message:
        """Args: ``names``: of the tools that were called so far, by the ids of the calls."""
        parts = self.content or ()  # joined as vLLM joins them
        text = parts if isinstance(parts, str) else "\n".join(part.text for part in parts)
        role: Any = _SYSTEM.get(self.role, self.role)
        calls = tuple(call.read for call in self.tool_calls or ()) if role == "assistant" else ()
        id_ = (self.tool_call_id or "") if role == "tool" else ""
        return Message(role, encodable(text), names.get(id_, ""), id_, calls)


class SentTool(BaseModel):
    """One tool of a request."""

    type: Literal["function"]
    function: dict[str, Any]

    @field_validator("function")
    @classmethod
    def _readable(cls, function: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(function.get("name"), str):
            raise ValueError("a tool has no name")
        # Null stands for a tool without arguments.
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, dict) or not isinstance(parameters.get("properties", {}), dict):
            raise ValueError("the parameters of a tool are no JSON schema of an object")
        return function | ({"parameters": parameters} if "parameters" in function else {})

    @property
    def form(self) -> dict[str, Any]:
        """The tool in OpenAI's form."""
        return {"type": "function", "function": self.function}


def read_messages(sent: Sequence[SentMessage]) -> tuple[Message, ...]:
    """The messages as chat formats take them: a result has the name of the tool that was called by its id."""
    names = {call.id: call.function.name for message in sent for call in message.tool_calls or ()}
    return tuple(message.message(names) for message in sent)
