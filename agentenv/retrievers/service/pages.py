"""Finds documents by id or by address in a corpus of this process."""

from collections.abc import Sequence
from urllib.parse import parse_qs, unquote, urlsplit

from agentenv.core.types import Document
from agentenv.retrievers.storage.corpus import Corpus


class Pages:
    """Finds documents of a corpus. The table of titles is made when an address is first requested.

    Args:
        corpus: The documents.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._rows: dict[str, list[int]] | None = None

    def by_id(self, document_id: str) -> list[Document]:
        """Returns the document with this id, or an empty list."""
        try:
            return [self._corpus[self._corpus.row_of(document_id)]]
        except KeyError:
            return []

    def by_url(self, url: str) -> list[Document]:
        """Returns a page's documents in corpus order: those with the title in the address, or the one with it as its id."""
        if found := self.by_id(url):
            return found
        if self._rows is None:
            self._rows = {}
            for row, document in enumerate(self._corpus):
                self._rows.setdefault(_normalised_title(document.title), []).append(row)
        title = title_in(url)
        rows: Sequence[int] = self._rows.get(_normalised_title(title), ()) if title else ()
        return [self._corpus[row] for row in rows]


def title_in(url: str) -> str:
    """Returns the title in a wiki page's address (``/wiki/T``, ``index.php/T``, ``index.php?title=T``); else ""."""
    try:
        parts = urlsplit(url)
    except ValueError:  # for example an unclosed bracket in the host
        return ""
    named = parse_qs(parts.query).get("title")
    if named:
        return _with_spaces(named[0])
    for mark in ("/wiki/", "index.php/"):
        if mark in parts.path:
            return _with_spaces(unquote(parts.path.split(mark, 1)[1]))
    return ""


def _with_spaces(title: str) -> str:
    return " ".join(title.replace("_", " ").split())


def _normalised_title(title: str) -> str:
    """Returns the title with its first letter in upper case, because wikis accept both."""
    title = _with_spaces(title)
    return title[:1].upper() + title[1:]
