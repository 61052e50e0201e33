"""``TriedTemplate``: finds out by test conversations how a chat template expects messages, thinking, calls and results."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn, NativeCall
from agentenv.core.chat_template import MARK, ChatTemplate
from agentenv.core.tool_replies import call_id
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError

_NAME = "tuvq_tool"
ASKED = Message("user", "Who?")
"""The question in the test conversations."""
_THINKING_KEYS = ("reasoning_content", "thinking", "reasoning")


class TriedTemplate(ChatTemplate):
    """Determines the ``TemplateForm``, once for each set of tools, and refuses a template that no form fits."""

    @cached_property
    def _checked(self) -> set[str]:
        """The sets of tools that were tested, as JSON."""
        return set()

    def _check(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Renders a test conversation.

        Raises:
            ConfigurationError: the template cannot show these tools, or cannot continue after a turn.
        """
        key = json.dumps([dict(tool) for tool in tools], sort_keys=True)
        if key in self._checked:
            return
        if tools:
            self._check_tools(tools)
        self._form.thinking_key = self._find_thinking_key(tools)
        self._form.thinks_nothing = self._closes_thinking(tools)
        self._check_end_of_turn(tools)
        self._checked.add(key)

    def _check_shown(
        self,
        messages: Sequence[Message | AssistantTurn],
        tools: Sequence[Mapping[str, Any]],
        prompt: str,
    ) -> None:
        """Checks that each message is in the prompt, unchanged or in another form; turns with calls may be rewritten.

        Raises:
            ConfigurationError: the template drops one.
        """
        for place, message in enumerate(messages):
            if isinstance(message, AssistantTurn):
                continue
            probe = (
                *messages[:place],
                replace(message, content=MARK.format("said")),
                *messages[place + 1 :],
            )
            if self._defused(message.text).strip() in prompt or self._shows(
                probe, tools, MARK.format("said")
            ):
                continue
            raise ConfigurationError(
                f"the chat template of the family {self.family.name!r} leaves out a message of the role {message.role!r}: "
                "save one that shows it in the folder of the tokenizer, or take another model"
            )

    def _check_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        if not self.family.calls_tools:
            raise ConfigurationError(
                f"the chat template is of the family {self.family.name!r}, which has no form for tool calls: use the inline "
                "format, or name the family of the model"
            )
        self._form.declares = False
        missing = self._missing_texts(tools)
        if missing and self.family.declares_for and self.family.declares_for in self._template:
            self._form.declares = True
            missing = self._missing_texts(tools)
        if missing:
            raise ConfigurationError(
                f"the chat template of the family {self.family.name!r} does not show {missing!r} of the tools: use the "
                "inline format, or a chat template of the model that shows tools"
            )
        self._check_calls(tools)
        self._form.tool_without_call = self._shows(
            (ASKED, AssistantTurn(None, "Yes."), Message("tool", MARK.format("out"), name=_NAME)),
            tools,
            MARK.format("out"),
        )

    def _missing_texts(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Returns a name of a tool or an argument that is missing in the prompt; empty if none is."""
        prompt = self._render((ASKED,), tools)
        functions = [tool["function"] for tool in tools]
        names = [
            name for f in functions for name in (f["name"], *f.get("parameters", {}).get("properties", {}))
        ]
        return next((name for name in names if name not in prompt), "")

    def _check_calls(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Determines how the template expects calls: arguments as an object or a JSON string, or calls in the content.

        Raises:
            ConfigurationError: it accepts calls in none of these forms.
        """
        ways = [(False, False), (True, False), *([(False, True)] if self.family.calls_as_text else [])]
        for self._form.json_arguments, self._form.calls_in_content in ways:
            if self._shows_calls(tools):
                self._check_reading(tools)
                return
        self._form.json_arguments = self._form.calls_in_content = False
        self._render(self._called(), tools)  # raises the template's own error, if it refuses the call
        raise ConfigurationError(
            f"the chat template of the family {self.family.name!r} leaves out tool calls or their results: use the inline "
            "format, or a chat template of the model that shows them"
        )

    def _check_reading(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Checks that rendered calls are parsed as the same calls: a made-up one, and one of each tool.

        Raises:
            ConfigurationError: the family uses another syntax, or the syntax cannot express a name of these tools.
        """
        written = self._written(self._called(), tools)
        header = self._render((ASKED,), tools).partition(ASKED.text)[2]
        self._form.call_marks = frozenset(
            token for token in self._control if token in written and token not in header
        )
        if not self._reads(self._called(), tools):
            raise ConfigurationError(
                f"the chat template is taken for one of the family {self.family.name!r} and writes tool calls in another "
                "form: use the inline format, or name the family of the model"
            )
        for function in (tool["function"] for tool in tools):
            names = tuple(function.get("parameters", {}).get("properties", {}))
            if not self._reads(self._called(function["name"], names), tools):
                called = f"{function['name']}({', '.join(names)})"
                raise ConfigurationError(
                    f"the family {self.family.name!r} has no way to write a call of the tool {called!r} that can be read "
                    "again: rename the tool or its arguments, or use the inline format"
                )

    def _reads(
        self, called: tuple[Message, AssistantTurn, Message], tools: Sequence[Mapping[str, Any]]
    ) -> bool:
        (wanted,) = called[1].calls
        found = self.family.read(self._written(called, tools), False, {_NAME: {}}).calls
        return any(
            isinstance(wanted, NativeCall)
            and isinstance(call, NativeCall)
            and (call.name, call.arguments) == (wanted.name, wanted.arguments)
            for call in found
        )

    def _written(
        self, called: tuple[Message, AssistantTurn, Message], tools: Sequence[Mapping[str, Any]]
    ) -> str:
        """Returns the assistant's turn in ``called`` as the template renders it, up to its end token."""
        prompt, shown = self._render(called[:1], tools), self._render(called, tools)
        shown = shown.partition(called[2].text)[0]
        begin = len(prompt) if shown.startswith(prompt) else shown.index(called[0].text) + len(called[0].text)
        (call,) = called[1].calls
        name = call.name if isinstance(call, NativeCall) else ""
        # a call may have no arguments
        said = max(shown.find(MARK.format("in"), begin), shown.find(name, begin), begin)
        end = min((at for closer in self._closers if (at := shown.find(closer, said)) >= 0), default=None)
        return shown[begin:end]

    def _called(
        self, name: str = _NAME, arguments: Sequence[str] = ("a",)
    ) -> tuple[Message, AssistantTurn, Message]:
        """Returns a made-up question, a call and its result."""
        id_ = self.family.call_id.format(name=name, place=0) or call_id(0)
        given = {argument: MARK.format("in") for argument in arguments}
        turn = AssistantTurn(None, "", (NativeCall(name, given, id_),))
        return ASKED, turn, Message("tool", MARK.format("out"), name=name, call_id=id_)

    def _shows_calls(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        return self._shows(self._called(), tools, _NAME, MARK.format("in"), MARK.format("out"))

    def _shows(
        self, messages: Sequence[Message | AssistantTurn], tools: Sequence[Mapping[str, Any]], *texts: str
    ) -> bool:
        try:
            rendered = self._render(messages, tools)
        except ConfigurationError:
            return False
        return all(text in rendered for text in texts)

    def _find_thinking_key(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Returns the key of a message under which the template expects the thinking; empty if there is none."""
        thought = MARK.format("think")
        call = (NativeCall(_NAME, {}),) if tools else ()
        answer = (Message("tool", "x", name=_NAME, call_id=call_id(0)),) if tools else ()
        for key in _THINKING_KEYS:
            self._form.thinking_key = key
            turn = AssistantTurn(thought, "" if tools else "Yes.", call)
            if self._shows((ASKED, turn, *answer), tools, thought):
                return key
            last = self._last(turn, tools)
            if thought in last:
                return key
        return ""

    def _closes_thinking(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        """Whether prompts end with a closed thinking block, as templates write it if the model is not to think."""
        return self._render((ASKED,), tools).rstrip().endswith(self.family.thinking_end)

    def _last(self, turn: AssistantTurn, tools: Sequence[Mapping[str, Any]]) -> str:
        try:
            return self._render((ASKED, turn), tools, open_assistant=False)
        except ConfigurationError:
            return ""

    def _check_end_of_turn(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Checks that the template writes an end token after a turn, and shows the message after it."""
        turn, later = AssistantTurn(None, "Yes."), Message("user", MARK.format("later"))
        prompt = self._render((ASKED,), tools)
        after = self._render((ASKED, turn, later), tools)
        at = after.find(later.text)
        begin = len(prompt) if after.startswith(prompt) else after.find("Yes.")
        if at < 0 or not any(closer in after[max(begin, 0) : at] for closer in self._closers):
            raise ConfigurationError(
                f"the chat template ends a turn with none of {', '.join(self._closers)}: use the inline format"
            )
