"""A conversation in the format ``native``, as an episode carries it from turn to turn."""

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
    """The chat template refuses the conversation as the policy led it."""


@dataclass(frozen=True)
class Conversation:
    """What was said so far, and the prompt that the template made of it."""

    family: Family
    messages: tuple[Message | AssistantTurn, ...]
    tools: tuple[Mapping[str, Any], ...]
    """In OpenAI's form."""
    prompt: str
    """The text up to the place where the policy writes."""

    def read(self, text: str) -> AssistantTurn:
        """What the policy wrote after the prompt."""
        schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in self.tools}
        opened = self.prompt.rstrip().endswith(self.family.thinking)
        return self.family.read(text, opened, schemas)

    def said(self, turn: AssistantTurn) -> "Conversation":
        """The conversation with a turn of the policy added."""
        return replace(self, messages=(*self.messages, turn))


@runtime_checkable
class ConversationFormat(Protocol):
    """A chat format that makes each prompt of the whole conversation, and declares the tools of the environment."""

    def open(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Conversation, list[int]]:
        """The conversation that ``messages`` begin, and its ids.

        Raises:
            ConfigurationError: the model cannot be shown these tools or messages.
        """

    def go_on(
        self, ids: Sequence[int], conversation: Conversation, new: Sequence[Message]
    ) -> tuple[Conversation, list[int]]:
        """The conversation after ``new``, and its ids: those of ``ids`` and more, or others where earlier turns change.

        Args:
            ids: The row so far, the turn of the policy included.
            conversation: Ends with that turn.
            new: What the environment shows.

        Raises:
            Unrenderable: what the policy wrote cannot be part of a prompt.
        """


def as_turns(messages: Sequence[Message]) -> tuple[Message | AssistantTurn, ...]:
    """``messages`` in which each one with tool calls is a turn of the policy, as a whole context shows earlier ones."""
    return tuple(_as_turn(message) if message.calls else message for message in messages)


def _as_turn(message: Message) -> AssistantTurn:
    named = enumerate(message.calls)
    calls = tuple(call if call.id else replace(call, id=call_id(place)) for place, call in named)
    sent = {"role": "assistant", "content": message.text, "tool_calls": [openai_call(call) for call in calls]}
    return AssistantTurn(None, message.text, calls, as_sent=sent)


def openai_call(call: NativeCall) -> dict[str, Any]:
    """A call as a message of OpenAI's chat completions holds it, with its arguments as JSON in a text."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
