"""The actions of search environments as tools, for models that call tools in their native form."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentenv.core.assistant_turns import AssistantTurn, Call, NativeCall
from agentenv.core.types import Task
from agentenv.envs.search.page_format import QuestionPrompt

NATIVE_PROMPT = """\
Find the answer to the question below. Look up every fact that you lack with the tools, as often as you need. When you know \
the answer, give it with the tool answer, short and without explanation.
Question: {question}
"""

TOGETHER = "This search was made together with the first one of the turn; what both found stands in the result of that."

NOT_MADE = """\
This call was not made. A turn makes its first call and, if that is a search, its further searches, up to the number of \
queries that are allowed."""

NATIVE_CORRECTION = """\
No tool was called as it is declared. Call a tool to look something up, or the tool answer to give the answer."""


@dataclass(frozen=True)
class NativeTool:
    """One action with its single argument, as a tool."""

    name: str
    description: str
    argument: str
    meaning: str

    def to_openai(self) -> dict[str, Any]:
        """Returns the declaration in the form of OpenAI's chat completions."""
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
"""The tools by name, which is also the tag of the action."""


@dataclass(frozen=True)
class NativeActions:
    """The actions of an environment as tools."""

    tags: tuple[str, ...]
    """The tags of the actions, each of which is in ``SEARCH_TOOLS``."""
    opening: Callable[[Task], str]
    """Makes the first message from a task, without mentioning tags."""

    @property
    def tools(self) -> tuple[NativeTool, ...]:
        """Returns the actions as native tools."""
        return tuple(SEARCH_TOOLS[tag] for tag in self.tags)

    @classmethod
    def of(
        cls, tags: tuple[str, ...], prompt: str, usual: str, native: str = NATIVE_PROMPT
    ) -> "NativeActions":
        """Makes the actions of an environment with the message ``prompt``; if that is ``usual``, ``native`` replaces it."""
        return cls(tags, QuestionPrompt(native if prompt == usual else prompt))


class CalledAction(NamedTuple):
    """The calls of a turn, converted to one action."""

    text: str
    """The action in tags; empty if no call was valid."""
    replies: tuple[str | None, ...] = ()
    """The reply to each call; None stands for the environment's observation."""


def action_of(turn: AssistantTurn, tags: Sequence[str], queries: int | None) -> CalledAction:
    """Converts the first call of ``turn`` to an action in tags; if it is a search, with the turn's further searches.

    Args:
        turn: The policy's turn.
        tags: The tags of the actions.
        queries: The largest number of queries in a turn; None is no limit.
    """
    first = next((place for place, call in enumerate(turn.calls) if isinstance(call, NativeCall)), None)
    if first is None:
        return CalledAction("")
    action, replies = _action(turn.calls[first], tags), [NOT_MADE] * len(turn.calls)
    if action is None:
        return CalledAction("", _none_at(replies, first))
    for place, call in enumerate(turn.calls[first + 1 :], first + 1):
        further = _action(call, tags)
        if further is None or not further.text.strip() or not further.tag == action.tag == "search":
            continue
        joined = _Action(action.tag, f"{action.text}\n{further.text}")
        if queries is None or _lines(joined.text) <= queries:
            action, replies[place] = joined, TOGETHER
    return CalledAction(f"<{action.tag}>{action.text}</{action.tag}>", _none_at(replies, first))


class _Action(NamedTuple):
    tag: str
    text: str


def _none_at(replies: Sequence[str], acting: int) -> tuple[str | None, ...]:
    """Returns ``replies`` with None at the index of the call that is executed."""
    return tuple(None if place == acting else reply for place, reply in enumerate(replies))


def _action(call: Call, tags: Sequence[str]) -> _Action | None:
    """Returns the tag and text of a call, with nested tags removed; None if the call does not match its declaration."""
    if not isinstance(call, NativeCall) or call.name not in tags or not isinstance(call.arguments, dict):
        return None
    value = call.arguments.get(SEARCH_TOOLS[call.name].argument)
    if not isinstance(value, str):
        return None
    return _Action(call.name, re.sub(rf"</?(?:{'|'.join(tags)})>", " ", value))


def _lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def untagged(page: str) -> str:
    """Returns a page without the tags around it, because a tool result needs none."""
    return page.strip().removeprefix("<information>").removesuffix("</information>")
