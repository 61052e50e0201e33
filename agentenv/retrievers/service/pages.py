"""Documents by id or by address, from a corpus that the process holds."""

from collections.abc import Sequence
from urllib.parse import parse_qs, unquote, urlsplit

from agentenv.core.types import Document
from agentenv.retrievers.storage.corpus import Corpus


class Pages:
    """Finds documents of a corpus. The table of titles is made when the first address is asked for.

    Args:
        corpus: the documents.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._rows: dict[str, list[int]] | None = None

    def by_id(self, document_id: str) -> list[Document]:
        """The document with this id, or nothing."""
        try:
            return [self._corpus[self._corpus.row_of(document_id)]]
        except KeyError:
            return []

    def by_url(self, url: str) -> list[Document]:
        """The documents of a page in corpus order: those with the title in the address, or the one with it as id."""
        if found := self.by_id(url):
            return found
        if self._rows is None:
            self._rows = {}
            for row, document in enumerate(self._corpus):
                self._rows.setdefault(_spelling(document.title), []).append(row)
        title = title_in(url)
        rows: Sequence[int] = self._rows.get(_spelling(title), ()) if title else ()
        return [self._corpus[row] for row in rows]


def title_in(url: str) -> str:
    """The title in the address of a wiki page: ``/wiki/T``, ``index.php/T`` and ``index.php?title=T``; else ""."""
    try:
        parts = urlsplit(url)
    except ValueError:  # such as an unclosed bracket in the host
        return ""
    named = parse_qs(parts.query).get("title")
    if named:
        return _blanks(named[0])
    for mark in ("/wiki/", "index.php/"):
        if mark in parts.path:
            return _blanks(unquote(parts.path.split(mark, 1)[1]))
    return ""


def _blanks(title: str) -> str:
    return " ".join(title.replace("_", " ").split())


def _spelling(title: str) -> str:
    """Wikis write the first letter large and take it either way."""
    title = _blanks(title)
    return title[:1].upper() + title[1:]
