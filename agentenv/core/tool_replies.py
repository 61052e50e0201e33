"""What the environment shows after a turn, as messages that answer its calls."""

from collections.abc import Sequence
from dataclasses import replace

from agentenv.core.assistant_turns import AssistantTurn, Call, MalformedCall
from agentenv.core.types import Message, MessagePart, Observation

NOT_RUN = "Only the first tool call of a turn is run; this one was not."


def replies(turn: AssistantTurn, observation: Observation) -> Observation:
    """``observation`` with one message of the role ``tool`` for each call of ``turn``, in their order.

    What a tool said where nothing was called goes in the user's name: it answers no call. A malformed call is told what is
    wrong with it. Where the environment shows one thing for several calls, it answers the first that could be read. Images
    of results follow in the user's name, as templates show none in a result.
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
    shares = _shared_out(turn.calls, texts)
    answers = (
        _answer(call, text, place) for place, (call, text) in enumerate(zip(turn.calls, shares, strict=True))
    )
    return (*answers, *others)


def _images(message: Message) -> tuple[MessagePart, ...]:
    return () if isinstance(message.content, str) else tuple(p for p in message.content if p.kind == "image")


def _shared_out(calls: Sequence[Call], texts: Sequence[str]) -> list[str]:
    if len(texts) == len(calls):
        return list(texts)
    first = next((place for place, call in enumerate(calls) if not isinstance(call, MalformedCall)), 0)
    return ["\n".join(texts) if place == first else NOT_RUN for place in range(len(calls))]


def _answer(call: Call, text: str, place: int) -> Message:
    if isinstance(call, MalformedCall):
        return Message("tool", call.complaint, call_id=call.id)
    return Message("tool", text, name=call.name, call_id=call.id or call_id(place))


def call_id(place: int) -> str:
    """The id of a call whose turn gives it none: nine letters and digits, which Mistral asks for."""
    return f"call{place:05d}"
