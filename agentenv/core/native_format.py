"""``NativeFormat``: encodes conversations with the model's own chat template, in the form that it was trained in.

The record consists of the ids that were fed and sampled. An observation is appended to them if the template, given the whole
conversation, renders a text that begins with the same prompt and then a turn equal to the sampled one. If the template
changes earlier text (many omit the thinking of earlier turns), the conversation continues in a new row with the newly
rendered text. Ids are never patched.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn, NativeCall
from agentenv.core.chat_template import MARK
from agentenv.core.conversation import Conversation, Unrenderable, as_turns
from agentenv.core.grammar import shortened
from agentenv.core.template_trials import ASKED, TriedTemplate
from agentenv.core.token_texts import defused, encode
from agentenv.core.tool_replies import call_id, replies
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError

_CONTEXT_CHARS = 200
"""Number of preceding characters that can influence how a text is encoded."""


class NativeFormat(TriedTemplate):
    """Renders and parses conversations for one model family."""

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Encodes a prompt without tools."""
        return self._encode(self._render(messages, ()), messages)

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Always raises an error, because the rendering of a message depends on the conversation before it.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            "this rollout strategy continues an episode from token ids alone, and the native format needs a "
            "conversation: use the inline format"
        )

    def closing(self, ids: Sequence[int]) -> list[int]:
        """Returns an empty list: the end of a turn depends on the next message, and is encoded with it."""
        return []

    def open(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Conversation, list[int]]:
        """Starts a conversation with ``messages``; returns it and its token ids.

        Raises:
            ConfigurationError: the template cannot show these tools, or cannot continue after a call.
        """
        self._check(tools)
        said = as_turns(messages)
        text = self._render(said, tools)
        self._check_shown(said, tools, text)
        return Conversation(self.family, said, tuple(tools), text), self._encode(text, said)

    def go_on(
        self, ids: Sequence[int], conversation: Conversation, new: Sequence[Message]
    ) -> tuple[Conversation, list[int]]:
        """See ``ConversationFormat``. The ids do not extend ``ids`` if the template changes earlier turns.

        Raises:
            Unrenderable: the template refuses the policy's turn.
        """
        new = sorted(new, key=self._shown_as_user_message)  # messages that answer no call come last
        messages = (*conversation.messages, *new)
        try:
            after = self._render(messages, conversation.tools)
            rest = self._text_after_turn(conversation, new, after)
        except ConfigurationError as error:
            raise Unrenderable(str(error)) from error
        later = replace(conversation, messages=messages, prompt=after)
        added = self._without_sampled_end(ids, self._encode(rest, new)) if rest is not None else None
        return later, self._encode(after, messages) if added is None else [*ids, *added]

    def encode_turn(self, conversation: Conversation, turn: AssistantTurn) -> list[int]:
        """Encodes ``turn`` as a model of this family would have written it, with the token that ends it.

        Thinking is omitted if the prompt closes the thinking block, or if the template cannot show it in such a turn.

        Args:
            conversation: The conversation up to the place where the turn is written.
            turn: The turn. Its calls need no ids.

        Raises:
            Unrenderable: the template cannot write this turn, or what it writes would be parsed as another turn.
        """
        turn = self._with_ids(conversation, self._with_allowed_thinking(conversation, turn))
        for said in dict.fromkeys((turn.thinking, None)):
            for text, closer in self._candidates(conversation, replace(turn, thinking=said)):
                ids = self._encode_behind(conversation.prompt, text)
                found = conversation.read(self._tokenizer.decode(ids))
                thought = (found.thinking or "").strip() == (said or "").strip()
                if found.closed and thought and found.same_content_and_calls(turn):
                    return [*ids, *self._encode(closer, ())]
        called = ", ".join(call.name for call in turn.calls if isinstance(call, NativeCall))
        raise Unrenderable(
            f"the chat template of the family {self.family.name!r} has no way to write the turn "
            f"{shortened(turn.with_thinking or called, 80)!r} so that it is read as the same again"
        )

    def _with_allowed_thinking(self, conversation: Conversation, turn: AssistantTurn) -> AssistantTurn:
        """Removes thinking that cannot be written: all of it if the prompt closes it, and closing tags within it."""
        end = self.family.thinking_end
        # Some prompts close it only after a user message, or if the system prompt says so.
        closed = self._form.thinks_nothing or conversation.prompt.rstrip().endswith(end)
        if turn.thinking is None or closed:
            return replace(turn, thinking=None)
        thinking = defused(self._defused_text(turn.thinking), (end,))
        return replace(turn, thinking=thinking.strip())

    def _encode_behind(self, prompt: str, text: str) -> list[int]:
        """Encodes ``text`` as it follows ``prompt``: some tokenizers put a space before a text that is encoded alone."""
        end = prompt[-_CONTEXT_CHARS:]
        before, both = encode(self._tokenizer, end), encode(self._tokenizer, end + text)
        return both[len(before) :] if both[: len(before)] == before else encode(self._tokenizer, text)

    def _with_ids(self, conversation: Conversation, turn: AssistantTurn) -> AssistantTurn:
        """Gives the calls of ``turn`` the ids that this family would use, which may count all calls of the conversation."""
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

    def _candidates(self, conversation: Conversation, turn: AssistantTurn) -> Iterator[tuple[str, str]]:
        """Yields possible renderings of ``turn``, each with the token that ends it.

        The turn is rendered after the conversation, and after a single question, because many templates change earlier turns
        as soon as a later one follows.
        """
        alone = (ASKED,), self._render((ASKED,), conversation.tools)
        for messages, prompt in ((conversation.messages, conversation.prompt), alone):
            unopened = prompt.rstrip().removesuffix(self.family.thinking)
            ended = ""
            for shown, is_last in self._renderings(messages, turn, conversation.tools):
                at, closer = max((shown.rfind(one, len(unopened)), one) for one in self._closers)
                if is_last and ended and (at < 0 or shown[at + len(closer) :].strip()):
                    # The template does not end the last turn of a conversation.
                    at, closer = len(shown.rstrip()), ended
                if at < 0 or closer in self.family.closers:
                    continue
                ended = closer
                if shown.startswith(prompt):
                    yield shown[len(prompt) : at], closer
                elif shown.startswith(unopened):
                    yield self._with_opened_thinking(turn, shown[len(unopened) : at]), closer

    def _renderings(
        self,
        messages: Sequence[Message | AssistantTurn],
        turn: AssistantTurn,
        tools: Sequence[Mapping[str, Any]],
    ) -> Iterator[tuple[str, bool]]:
        """Yields the rendered ``messages`` and ``turn``, first with a later message, and whether the turn is the last."""
        mark = MARK.format("next")
        later = replies(turn, tuple(Message("tool", mark) for _ in turn.calls)) or (Message("user", mark),)
        for is_last, said in ((False, (*messages, turn, *later)), (True, (*messages, turn))):
            try:
                shown = self._render(said, tools, open_assistant=not is_last)
            except ConfigurationError:
                continue
            if is_last or mark in shown:
                yield shown.partition(mark)[0], is_last

    def _with_opened_thinking(self, turn: AssistantTurn, rest: str) -> str:
        """Returns a turn whose prompt has opened the thinking; the template shows only ``rest`` in a conversation."""
        closing = self.family.thinking_as_text.partition("{}")[2]
        return rest if rest.startswith(closing.strip()) else f"{turn.thinking or ''}{closing}{rest.lstrip()}"

    def _without_sampled_end(self, ids: Sequence[int], added: list[int]) -> list[int] | None:
        """Returns ``added`` without the end token if that was sampled; None if another end token was sampled."""
        if ids and added[:1] == [ids[-1]]:
            return added[1:]
        return None if ids and ids[-1] in self._ends else added

    def _text_after_turn(self, conversation: Conversation, new: Sequence[Message], after: str) -> str | None:
        """Returns the part of ``after`` behind the policy's turn; None if the template changed the text before that."""
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
