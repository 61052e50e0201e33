"""A conversation in the format ``native``, as an episode carries it from turn to turn."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

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
