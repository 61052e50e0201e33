"""``NativeFormat``: a conversation as ids in the form that a model was trained in, by its own chat template.

The ids that were fed and sampled are the record. An observation is appended where the template, given the whole
conversation, begins with what stands there already: the same prompt, and after it a turn that says the same as the one
that was sampled. Where the template rewrites what came before (many leave out the thinking of earlier turns), the
conversation goes on in a new row with what the template makes of it. Nothing is ever patched.
"""

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn, MalformedCall, NativeCall
from agentenv.core.chat import TEXT_ALONE, content_of, encode_with_images, end_of_turn
from agentenv.core.conversation import Conversation, Unrenderable, as_turns
from agentenv.core.images import ImageReader, refuse_images
from agentenv.core.model_families import Family, family_of, get_family
from agentenv.core.template_dates import TODAY, dated_template, template_of
from agentenv.core.token_texts import control_tokens, defused, normaliser, template_tags
from agentenv.core.tool_replies import call_id
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError, first_line

_MARK = f"Tuvq{secrets.token_hex(8)}x{{}}z"
"""Stands for a text while a template is rendered. Nobody can write it into a conversation: marks of results within results
would otherwise be filled one after the other, and a few of them would make a prompt of any length."""
_NAME = "tuvq_tool"
_ASKED = Message("user", "Who?")
_THINKING_KEYS = ("reasoning_content", "thinking", "reasoning")


class NativeFormat:
    """Renders and reads conversations as one family does."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        family: str = "",
        options: Mapping[str, Any] | None = None,
        ends: Collection[int] = (),
        image_reader: ImageReader | None = None,
    ) -> None:
        """Checks the template.

        Args:
            tokenizer: With a chat template.
            family: Name of the model family; empty reads it from the template.
            options: Arguments of the template, such as ``enable_thinking``; ``date`` is what a template takes for today.
            ends: Ids with which the policy ends a turn.
            image_reader: Of the policy; None where it reads text alone.

        Raises:
            ConfigurationError: no chat template, or one that cannot be rendered or ends no turn.
            UnknownName: no such family.
        """
        if tokenizer.chat_template is None:
            raise ConfigurationError(
                "this tokenizer has no chat template, so its model has no native form: use the inline format"
            )
        self._tokenizer = tokenizer
        self._template = template_of(tokenizer)
        self.family: Family = get_family(family) if family else family_of(self._template)
        self._options, self._day = _template_options(options or {})
        self.image_reader = image_reader
        self._control, self._tags = control_tokens(tokenizer, image_reader), template_tags(tokenizer)
        self._normalise = normaliser(tokenizer)
        self._ends = set(ends)
        self._closers = self._closing_texts(ends)
        self._thinking_key, self._json_arguments, self._tool_without_call = "", False, False
        self._calls_in_content, self._declares = False, False
        self._call_marks: frozenset[str] = frozenset()
        self._checked: set[str] = set()

    def _closing_texts(self, ends: Collection[int]) -> tuple[str, ...]:
        ids = {*ends, self._tokenizer.eos_token_id, end_of_turn(self._tokenizer)} - {None}
        texts = [self._tokenizer.decode([i]) for i in sorted(ids)]
        return tuple(dict.fromkeys([*texts, *self.family.ends, *self.family.closers]))

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
        marked = [replace(message, content=_MARK.format(place)) for place, message in enumerate(new)]
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

    def _render(
        self,
        messages: Sequence[Message | AssistantTurn],
        tools: Sequence[Mapping[str, Any]],
        *,
        open_assistant: bool = True,
    ) -> str:
        if self.image_reader is None:
            refuse_images(messages, TEXT_ALONE)
        texts: dict[str, str] = {}
        form = [self._message(message, texts) for message in messages]
        declared: list[dict[str, Any]] = [self._defused(tool) for tool in tools]
        if self._declares and tools and self.family.declare is not None:
            form = _with_system(form, self.family.declare(declared), self.family.declares_after)
        rendered = declared or None
        named: dict[str, Any] = (
            {"xml_tools": rendered} if "xml_tools" in self._template else {}
        )  # SmolLM3 calls them so
        named |= dated_template(template_of(self._tokenizer, rendered), self._day)
        try:
            text: str = self._tokenizer.apply_chat_template(
                form,
                tools=rendered,
                tokenize=False,
                add_generation_prompt=open_assistant,
                **named,
                **self._options,
            )
        except Exception as error:  # a template raises whatever its author wrote
            raise ConfigurationError(
                f"the chat template of the family {self.family.name!r} refuses this conversation ({first_line(error)}): use "
                "the inline format"
            ) from error
        for mark, said in texts.items():
            text = text.replace(json.dumps(mark), said).replace(mark, said)
        return text

    def _message(self, message: Message | AssistantTurn, texts: dict[str, str]) -> dict[str, Any]:
        if isinstance(message, AssistantTurn):
            return self._assistant(message)
        if message.role != "tool":
            return {"role": message.role, "content": content_of(message, self._defused_text)}
        text = defused(message.text, (*self._control, *self._tags), self._normalise)
        if self._in_users_name(message):
            return {"role": "user", "content": text}
        if self.family.plain_results:
            mark = _MARK.format(f"r{len(texts)}r")
            texts[mark] = text
            text = mark
        name, answered = self._defused(message.name), self._defused(message.call_id)
        return {"role": "tool", "content": text, "name": name, "tool_call_id": answered}

    def _in_users_name(self, message: Message) -> bool:
        """Whether ``message`` says what is wrong with a malformed call to a family whose tools answer calls alone."""
        return message.role == "tool" and not message.name and not self._tool_without_call

    def _assistant(self, turn: AssistantTurn) -> dict[str, Any]:
        # With the marks of calls as they were written: the row goes on, and what was wrong is seen.
        others = [token for token in self._control if token not in self._call_marks]
        raw = [
            defused(call.text, others, self._normalise)
            for call in turn.calls
            if isinstance(call, MalformedCall)
        ]
        content = "\n".join(part for part in (self._defused(turn.content), *raw) if part)
        calls = [
            self._call(call, place) for place, call in enumerate(turn.calls) if isinstance(call, NativeCall)
        ]
        form: dict[str, Any] = {"role": "assistant", "content": content}
        if turn.thinking:
            thinking = self._defused(turn.thinking)
            if self._thinking_key:
                form[self._thinking_key] = thinking
            else:
                form["content"] = self.family.thinking_as_text.format(thinking) + content
        if calls and self._calls_in_content and self.family.calls_as_text is not None:
            texts = [json.dumps(call["function"], ensure_ascii=False) for call in calls]
            form["content"] += self.family.calls_as_text([self._defused(text) for text in texts])
        elif calls:
            form["tool_calls"] = calls
            if self.family.one_text and turn.thinking:
                form["content"] = ""
        return form

    def _call(self, call: NativeCall, place: int) -> dict[str, Any]:
        arguments = self._defused(call.arguments)
        if self._json_arguments:
            arguments = json.dumps(arguments, ensure_ascii=False)
        function = {"name": self._defused(call.name), "arguments": arguments}
        return {"type": "function", "id": self._defused(call.id) or call_id(place), "function": function}

    def _defused_text(self, text: str) -> str:
        return defused(text, self._control, self._normalise)

    def _defused(self, value: Any) -> Any:
        """A value with no control token in any text of it: a turn of the policy is shown again, and may hold any."""
        if isinstance(value, str):
            return self._defused_text(value)
        if isinstance(value, Mapping):
            return {self._defused(name): self._defused(one) for name, one in value.items()}
        return [self._defused(one) for one in value] if isinstance(value, list) else value

    def _encode(self, text: str, messages: Sequence[Message | AssistantTurn]) -> list[int]:
        return encode_with_images(self._tokenizer, text, messages, self.image_reader)

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
                replace(message, content=_MARK.format("said")),
                *messages[place + 1 :],
            )
            if self._defused(message.text).strip() in prompt or self._shows(
                probe, tools, _MARK.format("said")
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
            (_ASKED, AssistantTurn(None, "Yes."), Message("tool", _MARK.format("out"), name=_NAME)),
            tools,
            _MARK.format("out"),
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
        said = max(shown.find(_MARK.format("in"), begin), begin)
        end = min((at for closer in self._closers if (at := shown.find(closer, said)) >= 0), default=None)
        return shown[begin:end]

    def _called(
        self, name: str = _NAME, arguments: Sequence[str] = ("a",)
    ) -> tuple[Message, AssistantTurn, Message]:
        """A call and its result, both made up."""
        id_ = self.family.call_id.format(name=name) or call_id(0)
        given = {argument: _MARK.format("in") for argument in arguments}
        turn = AssistantTurn(None, "", (NativeCall(name, given, id_),))
        return _ASKED, turn, Message("tool", _MARK.format("out"), name=name, call_id=id_)

    def _shows_calls(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        return self._shows(self._called(), tools, _NAME, _MARK.format("in"), _MARK.format("out"))

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
        thought = _MARK.format("think")
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
        turn, later = AssistantTurn(None, "Yes."), Message("user", _MARK.format("later"))
        prompt = self._render((_ASKED,), tools)
        after = self._render((_ASKED, turn, later), tools)
        at = after.find(later.text)
        begin = len(prompt) if after.startswith(prompt) else after.find("Yes.")
        if at < 0 or not any(closer in after[max(begin, 0) : at] for closer in self._closers):
            raise ConfigurationError(
                f"the chat template ends a turn with none of {', '.join(self._closers)}: use the inline format"
            )


def _with_system(form: Sequence[dict[str, Any]], text: str, between: str) -> list[dict[str, Any]]:
    """Messages with ``text`` behind the system prompt, or as one."""
    if form and form[0]["role"] == "system":
        return [form[0] | {"content": f"{form[0]['content']}{between}{text}"}, *form[1:]]
    return [{"role": "system", "content": text}, *form]


def _template_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], date]:
    """What of ``options`` is handed to the template, and the day that it writes, which is the same whenever a run goes on.

    Raises:
        ConfigurationError: ``date`` is no date, or an option is one that the format fills itself.
    """
    filled = {"messages", "conversation", "tools", "tokenize", "add_generation_prompt", "chat_template"}
    if taken := sorted(filled & options.keys()):
        raise ConfigurationError(
            f"the template's argument {taken[0]!r} is filled by the format; leave it out"
        )
    day = options.get("date", TODAY.isoformat())
    try:
        today = date.fromisoformat(str(day))
    except ValueError:
        raise ConfigurationError(f"chat.options.date is {day!r}; write it as 2026-01-31") from None
    rest = {name: value for name, value in options.items() if name != "date"}
    return rest, today
