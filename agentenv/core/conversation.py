"""A conversation in the format ``native``, as an episode carries it from turn to turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from agentenv.core.assistant_turns import AssistantTurn
from agentenv.core.model_families import Family
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
        """With a turn of the policy."""
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
