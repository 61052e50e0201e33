"""What an assistant's turn holds, read from its text: thinking, content and tool calls."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A tool call that could be read."""

    name: str
    arguments: Any
    id: str = ""
    """The id that the turn itself gives the call; empty where the family writes none."""


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A tool call that could not be read."""

    text: str
    """The call as it was written, marks included."""
    complaint: str
    """What is wrong with it, for the policy."""
    id: str = ""
    """The id under which it has to be answered; empty where there is none."""
    unfinished: bool = field(default=False, compare=False)
    """Whether the turn ends within the call, so that more text could have completed it."""


Call = NativeCall | MalformedCall
CUT_OFF = "the turn was cut at its limit of tokens before the tool call was complete; write less before it or a shorter call"
"""What a policy is told of a call that a budget of tokens cut off."""
Schemas = Mapping[str, Mapping[str, Any]]
"""JSON Schemas of the arguments, by the names of the tools."""


def call_text(call: Call) -> str:
    """Name and arguments of ``call`` as JSON; a call that could not be read as it was written."""
    if isinstance(call, MalformedCall):
        return call.text
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _unnumbered(call: Call) -> Call:
    return replace(call, id="")


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """One turn of the policy. Two turns are equal where they say the same, whatever the white space around it."""

    thinking: str | None
    """None where the turn has no part for thinking; empty where it has one that is empty."""
    content: str
    calls: tuple[Call, ...] = ()
    closed: bool = True
    """Whether the thinking ended within the turn."""
    as_sent: Mapping[str, Any] | None = field(default=None, compare=False)
    """The turn as a model behind an endpoint gave it and wants it back; None where the policy's ids are the record."""

    @property
    def with_thinking(self) -> str:
        """The content behind the thinking in its tags, as a reward reads it that asks for thoughts.

        Where nothing was thought there are no tags: some templates end the thinking in every turn.
        """
        return f"<think>{self.thinking}</think>\n{self.content}" if self.thinking else self.content

    def does_as(self, other: "AssistantTurn") -> bool:
        """Whether both write the same content and make the same calls, whatever ids these have and what was thought."""
        mine, its = ([_unnumbered(call) for call in turn.calls] for turn in (self, other))
        return (self.content.strip(), mine) == (other.content.strip(), its)

    def cut_off(self) -> "AssistantTurn":
        """This turn where a budget of tokens ended it: an unfinished call at its end says so, and not what it lacks."""
        if not (self.calls and isinstance(last := self.calls[-1], MalformedCall) and last.unfinished):
            return self
        return replace(self, calls=(*self.calls[:-1], replace(last, complaint=CUT_OFF)))


class ToolForm(Protocol):
    """A tool that can be declared to a model."""

    def to_openai(self) -> dict[str, Any]:
        """Name, description and JSON Schema in the form of OpenAI's chat completions."""


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool of which only the declaration is known, because another program runs it."""

    form: Mapping[str, Any]
    """As in OpenAI's chat completions."""

    def to_openai(self) -> dict[str, Any]:
        """The declaration as it was given."""
        return dict(self.form)
