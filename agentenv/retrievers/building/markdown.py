"""Splits Markdown into sections: the text under each heading, without addresses and comments, with code unchanged."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEADING = re.compile(r"(#{1,6})\s+(.*)$")
_UNDERLINE = re.compile(r"(=+|-{2,})\s*$")
_NO_HEADING = re.compile(r"\s*[-*+>|]")
"""Matches the beginning of a list, quotation or table, after which dashes do not mark a heading."""
_FENCE = re.compile(r"((?:[\s>]|[-*+]\s|\d{1,9}[.)]\s)*)(`{3,}|~{3,})(.*)$")
"""Matches a line that opens or closes a code block, also in a list or a quotation."""
_FRONT_MATTER = re.compile(
    r"\A---[ \t]*\n(?=---|#|[^\n]*:)(?:.*?\n)??(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL
)
# None of these patterns can match again over its own beginning, so they need no quadratic time.
_LINK_OR_CODE = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\n]*\)|(`[^`\n]*`)")
_COMMENT = re.compile(r"<!--(?:(?!<!--).)*?-->", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """The text under one heading of a document."""

    headings: tuple[str, ...]
    """The headings from the first level to the section's own."""
    text: str
    """Paragraphs are separated by empty lines."""


def markdown_sections(text: str, title: str) -> list[Section]:
    """Returns the sections of a Markdown text; ``title`` replaces a missing heading of the first level."""
    headings: dict[int, str] = {}
    blocks: list[str] = []
    sections: list[Section] = []

    def close() -> None:
        named = [headings[level] for level in sorted(headings)]
        path = named if 1 in headings else [title, *named]
        sections.append(Section(tuple(path), "\n".join(blocks)))
        blocks.clear()

    for code, stretch in _split_code_blocks(_FRONT_MATTER.sub("", text)):
        if code:
            blocks.append(stretch)
            continue
        lines: list[str] = []
        for line in _COMMENT.sub("", stretch).split("\n"):
            level, heading = _heading(line, lines)
            if not level:
                lines.append(line)
                continue
            blocks.append(_plain("\n".join(lines)))
            lines.clear()
            close()
            headings = {above: named for above, named in headings.items() if above < level} | {level: heading}
        blocks.append(_plain("\n".join(lines)))
    close()
    return [section for section in sections if section.text.strip()]


def _split_code_blocks(text: str) -> Iterator[tuple[bool, str]]:
    """Splits the text into parts, each with whether it is a fenced code block (CommonMark 0.31, section 4.5).

    A block ends at a fence of the same character that is at least as long and has nothing after it.
    """
    held: list[str] = []
    fence = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if fence:
            held.append(line)
            if found and found[2].startswith(fence) and not (found[1].strip("> \t") or found[3].strip()):
                yield True, "\n".join(held)
                held, fence = [], ""
        elif found and not (found[2].startswith("`") and "`" in found[3]):
            yield False, "\n".join(held)
            held, fence = [line], found[2]
        else:
            held.append(line)
    yield bool(fence), "\n".join(held)


def _heading(line: str, before: list[str]) -> tuple[int, str]:
    """Returns level and text of the heading in ``line``, or of the one in ``before`` that it underlines; level 0 if none."""
    if found := _HEADING.match(line):
        return len(found[1]), _plain(found[2].rstrip("# \t"))
    if (
        before
        and before[-1].strip()
        and not _NO_HEADING.match(before[-1])
        and _UNDERLINE.match(line)
        and (len(before) == 1 or not before[-2].strip())
    ):
        return 1 if line.startswith("=") else 2, _plain(before.pop().strip())
    return 0, ""


def _plain(text: str) -> str:
    """Returns Markdown without the addresses of its links; code between backticks is unchanged."""
    bare = _LINK_OR_CODE.sub(_text_of, text)
    return _LINK_OR_CODE.sub(_text_of, bare)  # applied twice, because a link may contain an image


def _text_of(found: re.Match[str]) -> str:
    return found[2] or found[1]
