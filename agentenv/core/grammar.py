"""Reads the tags and the JSON in an action of a policy, and shortens observations.

A policy may write anything, at any length. The time that these functions take grows linearly with the length.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

MAX_NESTED = 64
"""Deepest nesting of a JSON document of a policy. A deeper one would fail later, when it is shown, copied or sent."""


class Block(NamedTuple):
    """A complete pair of tags with its content."""

    tag: str
    content: str
    end: int
    """Index of the first character after the closing tag."""


def earliest_block(text: str, tags: Sequence[str]) -> Block | None:
    """The complete ``<tag>...</tag>`` that begins first in ``text``, whatever its tag; None if there is none.

    The content may span several lines and is stripped. If an opening tag is repeated before the closing one, the last
    opening tag counts: ``<answer>a<answer>b</answer>`` is the answer ``b``.
    """
    names = "|".join(map(re.escape, tags))
    match = re.search(rf"<({names})>((?:(?!<\1>).)*?)</\1>", text, re.DOTALL)
    return Block(match[1], match[2].strip(), match.end()) if match else None


def written_block(tag: str, content: str) -> str:
    """``<tag> content </tag>``, as the prompts of the search environments show it.

    The spaces matter to a tokenizer: without them the first word has other ids than the same word within a text, and a small
    policy that copies names from its pages cannot write it.
    """
    return f"<{tag}> {content} </{tag}>"


def between(text: str, opening: str, closing: str) -> list[str]:
    """The texts between each ``opening`` and the next ``closing`` after it."""
    return [text[start:end] for start, end in spans_between(text, opening, closing)]


def spans_between(text: str, opening: str, closing: str) -> list[tuple[int, int]]:
    """First character and end of each of the texts that `between` gives."""
    found, at = [], 0
    while (start := text.find(opening, at)) >= 0:
        start += len(opening)
        end = text.find(closing, start)
        if end < 0:
            break
        found.append((start, end))
        at = end + len(closing)
    return found


def read_json(text: str) -> Any:
    """Parses a JSON document of a policy: only finite numbers, whole characters and at most ``MAX_NESTED`` levels.

    Raises:
        ValueError: the text is not such a document. The message can be shown to the policy.
    """
    try:
        document = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_NESTED} levels") from None
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > MAX_NESTED:
            raise ValueError(f"it is nested deeper than {MAX_NESTED} levels")
        level = [part for value in level for part in _parts(value)]
    return document


def breaks_off(text: str) -> bool:
    """Whether no whole JSON document begins ``text``, so that more text could complete it."""
    try:
        json.JSONDecoder().raw_decode(text.lstrip())
    except ValueError:
        return True
    except RecursionError:
        return False
    return False


def _parts(value: Any) -> Sequence[Any]:
    """The parts that a part of a document contains.

    Raises:
        ValueError: it is text with half of a surrogate pair, which cannot be encoded.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("it holds half of a surrogate pair, which is no character") from None
        return ()
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else ()


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is larger than any number here")
    return number


_ESCAPES = re.compile(
    r"\\(?:u|U0000)([dD][89abAB][0-9a-fA-F]{2})\\(?:u|U0000)([dD][c-fC-F][0-9a-fA-F]{2})"  # both halves of a pair
    r"|\\(?:u|U0000)[dD][89a-fA-F][0-9a-fA-F]{2}"  # one of them alone
)


def without_half_escapes(text: str) -> str:
    """Replaces escapes of surrogates in ``text``: a pair by its character, and half of a pair by U+FFFD.

    Decoding the escape of half a pair would give text that cannot be encoded.
    """
    return _ESCAPES.sub(_whole, text) if "\\" in text else text


def _whole(match: re.Match[str]) -> str:
    if match[1] is None:
        return "\\ufffd"
    return bytes.fromhex(match[1] + match[2]).decode("utf-16-be")


def encodable(text: str) -> str:
    """Replaces every lone surrogate in ``text`` by an escape, because no tokenizer and no file accepts one."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def unfenced(text: str) -> str:
    """``text`` without the Markdown fence that models like to write around it."""
    lines = text.strip("\n").splitlines()
    if len(lines) >= 2 and lines[0].strip().startswith("```") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return text


def shortened(text: str, room: int) -> str:
    """``text``, or its beginning and its end if it is longer than ``room`` characters."""
    if len(text) <= room:
        return text
    head, tail = room - room // 2, room // 2
    return f"{text[:head]}\n[{len(text) - room} characters left out]\n{text[len(text) - tail :]}"
