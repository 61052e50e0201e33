"""``NativeFormat``: a conversation as ids in the form that a model was trained in, by its own chat template.

The ids that were fed and sampled are the record. An observation is appended where the template, given the whole
conversation, begins with what stands there already: the same prompt, and after it a turn that says the same as the one
that was sampled. Where the template rewrites what came before (many leave out the thinking of earlier turns), the
conversation goes on in a new row with what the template makes of it. Nothing is ever patched.
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

_BESIDE = 200
"""Characters before a text that decide how it begins as ids."""


class NativeFormat(TriedTemplate):
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
            "this rollout strategy continues an episode from token ids alone, and the native format needs a "
            "conversation: use the inline format"
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

    def encode_turn(self, conversation: Conversation, turn: AssistantTurn) -> list[int]:
        """The ids by which a model of this family would have written ``turn``, with the token that ends it.

        Thinking is left out where the prompt closes it, and where the template has no place for it in such a turn.

        Args:
            conversation: Up to the place where the turn is written.
            turn: Its calls need no ids.

        Raises:
            Unrenderable: the template writes no such turn, or one that would be read as another.
        """
        turn = self._with_ids(conversation, self._thinkable(conversation, turn))
        for said in dict.fromkeys((turn.thinking, None)):
            for text, closer in self._candidates(conversation, replace(turn, thinking=said)):
                ids = self._encode_behind(conversation.prompt, text)
                found = conversation.read(self._tokenizer.decode(ids))
                thought = (found.thinking or "").strip() == (said or "").strip()
                if found.closed and thought and found.does_as(turn):
                    return [*ids, *self._encode(closer, ())]
        called = ", ".join(call.name for call in turn.calls if isinstance(call, NativeCall))
        raise Unrenderable(
            f"the chat template of the family {self.family.name!r} has no way to write the turn "
            f"{shortened(turn.with_thinking or called, 80)!r} so that it is read as the same again"
        )

    def _thinkable(self, conversation: Conversation, turn: AssistantTurn) -> AssistantTurn:
        """``turn`` with what can be thought: nothing behind a prompt that closes the thinking, and no tag that closes it."""
        end = self.family.thinking_end
        # Some prompts close it only behind a user, or where the system prompt says so.
        closed = self._form.thinks_nothing or conversation.prompt.rstrip().endswith(end)
        if turn.thinking is None or closed:
            return replace(turn, thinking=None)
        thinking = defused(self._defused_text(turn.thinking), (end,))
        return replace(turn, thinking=thinking.strip())

    def _encode_behind(self, prompt: str, text: str) -> list[int]:
        """The ids of ``text`` as it stands behind ``prompt``: some tokenizers put a space before a text that is alone."""
        end = prompt[-_BESIDE:]
        before, both = encode(self._tokenizer, end), encode(self._tokenizer, end + text)
        return both[len(before) :] if both[: len(before)] == before else encode(self._tokenizer, text)

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

    def _candidates(self, conversation: Conversation, turn: AssistantTurn) -> Iterator[tuple[str, str]]:
        """What the template writes for ``turn``, and the token that ends it.

        It is written behind the conversation, and behind a question alone, because many templates change earlier turns as
        soon as a later one is there.
        """
        alone = (ASKED,), self._render((ASKED,), conversation.tools)
        for messages, prompt in ((conversation.messages, conversation.prompt), alone):
            unopened = prompt.rstrip().removesuffix(self.family.thinking)
            ended = ""
            for shown, is_last in self._renderings(messages, turn, conversation.tools):
                at, closer = max((shown.rfind(one, len(unopened)), one) for one in self._closers)
                if is_last and ended and (at < 0 or shown[at + len(closer) :].strip()):
                    # The template leaves the last turn without an end.
                    at, closer = len(shown.rstrip()), ended
                if at < 0 or closer in self.family.closers:
                    continue
                ended = closer
                if shown.startswith(prompt):
                    yield shown[len(prompt) : at], closer
                elif shown.startswith(unopened):
                    yield self._thought(turn, shown[len(unopened) : at]), closer

    def _renderings(
        self,
        messages: Sequence[Message | AssistantTurn],
        turn: AssistantTurn,
        tools: Sequence[Mapping[str, Any]],
    ) -> Iterator[tuple[str, bool]]:
        """``messages`` and ``turn``, up to a later message and without one, and whether the turn is the last."""
        mark = MARK.format("next")
        later = replies(turn, tuple(Message("tool", mark) for _ in turn.calls)) or (Message("user", mark),)
        for is_last, said in ((False, (*messages, turn, *later)), (True, (*messages, turn))):
            try:
                shown = self._render(said, tools, open_assistant=not is_last)
            except ConfigurationError:
                continue
            if is_last or mark in shown:
                yield shown.partition(mark)[0], is_last

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
