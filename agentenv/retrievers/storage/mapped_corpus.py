"""A corpus that stays in its file: only requested rows are read, and all processes share the memory pages.

Beside ``corpus.jsonl`` there are two tables, which are also mapped into memory: the start of each row, and the rows sorted
by a hash of their ids. Writing and checking them takes less than 64 bytes of memory per row, regardless of the length of the
texts.
"""

import hashlib
import mmap
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from agentenv.core.io.tables import reason_of
from agentenv.core.types import Document
from agentenv.errors import CorpusError
from agentenv.retrievers.storage.corpus import Corpus, document_line, is_table, parse_document

CORPUS_FILE = "corpus.jsonl"
STARTS_FILE = "corpus.starts.npy"
IDS_FILE = "corpus.ids.npy"

Table = NDArray[np.int64]


class _Row(NamedTuple):
    start: int  # byte in the file
    document: Document


class MappedCorpus(Corpus):
    """The corpus in a folder that `write_corpus` or `link_corpus` made.

    Args:
        folder: The folder with the corpus and its two tables.
        fingerprint: The fingerprint of the corpus, which the caller has verified.

    Raises:
        CorpusError: the corpus or a table is missing, or they do not belong together.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._path = folder / CORPUS_FILE
        try:
            with self._path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            # asarray makes a plain view of the map, from which single rows are read much faster.
            self._starts: Table = np.asarray(np.load(folder / STARTS_FILE, mmap_mode="r"))
            self._ids: Table = np.asarray(np.load(folder / IDS_FILE, mmap_mode="r"))
        except (OSError, ValueError) as error:
            raise CorpusError(f"{self._path} or its tables cannot be read: {reason_of(error)}.") from error
        starts, ids = self._starts, self._ids
        numbers = starts.dtype.kind == ids.dtype.kind == "i" and starts.ndim == 1 and starts.size > 0
        if not numbers or ids.shape != (2, starts.size) or not 0 <= starts[-1] < len(self._bytes):
            raise self._mismatch_error()

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Document]:
        return map(self._read, range(len(self)))

    @overload
    def __getitem__(self, row: int) -> Document: ...
    @overload
    def __getitem__(self, row: slice) -> list[Document]: ...
    def __getitem__(self, row: int | slice) -> Document | list[Document]:
        if isinstance(row, slice):
            return [self._read(r) for r in range(*row.indices(len(self)))]
        return self._read(row)

    def row_of(self, document_id: str) -> int:
        """Returns the row, from 0, of the document with this id.

        Raises:
            KeyError: no document has this id.
            CorpusError: the tables do not belong to the corpus.
        """
        hashes, rows = self._ids
        code = _hash(document_id)
        # Two ids may have the same hash, so all rows with it are checked.
        for place in range(int(np.searchsorted(hashes, code)), len(rows)):
            if hashes[place] != code:
                break
            if not 0 <= rows[place] < len(self):
                raise self._mismatch_error()
            if self._read(int(rows[place])).id == document_id:
                return int(rows[place])
        raise KeyError(document_id)

    def _mismatch_error(self) -> CorpusError:
        return CorpusError(f"{self._path} does not match the tables of its rows; build the retriever again.")

    def _read(self, row: int) -> Document:
        start = int(self._starts[row])
        end = self._bytes.find(b"\n", start)
        line = self._bytes[start:] if end < 0 else self._bytes[start:end]
        return parse_document(line, f"{self._path}, row {row + 1}")


def write_corpus(documents: Iterable[Document], folder: Path, source: str = "the corpus") -> MappedCorpus:
    """Writes documents to ``folder`` one by one, in the format of this package, and opens the result.

    Args:
        documents: At least one document, with distinct ids.
        folder: An existing folder. An older corpus there is replaced.
        source: Where they come from, for errors.

    Raises:
        CorpusError: there are no documents, or an id is repeated.
    """
    with (folder / CORPUS_FILE).open("wb") as file:

        def rows() -> Iterator[_Row]:
            for document in documents:
                yield _Row(file.tell(), document)
                file.write(document_line(document))

        tables = _CorpusTables(rows())
    return tables.save(folder, source)


def link_corpus(path: Path, folder: Path) -> MappedCorpus:
    """Opens a corpus file of JSON lines in any layout without copying it; ``folder`` gets a link to it and the tables.

    Raises:
        CorpusError: the file is compressed, a table, empty or corrupt, or an id is repeated.
    """
    if is_table(path):
        raise CorpusError(
            f"{path} is a table and cannot be read row by row; give the corpus as JSON lines (.jsonl)."
        )
    if path.suffix == ".gz":
        raise CorpusError(f"{path} is compressed and cannot be read row by row; unpack it.")
    try:
        (folder / CORPUS_FILE).symlink_to(path.resolve())
        with path.open("rb") as file:
            tables = _CorpusTables(_rows_of(file, path))
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} cannot be read: {reason_of(error)}.") from error
    return tables.save(folder, str(path))


def _rows_of(lines: Iterable[bytes], path: Path) -> Iterator[_Row]:
    start = 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _Row(start, parse_document(line, f"{path}, line {number}"))
        start += len(line)


class _CorpusTables:
    """The tables of a corpus, built in one pass over its rows."""

    def __init__(self, rows: Iterable[_Row]) -> None:
        starts, hashes, digest = array("q"), array("q"), hashlib.sha256()
        for start, document in rows:
            starts.append(start)
            hashes.append(_hash(document.id))
            # In the format of this package, so that equal corpora have equal fingerprints regardless of the file's layout.
            digest.update(document_line(document))
        self.starts = np.frombuffer(starts, dtype=np.int64)
        self.hashes = np.frombuffer(hashes, dtype=np.int64)
        self.fingerprint = digest.hexdigest()

    def save(self, folder: Path, source: str) -> MappedCorpus:
        """Writes both tables and opens the corpus.

        Raises:
            CorpusError: there are no rows, or an id is repeated.
        """
        if not len(self.starts):
            raise CorpusError(f"{source} is empty; give at least one document.")
        order = np.argsort(self.hashes, kind="stable")
        np.save(folder / STARTS_FILE, self.starts)
        np.save(folder / IDS_FILE, np.stack([self.hashes[order], order]))
        corpus = MappedCorpus(folder, self.fingerprint)
        _refuse_duplicates(corpus, self.hashes[order], order, source)
        return corpus


def _refuse_duplicates(corpus: MappedCorpus, hashes: Table, rows: Table, source: str) -> None:
    # These are nearly always equal ids, and otherwise different ids with the same hash.
    for place in np.flatnonzero(hashes[1:] == hashes[:-1]):
        first, second = (int(row) for row in rows[place : place + 2])
        document_id = corpus[first].id
        if corpus[second].id == document_id:
            raise CorpusError(
                f"{source}: id {document_id!r} stands in rows {first + 1} and {second + 1}; make ids unique."
            )


def _hash(document_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(document_id.encode(), digest_size=8).digest(), "big", signed=True)
