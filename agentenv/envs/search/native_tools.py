"""The actions of search environments as tools, for models that call tools in the form that they were trained in."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn, NativeCall
from agentenv.core.types import Task
from agentenv.envs.search.page_format import QuestionPrompt

NATIVE_PROMPT = """\
Find the answer to the question below. Look up every fact that you lack with the tools, as often as you need. When you know \
the answer, give it with the tool answer, short and without explanation.
Question: {question}
"""

NATIVE_CORRECTION = """\
No tool was called as it is declared. Call a tool to look something up, or the tool answer to give the answer."""


@dataclass(frozen=True)
class NativeTool:
    """One action with its one argument."""

    name: str
    description: str
    argument: str
    meaning: str

    def to_openai(self) -> dict[str, Any]:
        """The form of OpenAI's chat completions."""
        properties = {self.argument: {"type": "string", "description": self.meaning}}
        parameters = {"type": "object", "properties": properties, "required": [self.argument]}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


SEARCH_TOOLS: Mapping[str, NativeTool] = {
    tool.name: tool
    for tool in (
        NativeTool(
            "search",
            "Searches the collection of documents and shows the passages that fit best.",
            "query",
            "What to look for. Several queries go on lines of their own.",
        ),
        NativeTool(
            "read", "Shows a document in full that a search has found.", "title", "The title of the document."
        ),
        NativeTool(
            "access",
            "Shows the page at an address. Called again with the same address, it shows the next part of the page.",
            "address",
            "The address of the page, as a search shows it.",
        ),
        NativeTool(
            "answer", "Gives the answer to the question and ends the task.", "answer", "The answer alone."
        ),
    )
}
"""By name, which is also the tag of the action."""


@dataclass(frozen=True)
class NativeActions:
    """The actions of an environment as tools."""

    tags: tuple[str, ...]
    """The tags of the actions, each of which has a row in ``SEARCH_TOOLS``."""
    opening: Callable[[Task], str]
    """From a task to the first message, which names no tags."""

    @property
    def tools(self) -> tuple[NativeTool, ...]:
        """The actions as tools that a model calls in its own form."""
        return tuple(SEARCH_TOOLS[tag] for tag in self.tags)

    @classmethod
    def of(
        cls, tags: tuple[str, ...], prompt: str, usual: str, native: str = NATIVE_PROMPT
    ) -> "NativeActions":
        """The actions of an environment whose opening message is ``prompt``; ``native`` stands for the ``usual`` one."""
        return cls(tags, QuestionPrompt(native if prompt == usual else prompt))


def action_of(turn: AssistantTurn, tags: Sequence[str]) -> str:
    """The first call of ``turn`` as an action in tags; empty where none was made as it is declared."""
    call = next((call for call in turn.calls if isinstance(call, NativeCall)), None)
    if call is None or call.name not in tags or not isinstance(call.arguments, dict):
        return ""
    value = call.arguments.get(SEARCH_TOOLS[call.name].argument)
    if not isinstance(value, str):
        return ""
    inner = re.sub(rf"</?(?:{'|'.join(tags)})>", " ", value)  # a tag in it would be another action
    return f"<{call.name}>{inner}</{call.name}>"


def untagged(page: str) -> str:
    """A page without the tags around it: a result of a tool stands for itself."""
    return page.strip().removeprefix("<information>").removesuffix("</information>")
