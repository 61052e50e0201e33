"""The conversation of an episode in the format ``native``, as it grows from turn to turn."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from agentenv.core.assistant_turns import AssistantTurn, NativeCall
from agentenv.core.model_families import Family
from agentenv.core.tool_replies import call_id
from agentenv.core.types import Message
from agentenv.errors import AgentEnvError


class Unrenderable(AgentEnvError):
    """The chat template refuses the conversation because of what the policy wrote."""


@dataclass(frozen=True)
class Conversation:
    """The messages so far, and the prompt that the chat template rendered from them."""

    family: Family
    messages: tuple[Message | AssistantTurn, ...]
    tools: tuple[Mapping[str, Any], ...]
    """The declared tools in OpenAI's form."""
    prompt: str
    """The rendered text up to the place where the policy writes."""

    def read(self, text: str) -> AssistantTurn:
        """Parses the text that the policy wrote after the prompt."""
        schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in self.tools}
        opened = self.prompt.rstrip().endswith(self.family.thinking)
        return self.family.read(text, opened, schemas)

    def said(self, turn: AssistantTurn) -> "Conversation":
        """Returns the conversation with a turn of the policy added."""
        return replace(self, messages=(*self.messages, turn))


@runtime_checkable
class ConversationFormat(Protocol):
    """A chat format that renders each prompt from the whole conversation, and declares the environment's tools."""

    def open(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Conversation, list[int]]:
        """Starts a conversation with ``messages``; returns it and its token ids.

        Raises:
            ConfigurationError: the chat template cannot show these tools or messages.
        """

    def go_on(
        self, ids: Sequence[int], conversation: Conversation, new: Sequence[Message]
    ) -> tuple[Conversation, list[int]]:
        """Adds the messages ``new``; returns the conversation and its ids: ``ids`` and more, unless earlier turns changed.

        Args:
            ids: The ids so far, including the policy's last turn.
            conversation: The conversation, which ends with that turn.
            new: The messages from the environment.

        Raises:
            Unrenderable: the policy's turn cannot be part of a prompt.
        """


def as_turns(messages: Sequence[Message]) -> tuple[Message | AssistantTurn, ...]:
    """Converts every message with tool calls to a turn of the policy, as a replaced context shows earlier turns."""
    return tuple(_as_turn(message) if message.calls else message for message in messages)


def _as_turn(message: Message) -> AssistantTurn:
    named = enumerate(message.calls)
    calls = tuple(call if call.id else replace(call, id=call_id(place)) for place, call in named)
    sent = {"role": "assistant", "content": message.text, "tool_calls": [openai_call(call) for call in calls]}
    return AssistantTurn(None, message.text, calls, as_sent=sent)


def openai_call(call: NativeCall) -> dict[str, Any]:
    """Writes a call in the form of OpenAI's chat completions, with its arguments as a JSON string."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
