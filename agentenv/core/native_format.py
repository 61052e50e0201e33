"""``NativeFormat``: a conversation as ids in the form that a model was trained in, by its own chat template.

The ids that were fed and sampled are the record. An observation is appended where the template, given the whole
conversation, begins with what stands there already: the same prompt, and after it a turn that says the same as the one
that was sampled. Where the template rewrites what came before (many leave out the thinking of earlier turns), the
conversation goes on in a new row with what the template makes of it. Nothing is ever patched.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn, NativeCall
from agentenv.core.chat_template import MARK, ChatTemplate
from agentenv.core.conversation import Conversation, Unrenderable, as_turns
from agentenv.core.grammar import shortened
from agentenv.core.tool_replies import call_id, replies
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError

_NAME = "tuvq_tool"
_ASKED = Message("user", "Who?")
_THINKING_KEYS = ("reasoning_content", "thinking", "reasoning")


class NativeFormat(ChatTemplate):
    """Renders and reads conversations as one family does."""

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a prompt without tools."""
        return self._encode(self._render(messages, ()), messages)

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Refuses: what a message becomes depends on the conversation before it.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            "the native format goes on from a conversation and not from ids alone, which this rollout strategy needs: use "
            "the inline format"
        )

    def closing(self, ids: Sequence[int]) -> list[int]:
        """Nothing: what ends a turn depends on the message after it, and comes with that."""
        return []

    def open(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Conversation, list[int]]:
        """The conversation that ``messages`` begin, and its ids.

        Raises:
            ConfigurationError: the template cannot show these tools, or cannot go on after a call.
        """
        self._check(tools)
        said = as_turns(messages)
        text = self._render(said, tools)
        self._check_shown(said, tools, text)
        return Conversation(self.family, said, tuple(tools), text), self._encode(text, said)

    def go_on(
        self, ids: Sequence[int], conversation: Conversation, new: Sequence[Message]
    ) -> tuple[Conversation, list[int]]:
        """See ``ConversationFormat``: the ids are others than ``ids`` and more where the template rewrites earlier turns.

        Raises:
            Unrenderable: the template refuses what the policy wrote.
        """
        new = sorted(new, key=self._in_users_name)  # what answers no call stands behind what does
        messages = (*conversation.messages, *new)
        try:
            after = self._render(messages, conversation.tools)
            rest = self._rest(conversation, new, after)
        except ConfigurationError as error:
            raise Unrenderable(str(error)) from error
        later = replace(conversation, messages=messages, prompt=after)
        added = self._after_end(ids, self._encode(rest, new)) if rest is not None else None
        return later, self._encode(after, messages) if added is None else [*ids, *added]

    def spelt(self, conversation: Conversation, turn: AssistantTurn) -> list[int]:
        """The ids by which a model of this family would have written ``turn``, with the token that ends it.

        Thinking is left out where the prompt says that there is none.

        Args:
            conversation: Up to the place where the turn is written.
            turn: Its calls need no ids.

        Raises:
            Unrenderable: the template writes no such turn, or one that would be read as another.
        """
        turn = self._with_ids(conversation, turn)
        for said in (turn, replace(turn, thinking=None)):
            for text, closer in self._spellings(conversation, said):
                ids = self._encode_behind(conversation.prompt, text)
                found = conversation.read(self._tokenizer.decode(ids))
                thought = (found.thinking or "").strip() == (said.thinking or "").strip()
                if found.closed and thought and found.does_as(said):
                    return [*ids, *self._encode(closer, ())]
        called = ", ".join(call.name for call in turn.calls if isinstance(call, NativeCall))
        raise Unrenderable(
            f"the chat template of the family {self.family.name!r} has no way to write the turn "
            f"{shortened(turn.with_thinking or called, 80)!r} so that it is read as the same again"
        )

    def _encode_behind(self, prompt: str, text: str) -> list[int]:
        """The ids of ``text`` as it stands behind ``prompt``: some tokenizers put a space before a text that is alone."""
        before, both = self._encode(prompt, ()), self._encode(prompt + text, ())
        return both[len(before) :] if both[: len(before)] == before else self._encode(text, ())

    def _with_ids(self, conversation: Conversation, turn: AssistantTurn) -> AssistantTurn:
        """``turn`` with the ids that its calls have in this family, which may count all calls of a conversation."""
        earlier = sum(len(one.calls) for one in conversation.messages if isinstance(one, AssistantTurn))
        calls = tuple(
            replace(
                call, id=self.family.call_id.format(name=call.name, place=earlier + place) or call_id(place)
            )
            if isinstance(call, NativeCall)
            else call
            for place, call in enumerate(turn.calls)
        )
        return replace(turn, calls=calls)

    def _spellings(self, conversation: Conversation, turn: AssistantTurn) -> Iterator[tuple[str, str]]:
        """What the template writes for ``turn`` behind the prompt as an earlier message and as the last one,with its end."""
        said, prompt = (*conversation.messages, turn), conversation.prompt
        unopened = prompt.rstrip().removesuffix(self.family.thinking)
        mark = MARK.format("next")
        later = replies(turn, tuple(Message("tool", mark) for _ in turn.calls)) or (Message("user", mark),)
        for messages, last in (((*said, *later), False), (said, True)):
            try:
                shown = self._render(messages, conversation.tools, open_assistant=not last)
            except ConfigurationError:
                continue
            end = len(shown) if last else shown.find(mark)
            at, closer = max((shown.rfind(closer, len(unopened), end), closer) for closer in self._closers)
            if at < 0 or closer in self.family.closers:
                continue
            if shown.startswith(prompt):
                yield shown[len(prompt) : at], closer
            elif shown.startswith(unopened):
                yield self._thought(turn, shown[len(unopened) : at]), closer

    def _thought(self, turn: AssistantTurn, rest: str) -> str:
        """A turn whose prompt has opened the thinking, of which the template shows ``rest`` alone in a conversation."""
        closing = self.family.thinking_as_text.partition("{}")[2]
        return rest if rest.startswith(closing.strip()) else f"{turn.thinking or ''}{closing}{rest.lstrip()}"

    def _after_end(self, ids: Sequence[int], added: list[int]) -> list[int] | None:
        """``added`` without the end of the turn where that was sampled; None where another one was."""
        if ids and added[:1] == [ids[-1]]:
            return added[1:]
        return None if ids and ids[-1] in self._ends else added

    def _rest(self, conversation: Conversation, new: Sequence[Message], after: str) -> str | None:
        """What of ``after`` comes behind the turn of the policy; None where the template rewrote what is before that."""
        if not after.startswith(conversation.prompt):
            return None
        turn = conversation.messages[-1]
        marked = [replace(message, content=MARK.format(place)) for place, message in enumerate(new)]
        made_up = self._render((*conversation.messages, *marked), conversation.tools)
        before = len(conversation.prompt)
        first = min(
            (at for message in marked if (at := made_up.find(message.text, before)) >= 0),
            default=len(made_up),
        )
        end = max((made_up.rfind(closer, before, first) for closer in self._closers), default=-1)
        if end < 0 or made_up[:end] != after[:end]:
            return None
        same = conversation.read(after[before:end]) == turn
        return after[end:] if same and isinstance(turn, AssistantTurn) and turn.closed else None

    def _check(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Tries the template on a conversation that is made up.

        Raises:
            ConfigurationError: it cannot show these tools, or cannot go on after a turn.
        """
        key = json.dumps([dict(tool) for tool in tools], sort_keys=True)
        if key in self._checked:
            return
        if tools:
            self._check_tools(tools)
        self._thinking_key = self._find_thinking_key(tools)
        self._check_going_on(tools)
        self._checked.add(key)

    def _check_shown(
        self,
        messages: Sequence[Message | AssistantTurn],
        tools: Sequence[Mapping[str, Any]],
        prompt: str,
    ) -> None:
        """Whether the messages are in the prompt, each as it is or in another form; turns with calls may be rewritten.

        Raises:
            ConfigurationError: the template leaves one out.
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
        self._declares = False
        missing = self._missing_texts(tools)
        if missing and self.family.declares_for and self.family.declares_for in self._template:
            self._declares = True
            missing = self._missing_texts(tools)
        if missing:
            raise ConfigurationError(
                f"the chat template of the family {self.family.name!r} does not show {missing!r} of the tools: use the "
                "inline format, or a chat template of the model that shows tools"
            )
        self._check_calls(tools)
        self._tool_without_call = self._shows(
            (_ASKED, AssistantTurn(None, "Yes."), Message("tool", MARK.format("out"), name=_NAME)),
            tools,
            MARK.format("out"),
        )

    def _missing_texts(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """A name of a tool or an argument that the prompt does not hold; empty where it holds all."""
        prompt = self._render((_ASKED,), tools)
        functions = [tool["function"] for tool in tools]
        names = [
            name for f in functions for name in (f["name"], *f.get("parameters", {}).get("properties", {}))
        ]
        return next((name for name in names if name not in prompt), "")

    def _check_calls(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Finds how the template takes calls: with arguments as an object, as JSON, or as the text of the turn.

        Raises:
            ConfigurationError: in no way.
        """
        ways = [(False, False), (True, False), *([(False, True)] if self.family.calls_as_text else [])]
        for self._json_arguments, self._calls_in_content in ways:
            if self._shows_calls(tools):
                self._check_reading(tools)
                return
        self._json_arguments = self._calls_in_content = False
        self._render(self._called(), tools)  # which says what the template refuses, if it does
        raise ConfigurationError(
            f"the chat template of the family {self.family.name!r} leaves out tool calls or their results: use the inline "
            "format, or a chat template of the model that shows them"
        )

    def _check_reading(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Whether calls that the template writes are read as those calls: one that is made up, and one of each tool.

        Raises:
            ConfigurationError: the grammar of the family is another one, or cannot express a name of these tools.
        """
        written = self._written(self._called(), tools)
        header = self._render((_ASKED,), tools).partition(_ASKED.text)[2]
        self._call_marks = frozenset(
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
        """The turn of ``called`` as the template writes it, up to what closes it."""
        prompt, shown = self._render(called[:1], tools), self._render(called, tools)
        shown = shown.partition(called[2].text)[0]
        begin = len(prompt) if shown.startswith(prompt) else shown.index(called[0].text) + len(called[0].text)
        said = max(shown.find(MARK.format("in"), begin), begin)
        end = min((at for closer in self._closers if (at := shown.find(closer, said)) >= 0), default=None)
        return shown[begin:end]

    def _called(
        self, name: str = _NAME, arguments: Sequence[str] = ("a",)
    ) -> tuple[Message, AssistantTurn, Message]:
        """A call and its result, both made up."""
        id_ = self.family.call_id.format(name=name, place=0) or call_id(0)
        given = {argument: MARK.format("in") for argument in arguments}
        turn = AssistantTurn(None, "", (NativeCall(name, given, id_),))
        return _ASKED, turn, Message("tool", MARK.format("out"), name=name, call_id=id_)

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
        """The entry of a message that holds its thinking; empty where the template knows none."""
        thought = MARK.format("think")
        call = (NativeCall(_NAME, {}),) if tools else ()
        answer = (Message("tool", "x", name=_NAME, call_id=call_id(0)),) if tools else ()
        for key in _THINKING_KEYS:
            self._thinking_key = key
            turn = AssistantTurn(thought, "" if tools else "Yes.", call)
            if self._shows((_ASKED, turn, *answer), tools, thought):
                return key
            last = self._last(turn, tools)
            if thought in last:
                return key
        return ""

    def _last(self, turn: AssistantTurn, tools: Sequence[Mapping[str, Any]]) -> str:
        try:
            return self._render((_ASKED, turn), tools, open_assistant=False)
        except ConfigurationError:
            return ""

    def _check_going_on(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Whether the template says where a turn ends, and shows what comes after it."""
        turn, later = AssistantTurn(None, "Yes."), Message("user", MARK.format("later"))
        prompt = self._render((_ASKED,), tools)
        after = self._render((_ASKED, turn, later), tools)
        at = after.find(later.text)
        begin = len(prompt) if after.startswith(prompt) else after.find("Yes.")
        if at < 0 or not any(closer in after[max(begin, 0) : at] for closer in self._closers):
            raise ConfigurationError(
                f"the chat template ends a turn with none of {', '.join(self._closers)}: use the inline format"
            )
