"""A corpus from documents: text, Markdown, HTML and PDF files, cut at their headings into passages of some hundred words."""

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.core.grammar import encodable
from agentenv.core.types import Document
from agentenv.errors import ConfigurationError, MissingExtra, first_line

WORDS = 100
"""Words of a passage, as in DPR (Karpukhin et al. 2020, arXiv:2004.04906, section 4.1)."""
_WORD = re.compile(r"[⺀-鿿가-힯豈-﫿]|[^\s⺀-鿿가-힯豈-﫿]{1,40}")
"""A word, a letter of Chinese, Japanese or Korean, or 40 letters of a script that sets no blanks."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")  # noqa: RUF001
_HEADING = re.compile(r"(#{1,6})\s+(.*)$")
_UNDERLINE = re.compile(r"(=+|-{2,})\s*$")
_FENCE = re.compile(r"\s*(```|~~~)")
_FRONT_MATTER = re.compile(r"\A---\n.*?\n(?:---|\.\.\.)\n", re.DOTALL)
# Neither reads over its own beginning, so that no text takes them the square of its length.
_LINK = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\n]*\)")
_COMMENT = re.compile(r"<!--(?:(?!<!--).)*?-->", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """What stands under one heading of a document."""

    headings: tuple[str, ...]
    """From the first level to its own."""
    text: str
    """Paragraphs are parted by empty lines."""


@dataclass
class DocumentsRead:
    """What became of the files of a folder."""

    documents: int = 0
    passages: int = 0
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Names of files, by the reason why nothing was read from them."""

    def leave_out(self, reason: str, name: str) -> None:
        """Notes that nothing was read from the file ``name``."""
        self.left_out.setdefault(reason, []).append(name)


def read_passages(source: Path, words: int, done: DocumentsRead) -> Iterator[Document]:
    """The passages of a file, or of all files in a folder and below it, in the order of their names.

    Args:
        source: The file or folder. Files and folders whose names begin with a dot are none of it.
        words: Words of a passage at most.
        done: Counts what was read, and names the files from which nothing was.

    Raises:
        ConfigurationError: there is no such file or folder.
        MissingExtra: there are files that take a package which is not installed.
    """
    return _passages(source, _files(source), words, done)


def _passages(source: Path, files: list[Path], words: int, done: DocumentsRead) -> Iterator[Document]:
    for path in files:
        name = path.relative_to(source).as_posix() if source.is_dir() else path.name
        if (read := READERS.get(path.suffix.lower())) is None:
            done.leave_out(f"files of the kind {path.suffix or 'without a suffix'} are not read", name)
            continue
        try:
            sections = read(path)
        except (MissingExtra, MemoryError):
            raise
        except Exception as error:  # whatever a damaged file makes its library raise
            done.leave_out(f"it cannot be read ({first_line(error)})", name)
            continue
        place = 0
        for section in sections:
            for text in cut(section.text, words):
                place += 1
                yield Document(
                    encodable(f"{name}#{place}"), encodable(" > ".join(section.headings)), encodable(text)
                )
        if not place:
            done.leave_out("it holds no text", name)
        done.documents += bool(place)
        done.passages += place


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise ConfigurationError(f"{source} is no file and no folder: name the documents")
    found = (path for path in sorted(source.rglob("*")) if path.is_file())
    return [
        path for path in found if not any(part.startswith(".") for part in path.relative_to(source).parts)
    ]


def cut(text: str, words: int) -> list[str]:
    """``text`` in passages of at most ``words`` words, which end where a sentence ends unless that alone is longer.

    Example: ``cut("One two. Three four five. Six.", 4)`` is ``["One two.", "Three four five. Six."]``.
    """
    passages: list[str] = []
    held, count = "", 0
    for between, piece, size in _pieces(text, words):
        if held and count + size > words:
            passages.append(held)
            held, count = "", 0
        held, count = f"{held}{between if held else ''}{piece}", count + size
    return [*passages, held] if held else passages


def _pieces(text: str, words: int) -> Iterator[tuple[str, str, int]]:
    """What stands before it, text and number of words of each sentence, or of each part of one that is too long."""
    for paragraph in re.split(r"\n\s*\n", text):
        between = "\n"
        for sentence in _SENTENCE_END.split(paragraph.strip()):
            spans = [match.span() for match in _WORD.finditer(sentence)]
            for first in range(0, len(spans), words):
                part = spans[first : first + words]
                yield between, " ".join(sentence[part[0][0] : part[-1][1]].split()), len(part)
                between = " "


def markdown_sections(text: str, title: str) -> list[Section]:
    """The sections of a Markdown text; ``title`` stands for a heading of the first level where there is none."""
    headings: dict[int, str] = {}
    lines: list[str] = []
    sections: list[Section] = []
    fenced = False

    def close() -> None:
        named = [headings[level] for level in sorted(headings)]
        path = named if 1 in headings else [title, *named]
        sections.append(Section(tuple(path), _plain("\n".join(lines))))
        lines.clear()

    for line in _FRONT_MATTER.sub("", text).splitlines():
        fenced ^= bool(_FENCE.match(line))
        level, heading = (0, "") if fenced else _heading(line, lines)
        if not level:
            lines.append(line)
            continue
        close()
        headings = {above: named for above, named in headings.items() if above < level} | {level: heading}
    close()
    return [section for section in sections if section.text.strip()]


def _heading(line: str, before: list[str]) -> tuple[int, str]:
    """Level and text of the heading that ``line`` is, or that it underlines and that leaves ``before``; level 0 of none."""
    if found := _HEADING.match(line):
        return len(found[1]), _plain(found[2].rstrip("# \t"))
    if (
        before
        and before[-1].strip()
        and _UNDERLINE.match(line)
        and (len(before) == 1 or not before[-2].strip())
    ):
        return 1 if line.startswith("=") else 2, _plain(before.pop().strip())
    return 0, ""


def _plain(text: str) -> str:
    """Markdown without the addresses of its links, without its comments, and without the signs of links to headings."""
    bare = _LINK.sub(r"\1", _COMMENT.sub("", text))
    return _LINK.sub(r"\1", bare).replace("¶", "")  # an image may stand in a link


def _read_text(path: Path) -> list[Section]:
    return [Section((path.stem,), path.read_text(encoding="utf-8-sig"))]


def _read_markdown(path: Path) -> list[Section]:
    return markdown_sections(path.read_text(encoding="utf-8-sig"), path.stem)


def _read_html(path: Path) -> list[Section]:
    """The main content of a page, without its navigation, by trafilatura."""
    try:
        import trafilatura
    except ImportError as error:
        raise MissingExtra.of("trafilatura", "documents") from error
    page = path.read_bytes()
    metadata = trafilatura.extract_metadata(page)
    title = (metadata.title if metadata is not None else None) or path.stem
    text = trafilatura.extract(page, output_format="markdown", include_comments=False, include_tables=True)
    return markdown_sections(text or "", title)


def _read_pdf(path: Path) -> list[Section]:
    """The text of all pages, without ligatures and with words whole that the end of a line parts."""
    try:
        from pypdf import PdfReader
    except ImportError as error:
        raise MissingExtra.of("pypdf", "documents") from error
    # What it says of a damaged file comes as an error or does no harm.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    with PdfReader(path) as reader:
        title = (reader.metadata.title if reader.metadata is not None else None) or path.stem
        text = "\n".join(page.extract_text() for page in reader.pages)
    whole = re.sub(r"(?<=[a-z])-\n(?=[a-z])", "", unicodedata.normalize("NFKC", text))
    return [Section((title,), whole)]


READERS: Mapping[str, Callable[[Path], list[Section]]] = {
    ".txt": _read_text,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
}
"""By the end of a file's name, what reads its sections."""
