"""Makes a corpus from text, Markdown, HTML and PDF files, split at headings into passages of about a hundred words."""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentenv.core.grammar import encodable
from agentenv.core.types import Document
from agentenv.errors import ConfigurationError, MissingExtra, first_line
from agentenv.retrievers.building.markdown import Section, markdown_sections
from agentenv.retrievers.building.pdf_text import as_written

WORDS = 100
"""Number of words of a passage, as in DPR (Karpukhin et al. 2020, arXiv:2004.04906, section 4.1)."""
_WORD = re.compile(r"[⺀-鿿가-힯豈-﫿]|[^\s⺀-鿿가-힯豈-﫿]{1,40}")
"""Matches a word, a Chinese, Japanese or Korean character, or up to 40 letters of a script without blanks."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")  # noqa: RUF001


@dataclass
class DocumentsRead:
    """Counts of the files that were read and left out."""

    documents: int = 0
    passages: int = 0
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Names of the files from which nothing was read, by reason."""

    def leave_out(self, reason: str, name: str) -> None:
        """Records that nothing was read from the file ``name``."""
        self.left_out.setdefault(reason, []).append(name)


def read_passages(source: Path, words: int, done: DocumentsRead) -> Iterator[Document]:
    """Yields the passages of a file, or of all files in a folder and its subfolders, sorted by file name.

    Args:
        source: The file or folder. Files and folders whose names begin with a dot are ignored.
        words: Largest number of words of a passage.
        done: Updated with the counts, and with the names of files from which nothing was read.

    Raises:
        ConfigurationError: the file or folder does not exist.
        MissingExtra: a file needs a package that is not installed.
    """
    return _passages(source, _files(source, done), words, done)


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
        except Exception as error:  # libraries raise various errors for damaged files
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


def _files(source: Path, done: DocumentsRead) -> list[Path]:
    """Lists the files in ``source`` and its subfolders; folders that cannot be listed and broken links are left out."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise ConfigurationError(f"{source} is no file and no folder: name the documents")

    def unlisted(error: OSError) -> None:
        name = Path(error.filename).relative_to(source).as_posix()
        done.leave_out(f"it cannot be listed ({error.strerror})", name)

    found: list[Path] = []
    for folder, below, names in os.walk(source, onerror=unlisted):
        below[:] = [name for name in below if not name.startswith(".")]
        paths = [Path(folder, name) for name in names if not name.startswith(".")]
        for path in (*paths, *(Path(folder, name) for name in below)):
            if path.is_file():
                found.append(path)
            elif path.is_symlink():
                done.leave_out("it is a link that leads to no file", path.relative_to(source).as_posix())
    return sorted(found)


def cut(text: str, words: int) -> list[str]:
    """Splits ``text`` into passages of at most ``words`` words that end with a sentence, unless that alone is longer.

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
    """Yields each sentence, or each part of one that is too long, as: the separator before it, its text, its words."""
    for paragraph in re.split(r"\n\s*\n", text):
        between = "\n"
        for after, sentence in _sentences(paragraph.strip()):
            spans = [match.span() for match in _WORD.finditer(sentence)]
            for first in range(0, len(spans), words):
                part = spans[first : first + words]
                yield between, " ".join(sentence[part[0][0] : part[-1][1]].split()), len(part)
                between = after


def _sentences(paragraph: str) -> Iterator[tuple[str, str]]:
    """Yields each sentence with the separator before it, a blank or nothing."""
    start = 0
    for end in _SENTENCE_END.finditer(paragraph):
        yield " " if end[0] else "", paragraph[start : end.start()]
        start = end.end()
    yield "", paragraph[start:]


def _read_text(path: Path) -> list[Section]:
    return [Section((path.stem,), _utf8(path))]


def _read_markdown(path: Path) -> list[Section]:
    return markdown_sections(_utf8(path), path.stem)


def _utf8(path: Path) -> str:
    text = path.read_text(encoding="utf-8-sig")
    if "\0" in text:  # for example UTF-16 without a byte order mark, half of whose bytes are 0
        raise ValueError("it holds null characters, so it is no text in UTF-8")
    return text


def _read_html(path: Path) -> list[Section]:
    """Extracts the main content of a page, without its navigation, by trafilatura."""
    try:
        import trafilatura
    except ImportError as error:
        raise MissingExtra.of("trafilatura", "documents") from error
    page = path.read_bytes()
    metadata = trafilatura.extract_metadata(page)
    title = (metadata.title if metadata is not None else None) or path.stem
    tree = trafilatura.load_html(page)
    if tree is None:
        return []
    _mark_content(tree)
    # Without favouring recall, it drops lists and headings of simple pages.
    text = trafilatura.extract(
        tree, output_format="markdown", include_comments=False, include_tables=True, favor_recall=True
    )
    return markdown_sections(text or "", title)


def _mark_content(tree: Any) -> None:
    """Wraps what a page itself marks as its main content, or else its body, in a single article element.

    Outside of an article, trafilatura keeps paragraphs, but few headings and lists. It also mistakes sections for menus,
    footers or comments because of their ids, which documentation generators derive from headings, so the ids inside are
    removed.
    """
    body = tree.find(".//body")
    if body is None:
        return
    marked = tree.xpath("//main | //*[@role='main']")[:1] or [body]
    articles = marked[0].xpath(".//article")
    if len(articles) > 1:
        return
    content = articles[0] if articles else marked[0]
    for sign in content.xpath(".//a[normalize-space() = '¶' or normalize-space() = '#']"):
        sign.drop_tree()
    if content is not body:
        for element in content.xpath(".//*[@id]"):
            del element.attrib["id"]
        content.tail = None
    article = body.makeelement("article")
    article.text = content.text
    article.extend(list(content))
    body.text = None
    body[:] = [article]


def _read_pdf(path: Path) -> list[Section]:
    """Extracts the text of all pages."""
    try:
        from pypdf import PdfReader
    except ImportError as error:
        raise MissingExtra.of("pypdf", "documents") from error
    # Its messages about damaged files are either raised as errors or harmless.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    with PdfReader(path) as reader:
        title = (reader.metadata.title if reader.metadata is not None else None) or path.stem
        text = "\n".join(page.extract_text() for page in reader.pages)
    return [Section((title,), as_written(text))]


READERS: Mapping[str, Callable[[Path], list[Section]]] = {
    ".txt": _read_text,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
}
"""The readers of sections by the ending of a file's name."""
