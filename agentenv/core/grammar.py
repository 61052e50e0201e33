"""Reading an action, the tags that a policy writes, and keeping an observation short."""

import re
from collections.abc import Sequence
from typing import NamedTuple


class Block(NamedTuple):
    """One complete pair of tags."""

    tag: str
    content: str
    end: int
    """Characters from the start of the text to the end of the closing tag."""


def earliest_block(text: str, tags: Sequence[str]) -> Block | None:
    """The complete ``<tag>...</tag>`` that begins first in ``text``, by position and not by kind of tag.

    Content may span lines and is stripped. Where an opening tag is repeated before the closing one, the last
    opening
    counts: ``<answer>a<answer>b</answer>`` is the answer ``b``.
    """
    names = "|".join(map(re.escape, tags))
    match = re.search(rf"<({names})>((?:(?!<\1>).)*?)</\1>", text, re.DOTALL)
    return Block(match[1], match[2].strip(), match.end()) if match else None


def unfenced(text: str) -> str:
    """``text`` without a Markdown fence around it, which models like to write."""
    lines = text.strip("\n").splitlines()
    if len(lines) >= 2 and lines[0].strip().startswith("```") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return text


def shortened(text: str, room: int) -> str:
    """Head and tail of ``text`` where it is longer than ``room`` characters."""
    if len(text) <= room:
        return text
    head, tail = room - room // 2, room // 2
    return f"{text[:head]}\n[{len(text) - room} characters left out]\n{text[len(text) - tail :]}"
