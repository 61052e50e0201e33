"""Checks the values that an environment returns, once, before anything is recorded, encoded, averaged or written.

A value that later code could not use ends its own episode by an `EnvFault` that names the value. Sizes are limited first:
text that no context could hold is cut and never encoded.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from agentenv.core.episodes import replace_surrogates
from agentenv.core.images import images_of
from agentenv.core.types import (
    EndReason,
    Info,
    Message,
    MessagePart,
    Observation,
    Role,
    Step,
    ToolResult,
    ToolStatus,
)
from agentenv.errors import EnvFault

TOKEN_CHARS = 128
"""The largest number of characters of one token, such as a run of spaces in common vocabularies."""
_PNG = b"\x89PNG"
_MOST_CHARS = 8_000_000
_MOST_REWARD = 1e15
"""Squares of larger rewards would overflow float32."""
_RESERVED = frozenset({"strategy", "game"})
"""Entries of a trajectory's info that belong to rollout strategies."""


def most_chars(context_tokens: int) -> int:
    """Returns the largest number of characters of an observation that could fit into a context of so many tokens."""
    return min(TOKEN_CHARS * context_tokens, _MOST_CHARS)


def checked_opening(given: Any, most: int) -> tuple[Observation, Info]:
    """Checks the return value of ``reset``.

    Args:
        given: The return value.
        most: The largest number of characters of the observation.

    Raises:
        EnvFault: the value is not an observation that can be shown together with an info.
    """
    what = "the environment's reset"
    if not (isinstance(given, tuple) and len(given) == 2):
        raise EnvFault(f"{what} returned {_described(given)}; it must be an observation and an info")
    observation, size = _observation(given[0], what, most)
    if not size and not any(_images(message) for message in observation):
        raise EnvFault(f"{what} shows nothing: it gave the observation {_described(given[0])}")
    if size > most:
        raise EnvFault(f"{what} shows {size} characters, and {most} is the most that the context could hold")
    return observation, _info(given[1], what)


def checked_step(given: Any, most: int) -> tuple[Step, int]:
    """Checks the return value of ``step``; converts numbers to plain ones and cuts every text to ``most`` characters.

    Returns:
        The step, and the number of characters that its observation had before the cut.

    Raises:
        EnvFault: a part of it cannot be used; the message names the part.
    """
    what = "the environment's step"
    if not (isinstance(given, tuple) and len(given) == 5):
        raise EnvFault(f"{what} returned {_described(given)}; it must be what self.result() gives")
    observation, reward, terminated, truncated, info = given
    ended = _flag(terminated, f"{what}: terminated"), _flag(truncated, f"{what}: truncated")
    messages, size = _observation(observation, what, most)
    entries = _step_info(_info(info, what), any(ended), what, most)
    return Step(messages, _reward(reward, what), *ended, entries), size


def step_without_surrogates(given: Any) -> Any:
    """Removes lone surrogates from the return value of ``step``, which the policy itself may have written as escapes.

    If such an episode were masked, a policy could end any episode without its reward.
    """
    if not (isinstance(given, tuple) and len(given) == 5 and isinstance(given[4], dict)):
        return given
    observation, *middle, info = given
    if isinstance(observation, tuple | list):
        observation = tuple(_without_surrogates(message, "content") for message in observation)
    found = dict(info)
    if isinstance(results := info.get("tool_results"), tuple | list):
        found["tool_results"] = tuple(
            _without_surrogates(result, "name", "text", "error_class") for result in results
        )
    if isinstance(answer := info.get("answer"), str):
        found["answer"] = replace_surrogates(answer)
    return (observation, *middle, found)


def _without_surrogates(part: Any, *names: str) -> Any:
    """Removes lone surrogates from the texts of a message, a part of one or a tool result; other values are unchanged."""
    if not isinstance(part, Message | MessagePart | ToolResult):
        return part
    changed: dict[str, Any] = {}
    for name in names:
        value = getattr(part, name)
        if isinstance(value, str):
            changed[name] = replace_surrogates(value)
        elif isinstance(value, tuple):
            changed[name] = tuple(_without_surrogates(one, "text") for one in value)
    return replace(part, **changed)


def checked_key(given: Any) -> str | None:
    """Checks the return value of ``anchor_key``.

    Raises:
        EnvFault: the value is neither text nor None.
    """
    return None if given is None else _text(given, "the environment's anchor_key")


def _observation(given: Any, what: str, most: int) -> tuple[Observation, int]:
    """Returns the messages with their text cut to ``most`` characters in total, and the number of characters before."""
    if not isinstance(given, tuple | list):
        raise EnvFault(f"{what} gave the observation {_described(given)}; it must be a tuple of Message")
    for message in given:
        _check_form(message, what)
    observation, size = tuple(given), sum(len(message.text) for message in given)
    if size > most:
        # Cut before it is encoded, because looking through gigabytes would take longer than a step may.
        observation = _cut(observation, most)
    for text in (message.text for message in observation):
        _text(text, f"{what}: an observation")
    return observation, size


def _check_form(message: Any, what: str) -> None:
    if not isinstance(message, Message):
        raise EnvFault(f"{what} gave {_described(message)} in an observation; it must hold Message alone")
    if message.role not in get_args(Role):
        roles = ", ".join(get_args(Role))
        raise EnvFault(
            f"{what} gave a message of the role {_described(message.role)}; it must be one of {roles}"
        )
    content = message.content
    parts = isinstance(content, tuple) and all(isinstance(part, MessagePart) for part in content)
    if not (isinstance(content, str) or (parts and all(isinstance(part.text, str) for part in content))):
        raise EnvFault(f"{what} gave a message of {_described(content)}; it must be text or a tuple of Part")
    for image in images_of([message]):
        if not (isinstance(image, bytes) and image.startswith(_PNG)):
            raise EnvFault(f"{what} gave {_described(image)} as an image; it must be the bytes of a PNG")


def _cut(observation: Observation, most: int) -> Observation:
    kept: list[Message] = []
    for message in observation:
        kept.append(Message(message.role, message.text[:most]))
        most -= len(kept[-1].text)
    return tuple(kept)


def _images(message: Message) -> bool:
    return not isinstance(message.content, str) and any(part.image for part in message.content)


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise EnvFault(f"{where} is {_described(given)}; it must be text")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise EnvFault(
            f"{where} holds the lone surrogate {given[error.start]!r} at character {error.start}, which no tokenizer takes"
        ) from None
    return given


def _reward(given: Any, what: str) -> float:
    # a NumPy scalar or a tensor
    plain = given.item() if getattr(given, "shape", None) in ((), (1,)) else given
    try:
        good = isinstance(plain, bool | int | float) and abs(float(plain)) <= _MOST_REWARD
    except OverflowError:
        good = False
    if not good:
        raise EnvFault(
            f"{what} gave the reward {_described(given)}; it must be a number within {_MOST_REWARD:g}"
        )
    return plain if type(plain) in (int, float) else float(plain)


def _flag(given: Any, where: str) -> bool:
    plain = given.item() if getattr(given, "shape", None) == () else given
    if not isinstance(plain, bool):
        raise EnvFault(f"{where} is {_described(given)}; it must be True or False")
    return plain


def _info(given: Any, what: str) -> Info:
    if not isinstance(given, dict):
        raise EnvFault(f"{what} gave the info {_described(given)}; it must be a dict")
    return given


def _step_info(info: Info, over: bool, what: str, most: int) -> Info:
    """Returns ``info`` with the entries that records are made of converted to their types."""
    if taken := _RESERVED & info.keys():
        raise EnvFault(
            f"{what} gave info[{min(taken)!r}], which rollout strategies write; give it another name"
        )
    results = info.get("tool_results")
    if not isinstance(results, tuple | list):
        raise EnvFault(
            f"{what} gave info['tool_results'] {_described(results)}; build steps with self.result()"
        )
    found = info | {
        "tool_results": tuple(_result(result, what, most) for result in results),
        "valid": _flag(info.get("valid"), f"{what}: info['valid']"),
    }
    if over:
        found["end_reason"] = _end(info.get("end_reason"), what)
    if info.get("answer") is not None:
        found["answer"] = _text(str(info["answer"]), f"{what}: info['answer']")[:most]
    if "reward_parts" in info:
        found["reward_parts"] = _parts(info["reward_parts"], what)
    if "solved" in info:
        found["solved"] = _flag(info["solved"], f"{what}: info['solved']")
    return found


def _parts(given: Any, what: str) -> dict[str, float]:
    if not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise EnvFault(f"{what} gave info['reward_parts'] {_described(given)}; it must be numbers by name")
    return {name: _reward(part, f"{what}: info['reward_parts'][{name!r}]") for name, part in given.items()}


def _end(given: Any, what: str) -> EndReason:
    try:
        return EndReason(given)
    except ValueError:
        raise EnvFault(
            f"{what} ended with info['end_reason'] {_described(given)}; it must be an EndReason"
        ) from None


def _result(given: Any, what: str, most: int) -> ToolResult:
    where = f"{what}: a tool result"
    if not isinstance(given, ToolResult) or not isinstance(given.status, ToolStatus):
        raise EnvFault(f"{where} is {_described(given)}; it must be a ToolResult")
    for name in ("name", "text", "error_class"):
        _text(getattr(given, name), f"{where}: {name}")
    ids = given.data.get("ids", ()) if isinstance(given.data, Mapping) else None
    rankings = ids if isinstance(ids, Sequence) and not isinstance(ids, str) else (None,)
    if not all(isinstance(ranking, Sequence) and not isinstance(ranking, str) for ranking in rankings):
        raise EnvFault(
            f"{where} has the data {_described(given.data)}; its 'ids' must be a list for each query"
        )
    for one in (one for ranking in rankings for one in ranking or ()):
        _text(one, f"{where}: an id")
    return given if len(given.text) <= most else replace(given, text=given.text[:most])


def _described(value: Any) -> str:
    """Returns a short description of any value, even if its ``repr`` fails."""
    try:
        return reprlib.repr(value)
    except Exception:
        return f"an object of the class {type(value).__name__}"
