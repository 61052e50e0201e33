"""Converts the observation after a turn to messages that answer its tool calls."""

from collections.abc import Sequence
from dataclasses import replace

from agentenv.core.assistant_turns import AssistantTurn, Call, MalformedCall
from agentenv.core.types import Message, MessagePart, Observation

NOT_RUN = "Only the first tool call of a turn is run; this one was not."


def replies(turn: AssistantTurn, observation: Observation) -> Observation:
    """Returns ``observation`` as one message of the role ``tool`` for each call of ``turn``, in order.

    A tool's text in a turn without calls becomes a user message, because it answers no call. A malformed call is answered
    with what is wrong with it. If the environment shows one text for several calls, it answers the first call that could be
    parsed. Images of results follow in a user message, because chat templates cannot show them in a result.
    """
    images = tuple(part for message in observation for part in _images(message) if message.role == "tool")
    observation = tuple(replace(m, content=m.text) if m.role == "tool" else m for m in observation)
    if images:
        observation = (*observation, Message("user", images))
    texts = [message.text for message in observation if message.role == "tool"]
    others = [message for message in observation if message.role != "tool"]
    if not turn.calls:
        return tuple(
            replace(message, role="user", content=message.text.strip()) if message.role == "tool" else message
            for message in observation
        )
    if not texts and others:
        return tuple(others)
    shares = _texts_per_call(turn.calls, texts)
    answers = (
        _answer(call, text, place) for place, (call, text) in enumerate(zip(turn.calls, shares, strict=True))
    )
    return (*answers, *others)


def _images(message: Message) -> tuple[MessagePart, ...]:
    return () if isinstance(message.content, str) else tuple(p for p in message.content if p.kind == "image")


def _texts_per_call(calls: Sequence[Call], texts: Sequence[str]) -> list[str]:
    if len(texts) == len(calls):
        return list(texts)
    first = next((place for place, call in enumerate(calls) if not isinstance(call, MalformedCall)), 0)
    return ["\n".join(texts) if place == first else NOT_RUN for place in range(len(calls))]


def _answer(call: Call, text: str, place: int) -> Message:
    if isinstance(call, MalformedCall):
        return Message("tool", call.complaint, call_id=call.id)
    return Message("tool", text, name=call.name, call_id=call.id or call_id(place))


def call_id(place: int) -> str:
    """Returns the id of a call whose turn gives it none: nine letters and digits, as Mistral requires."""
    return f"call{place:05d}"
