"""Conversations with a model behind an endpoint, coded as ids.

An endpoint shows no ids. A conversation is coded by marks for the roles and pieces of text, so that an episode has the same
record as any other and budgets can be estimated. What no text holds (pictures, tools, turns as a service wants them back) is
kept beside it for as long as the episode is played, under an id of its own.
"""

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from agentenv.core.action_turns import action_text
from agentenv.core.assistant_turns import AssistantTurn
from agentenv.core.conversation import Conversation, as_turns
from agentenv.core.model_families import get_family
from agentenv.core.tool_replies import NOT_RUN
from agentenv.core.types import Message, Role
from agentenv.errors import ConfigurationError, PolicyFault
from agentenv.policies.wire_calls import NAME

T = TypeVar("T")

END = 0
_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")  # the id of a role is its place from 1
_FIRST_PIECE = 256  # below are marks; a piece has a leading byte of 1 before its own bytes
_FIRST_KEPT = 2**62  # above every piece
_PIECE = re.compile(rb" ?[0-9A-Za-z\x80-\xff]{1,6}|[^0-9A-Za-z\x80-\xff]{1,3}")


class PieceTokenizer:
    """Cuts text into pieces of at most seven bytes, about as many as a real tokenizer would.

    An id holds the bytes of its piece, so that decoding needs no vocabulary and gives exactly what went in.
    """

    chat_template = None
    eos_token = ""
    eos_token_id = END

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The ids of ``text``; no text can give the id of a mark."""
        data = text.encode(errors="replace")  # half a surrogate pair is no character
        return [int.from_bytes(b"\x01" + piece, "big") for piece in _PIECE.findall(data)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids`` without marks; a cut character becomes U+FFFD."""
        pieces = (
            i.to_bytes((i.bit_length() + 7) // 8, "big")[1:] for i in ids if _FIRST_PIECE <= i < _FIRST_KEPT
        )
        return b"".join(pieces).decode(errors="replace")


class _Kept(Generic[T]):
    """Objects by ids, for as long as somebody else holds them: the record of an episode holds its messages."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[int, T] = WeakValueDictionary()
        self._next = count(_FIRST_KEPT)

    def add(self, value: T) -> int:
        """The id of ``value``."""
        place = next(self._next)
        self._held[place] = value
        return place

    def get(self, place: int) -> T:
        """The object with that id.

        Raises:
            PolicyFault: the episode that held it is over.
        """
        if place not in self._held:
            raise PolicyFault("the messages of this conversation are no longer held: its episode has ended")
        return self._held[place]


class MessageFormat:
    """A conversation as ids: a mark for the role, the text, a mark for the end.

    Args:
        images: Whether the model takes pictures.
    """

    def __init__(self, *, images: bool = True) -> None:
        self._tokenizer = PieceTokenizer()
        self._images = images
        self._pictured: _Kept[Message] = _Kept()

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The messages, then the mark of the assistant's turn.

        Raises:
            ConfigurationError: a message holds a picture, and the model takes none.
        """
        return self.extend([], messages)

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """``ids``, the messages, and the mark of the assistant's turn.

        Raises:
            ConfigurationError: a message holds a picture, and the model takes none.
        """
        added: list[int] = []
        for message in messages:
            pictures = [self._pictured.add(message)] * image_tokens(message, allowed=self._images)
            added += [_mark(message.role), *pictures, *self._tokenizer.encode(message.text), END]
        return [*ids, *added, _mark("assistant")]

    def closing(self, ids: Sequence[int]) -> list[int]:
        """The end of the assistant's turn where it is still open."""
        return [] if ids and ids[-1] == END else [END]

    def messages(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The conversation of ``ids`` as an endpoint takes it, without the open turn.

        What a tool said goes in the user's name: the role ``tool`` needs calls by id, which tags do not have.

        Raises:
            PolicyFault: it held pictures, and its episode has ended.
        """
        found: list[dict[str, Any]] = []
        start = 0
        for place, i in enumerate(ids):
            if 0 < i <= len(_ROLES):
                start = place
            elif i == END:
                role = _ROLES[ids[start] - 1]
                kept = ids[start + 1] if ids[start + 1] >= _FIRST_KEPT else None
                content = (
                    self._tokenizer.decode(ids[start:place])
                    if kept is None
                    else content_of(self._pictured.get(kept))
                )
                found.append({"role": "user" if role == "tool" else role, "content": content})
        return found


class ToolFormat:
    """A conversation with tools that the service declares and whose calls it reads.

    Args:
        images: Whether the model takes pictures.
        sends_reasoning: Whether the thinking of earlier turns is sent back.
        template_options: Arguments of the chat template that the server renders.
    """

    def __init__(
        self,
        *,
        images: bool = True,
        sends_reasoning: bool = False,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.template_options = dict(template_options or {})
        self._tokenizer = PieceTokenizer()
        self._images, self._sends_reasoning = images, sends_reasoning
        self._open: _Kept[Conversation] = _Kept()

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Refuses: what is sent depends on the tools.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            "the format native asks an endpoint in an evaluation alone: use the inline format"
        )

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Refuses: what is sent depends on the conversation before it.

        Raises:
            ConfigurationError: always.
        """
        return self.prompt(messages)

    def closing(self, ids: Sequence[int]) -> list[int]:
        """The end of the assistant's turn where it is still open."""
        return [] if ids and ids[-1] == END else [END]

    def open(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Conversation, list[int]]:
        """The conversation that ``messages`` begin, and its ids.

        Raises:
            ConfigurationError: a tool that no service takes, or a picture for a model that takes none.
        """
        check_tools(tools)
        conversation = Conversation(get_family("text"), as_turns(messages), tuple(tools), "")
        return conversation, self._whole(conversation)

    def go_on(
        self, ids: Sequence[int], conversation: Conversation, new: Sequence[Message]
    ) -> tuple[Conversation, list[int]]:
        """The conversation after ``new``, and its ids: a new row where the thinking of the last turn is left out.

        Raises:
            ConfigurationError: a picture for a model that takes none.
        """
        turn = conversation.messages[-1]
        later = replace(conversation, messages=(*conversation.messages, *new))
        if isinstance(turn, AssistantTurn) and turn.thinking and not self._sends_reasoning:
            return later, self._whole(later)
        return later, [*ids, *self._coded(new, later)]

    def conversation(self, ids: Sequence[int]) -> Conversation:
        """The conversation that ``ids`` code.

        Raises:
            PolicyFault: its episode has ended.
        """
        return self._open.get(next((i for i in reversed(ids) if i >= _FIRST_KEPT), 0))

    def messages(self, conversation: Conversation) -> list[dict[str, Any]]:
        """The messages as an endpoint takes them. Every call is answered, which services insist on."""
        found: list[dict[str, Any]] = []
        said: list[Message] = []
        turn: AssistantTurn | None = None
        for message in (*conversation.messages, None):
            if isinstance(message, Message):
                said.append(message)
                continue
            found += _answers(turn, said)
            if message is not None:
                found += [dict(message.as_sent)] if message.as_sent is not None else []
                turn, said = message, []
        return found

    def _whole(self, conversation: Conversation) -> list[int]:
        declared = "".join(json.dumps(tool) for tool in conversation.tools)
        return [*self._tokenizer.encode(declared), *self._coded(conversation.messages, conversation)]

    def _coded(self, messages: Sequence[Message | AssistantTurn], conversation: Conversation) -> list[int]:
        ids: list[int] = []
        for message in messages:
            if isinstance(message, AssistantTurn):
                text = action_text(replace(message, thinking=None))
                ids += [_mark("assistant"), *self._tokenizer.encode(text), END]
            else:
                pictures = [_PICTURE] * image_tokens(message, allowed=self._images)
                ids += [_mark(message.role), *pictures, *self._tokenizer.encode(message.text), END]
        return [*ids, self._open.add(conversation), _mark("assistant")]


def _answers(turn: AssistantTurn | None, said: Sequence[Message]) -> list[dict[str, Any]]:
    """What the environment said after ``turn``: a result for each call, then everything else in the user's name."""
    ids = {} if turn is None else dict.fromkeys((call.id for call in turn.calls if call.id), NOT_RUN)
    others: list[dict[str, Any]] = []
    for message in said:
        if message.call_id in ids:
            ids[message.call_id] = message.text
        else:
            role = "user" if message.role == "tool" else message.role
            others.append({"role": role, "content": content_of(message)})
    answers = ({"role": "tool", "tool_call_id": id_, "content": text} for id_, text in ids.items())
    return [*answers, *others]


def content_of(message: Message) -> Any:
    """The content of a message as chat endpoints take it: a text, or a list of parts where there are pictures."""
    if isinstance(message.content, str):
        return message.content
    parts: list[dict[str, Any]] = []
    for part in message.content:
        if part.kind == "text":
            parts.append({"type": "text", "text": part.text})
        else:
            address = f"data:image/png;base64,{base64.b64encode(part.image).decode()}"
            parts.append({"type": "image_url", "image_url": {"url": address}})
    return parts


def image_tokens(message: Message, *, allowed: bool) -> int:
    """About how many tokens the pictures of a message take; 0 where it has none.

    Services scale a picture down and then count about a token for each 750 of its points.

    Raises:
        ConfigurationError: it has one, and none is allowed.
    """
    if isinstance(message.content, str):
        return 0
    sizes = [_points(part.image) for part in message.content if part.kind == "image"]
    if sizes and not allowed:
        raise ConfigurationError(
            "the environment shows images, and the policy has images=0: take a model that reads images, or set the "
            "environment to observations of text"
        )
    return sum(min(_MOST_IMAGE_TOKENS, max(1, math.ceil(points / _POINTS_A_TOKEN))) for points in sizes)


_POINTS_A_TOKEN = 750
_MOST_IMAGE_TOKENS = 1600
_PICTURE = 255  # a mark that stands for a part of a picture
_SIZE = slice(16, 24)  # of a PNG: its width and its height


def _points(png: bytes) -> int:
    size = png[_SIZE]
    return int.from_bytes(size[:4], "big") * int.from_bytes(size[4:], "big") if len(size) == 8 else 0


_AT_THE_TOP = ("anyOf", "oneOf", "allOf", "enum", "not", "$ref")


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Refuses tools that no service takes, before anything is sent.

    Raises:
        ConfigurationError: two tools of one name, a name of other characters, or a schema that is not plainly an object.
    """
    names: set[str] = set()
    for tool in tools:
        function = tool["function"]
        name, schema = function["name"], function.get("parameters", {})
        if name in names or not NAME.fullmatch(name):
            wrong = (
                "is declared twice"
                if name in names
                else "must be letters, digits, _ and -, at most 64 of them"
            )
            raise ConfigurationError(f"an endpoint cannot be sent the tool {name!r}: its name {wrong}")
        names.add(name)
        if found := [keyword for keyword in _AT_THE_TOP if keyword in schema]:
            raise ConfigurationError(
                f"an endpoint cannot be sent the tool {name!r}: its schema has {found[0]!r} at the top, where services take "
                "an object with properties alone; put it into a property"
            )


def _mark(role: Role) -> int:
    return _ROLES.index(role) + 1
