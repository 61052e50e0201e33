"""``ChatTemplate``: renders conversations with a model's own chat template, in the form that its family expects."""

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn, MalformedCall, NativeCall
from agentenv.core.chat import TEXT_ALONE, content_of, encode_with_images, end_of_turn
from agentenv.core.images import ImageReader, refuse_images
from agentenv.core.model_families import Family, family_of, get_family
from agentenv.core.template_dates import dated_template, template_of, template_options
from agentenv.core.token_texts import control_tokens, defused, normaliser, template_tags
from agentenv.core.tool_replies import call_id
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError, first_line

MARK = f"Tuvq{secrets.token_hex(8)}x{{}}z"
"""Temporarily replaces a text while a template is rendered. It contains a random number, so that nobody can write it into a
conversation. Otherwise results that contain such marks would be inserted into each other, and a few of them could make a
prompt of any length."""


@dataclass
class TemplateForm:
    """How a template expects conversations, as `agentenv.core.template_trials` finds out by test conversations."""

    thinking_key: str = ""
    """The key of a message under which the template expects the thinking; empty if the template has none."""
    thinks_nothing: bool = False
    """Whether every prompt ends with a closed thinking block, as happens when thinking is turned off."""
    json_arguments: bool = False
    """Whether the template expects a call's arguments as a JSON string instead of an object."""
    calls_in_content: bool = False
    """Whether the template expects calls as part of the content of a turn."""
    call_marks: frozenset[str] = frozenset()
    """The control tokens with which calls are written."""
    declares: bool = False
    """Whether the tools are declared in the system prompt, as the family documents it, because the template ignores
    tools."""
    tool_without_call: bool = False
    """Whether the template can show a tool result that answers no call."""


class ChatTemplate:
    """Renders conversations for one model family; texts in them cannot contain control tokens."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        family: str = "",
        options: Mapping[str, Any] | None = None,
        ends: Collection[int] = (),
        image_reader: ImageReader | None = None,
    ) -> None:
        """Analyses the chat template.

        Args:
            tokenizer: A tokenizer with a chat template.
            family: The name of the model family; empty detects it from the template.
            options: Arguments of the template, such as ``enable_thinking``. ``date`` is the date that the template uses as
                today.
            ends: Token ids with which the policy ends a turn.
            image_reader: The image reader of the policy; None if the policy reads text only.

        Raises:
            ConfigurationError: there is no chat template, or it cannot be rendered, or it does not end turns.
            UnknownName: there is no family of this name.
        """
        if tokenizer.chat_template is None:
            raise ConfigurationError(
                "this tokenizer has no chat template, so its model has no native form: use the inline format"
            )
        self._tokenizer = tokenizer
        self._template = template_of(tokenizer)
        self.family: Family = get_family(family) if family else family_of(self._template)
        self._options, self._day = template_options(options or {})
        self.image_reader = image_reader
        self._control, self._tags = control_tokens(tokenizer, image_reader), template_tags(tokenizer)
        self._normalise = normaliser(tokenizer)
        self._ends = set(ends)
        self._closers = self._closing_texts(ends)
        self._form = TemplateForm()

    def _closing_texts(self, ends: Collection[int]) -> tuple[str, ...]:
        ids = {*ends, self._tokenizer.eos_token_id, end_of_turn(self._tokenizer)} - {None}
        texts = [self._tokenizer.decode([i]) for i in sorted(ids)]
        return tuple(dict.fromkeys([*texts, *self.family.ends, *self.family.closers]))

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
        if self._form.declares and tools and self.family.declare is not None:
            form = _with_system(form, self.family.declare(declared), self.family.declares_after)
        rendered = declared or None
        # SmolLM3's name for the tools
        named: dict[str, Any] = {"xml_tools": rendered} if "xml_tools" in self._template else {}
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
        except Exception as error:  # a template may raise any error
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
        if self._shown_as_user_message(message):
            return {"role": "user", "content": text}
        if self.family.plain_results:
            mark = MARK.format(f"r{len(texts)}r")
            texts[mark] = text
            text = mark
        name, answered = self._defused(message.name), self._defused(message.call_id)
        return {"role": "tool", "content": text, "name": name, "tool_call_id": answered}

    def _shown_as_user_message(self, message: Message) -> bool:
        """Whether ``message`` is a tool message without a call that the template can show only as a user message."""
        return message.role == "tool" and not message.name and not self._form.tool_without_call

    def _assistant(self, turn: AssistantTurn) -> dict[str, Any]:
        # Malformed calls keep their control tokens, so that the conversation still begins with the sampled ids and the model
        # sees its mistake.
        others = [token for token in self._control if token not in self._form.call_marks]
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
            if self._form.thinking_key:
                form[self._form.thinking_key] = thinking
            else:
                form["content"] = self.family.thinking_as_text.format(thinking) + content
        if calls and self._form.calls_in_content and self.family.calls_as_text is not None:
            texts = [json.dumps(call["function"], ensure_ascii=False) for call in calls]
            form["content"] += self.family.calls_as_text([self._defused(text) for text in texts])
        elif calls:
            form["tool_calls"] = calls
            if self.family.one_text and turn.thinking:
                form["content"] = ""
        return form

    def _call(self, call: NativeCall, place: int) -> dict[str, Any]:
        arguments = self._defused(call.arguments)
        if self._form.json_arguments:
            arguments = json.dumps(arguments, ensure_ascii=False)
        function = {"name": self._defused(call.name), "arguments": arguments}
        return {"type": "function", "id": self._defused(call.id) or call_id(place), "function": function}

    def _defused_text(self, text: str) -> str:
        return defused(text, self._control, self._normalise)

    def _defused(self, value: Any) -> Any:
        """Returns ``value`` with unreadable control tokens in all its texts, because a policy's turn may hold some."""
        if isinstance(value, str):
            return self._defused_text(value)
        if isinstance(value, Mapping):
            return {self._defused(name): self._defused(one) for name, one in value.items()}
        return [self._defused(one) for one in value] if isinstance(value, list) else value

    def _encode(self, text: str, messages: Sequence[Message | AssistantTurn]) -> list[int]:
        return encode_with_images(self._tokenizer, text, messages, self.image_reader)


def _with_system(form: Sequence[dict[str, Any]], text: str, between: str) -> list[dict[str, Any]]:
    """Appends ``text`` to the system prompt, or adds it as one."""
    if form and form[0]["role"] == "system":
        return [form[0] | {"content": f"{form[0]['content']}{between}{text}"}, *form[1:]]
    return [{"role": "system", "content": text}, *form]
