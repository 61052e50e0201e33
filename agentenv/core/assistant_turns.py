"""The content of an assistant's turn, parsed from its text: thinking, content and tool calls."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A tool call that could be parsed."""

    name: str
    arguments: Any
    id: str = ""
    """The id that the turn itself gives the call; empty if the model family writes no ids."""


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A tool call that could not be parsed."""

    text: str
    """The call as it was written, including its delimiters."""
    complaint: str
    """What is wrong with the call, in words for the policy."""
    id: str = ""
    """The id that the answer to this call has to name; empty if it has none."""
    unfinished: bool = field(default=False, compare=False)
    """Whether the turn ends inside the call, so that more text could have completed it."""


Call = NativeCall | MalformedCall
CUT_OFF = "the turn was cut at its limit of tokens before the tool call was complete; write less before it or a shorter call"
"""The message to the policy about a call that a token budget cut off."""
Schemas = Mapping[str, Mapping[str, Any]]
"""JSON Schemas of the tools' arguments, by the tools' names."""


def call_text(call: Call) -> str:
    """Returns the name and arguments of ``call`` as JSON, or the original text of a malformed call."""
    if isinstance(call, MalformedCall):
        return call.text
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _without_id(call: Call) -> Call:
    return replace(call, id="")


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """One turn of the policy. Two turns are equal if they differ only in surrounding white space."""

    thinking: str | None
    """None if the turn has no thinking block, and "" if the block is empty."""
    content: str
    calls: tuple[Call, ...] = ()
    closed: bool = True
    """Whether the thinking block is closed within the turn."""
    as_sent: Mapping[str, Any] | None = field(default=None, compare=False)
    """The turn as an endpoint returned it and expects it back in the next request; None if the token ids are the record."""

    @property
    def with_thinking(self) -> str:
        """The thinking in its tags followed by the content, for rewards that check for thoughts.

        If the thinking is empty, the tags are omitted: some chat templates write an empty thinking block in every turn.
        """
        return f"<think>{self.thinking}</think>\n{self.content}" if self.thinking else self.content

    def same_content_and_calls(self, other: "AssistantTurn") -> bool:
        """Whether both turns have the same content and calls; ids of calls and thinking are not compared."""
        mine, its = ([_without_id(call) for call in turn.calls] for turn in (self, other))
        return (self.content.strip(), mine) == (other.content.strip(), its)

    def cut_off(self) -> "AssistantTurn":
        """Returns this turn as one that a token budget ended: the complaint about an unfinished last call then says so."""
        if not (self.calls and isinstance(last := self.calls[-1], MalformedCall) and last.unfinished):
            return self
        return replace(self, calls=(*self.calls[:-1], replace(last, complaint=CUT_OFF)))


class ToolForm(Protocol):
    """The interface of a tool that can be declared to a model."""

    def to_openai(self) -> dict[str, Any]:
        """Returns the name, description and JSON Schema in the form of OpenAI's chat completions."""


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool of which only the declaration is known, because another program runs it."""

    form: Mapping[str, Any]
    """The declaration in the form of OpenAI's chat completions."""

    def to_openai(self) -> dict[str, Any]:
        """Returns the declaration unchanged."""
        return dict(self.form)
