"""A corpus: documents in a fixed order, read from JSON lines or a table, with a fingerprint of their content."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from agentenv.core.io.strict_json import read_json_text
from agentenv.core.io.tables import open_text, reason_of
from agentenv.core.types import Document
from agentenv.data.dataset_files import read_records
from agentenv.errors import CorpusError, DatasetError

CORPUS_FILES = ("corpus.jsonl", "corpus.jsonl.gz")
ID_FIELDS, TEXT_FIELDS = ("id", "_id"), ("text", "contents")
"""Accepted names of the fields with the id and the text of a document."""
TABLES = (".csv", ".tsv", ".parquet")
"""Endings of the names of tables."""
ID_PREFIXES = {"full_wiki_segments": "wiki:"}
"""Prefixes that a question set adds to the ids of a table, by the beginning of the table's name."""


class Corpus(Sequence[Document]):
    """Documents in the order of their rows, which breaks ties between equal scores.

    Corpora with the same documents in the same order are equal.

    Args:
        documents: At least one document, with distinct ids.
        source: Where they come from, for errors.

    Raises:
        CorpusError: there are no documents, or an id is repeated.
    """

    def __init__(self, documents: Iterable[Document], *, source: str = "the corpus") -> None:
        self._documents: list[Document] = []
        self._rows: dict[str, int] = {}
        digest = hashlib.sha256()
        for row, document in enumerate(documents):
            first = self._rows.setdefault(document.id, row)
            if first != row:
                raise CorpusError(
                    f"{source}: id {document.id!r} stands in rows {first + 1} and {row + 1}; make ids unique."
                )
            self._documents.append(document)
            digest.update(document_line(document))
        if not self._documents:
            raise CorpusError(f"{source} is empty; give at least one document.")
        self.fingerprint = digest.hexdigest()
        """SHA-256 of id, title and text of every document, in order."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Corpus) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __len__(self) -> int:
        return len(self._documents)

    @overload
    def __getitem__(self, row: int) -> Document: ...
    @overload
    def __getitem__(self, row: slice) -> list[Document]: ...
    def __getitem__(self, row: int | slice) -> Document | list[Document]:
        return self._documents[row]

    def row_of(self, document_id: str) -> int:
        """Returns the row, from 0, of the document with this id.

        Raises:
            KeyError: no document has this id.
        """
        return self._rows[document_id]

    def save(self, path: Path | str) -> None:
        """Writes one ``{"id", "title", "text"}`` per line."""
        path = Path(path)
        with path.open("wb") as file:
            file.writelines(map(document_line, self))


def as_corpus(documents: Iterable[Document]) -> Corpus:
    """Returns ``documents`` if it is a corpus, otherwise a corpus of them."""
    return documents if isinstance(documents, Corpus) else Corpus(documents)


def load_corpus(path: Path | str) -> Corpus:
    """Reads a corpus from a file of JSON lines or a table, or from ``corpus.jsonl[.gz]`` in a folder.

    The ending of a file's name determines its format: ``.csv``, ``.tsv`` and ``.parquet`` are tables, any other is JSON
    lines. All except ``.parquet`` may be compressed (``.gz``).

    A table has the fields of a JSON line as columns in any order, named in the header line of a ``.csv`` or ``.tsv`` file.
    Other columns are ignored, and an empty cell of a ``.parquet`` file is a missing field. The ids in TopiOCQA's table
    (``full_wiki_segments.tsv``) are numbers, to which its questions add the prefix ``wiki:``; so the documents get it too.

    A JSON line is ``{"id", "title", "text"}``, where a missing title is empty and the id may be called ``_id`` as in BEIR,
    or ``{"id", "contents"}`` as in Search-R1, where contents is the quoted title, a newline and the text. If a title is
    given that is not the first line of contents, contents is only the text.

    Raises:
        CorpusError: the file is missing, empty or corrupt, a field is missing, or an id occurs twice.
    """
    file = corpus_file(Path(path))
    return Corpus(read_documents(file), source=str(file))


def read_documents(path: Path | str) -> Iterator[Document]:
    """Yields the documents of a file one by one, in the formats of `load_corpus`; blank lines are skipped.

    Raises:
        CorpusError: a line or row cannot be read or lacks a field; the message gives its number.
        MissingExtra: it is a parquet file, and pyarrow is not installed.
    """
    path = Path(path)
    if is_table(path):
        yield from _read_table(path)
        return
    number = 0
    try:
        with open_text(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield parse_document(line, f"{path}, line {number}")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path} cannot be read after line {number}: {error}; save it in UTF-8, as a .jsonl, .csv or .tsv file."
        ) from error
    except (OSError, EOFError) as error:
        raise CorpusError(f"{path} cannot be read after line {number}: {reason_of(error)}.") from error


def is_table(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return path.name.removesuffix(".gz").endswith(TABLES)


def _read_table(path: Path) -> Iterator[Document]:
    prefix = next((prefix for name, prefix in ID_PREFIXES.items() if path.name.startswith(name)), "")
    try:
        for row in read_records(path):
            row.value(*ID_FIELDS)  # their error explains a wrong header line
            row.value(*TEXT_FIELDS)
            document = _document(dict(row.fields), row.place)
            yield replace(document, id=prefix + document.id)
    except DatasetError as error:
        raise CorpusError(str(error)) from error


def corpus_file(path: Path) -> Path:
    """Returns ``path``, or the corpus file in it if it is a folder.

    Raises:
        CorpusError: it does not exist, or the folder contains no corpus.
    """
    if not path.exists():
        raise CorpusError(
            f"There is no {path}; name a corpus file, or a folder that holds {CORPUS_FILES[0]}."
        )
    if not path.is_dir():
        return path
    for name in CORPUS_FILES:
        if (path / name).is_file():
            return path / name
    raise CorpusError(f"{path} holds no {' or '.join(CORPUS_FILES)}; name the corpus file itself.")


def parse_document(line: str | bytes, place: str) -> Document:
    """Parses the document on one line of a corpus file.

    Args:
        line: JSON in one of the formats of `load_corpus`.
        place: The position of the line, for errors.

    Raises:
        CorpusError: it is not JSON, or lacks a field.
    """
    try:
        record = read_json_text(line)
    except ValueError as error:
        raise CorpusError(
            f"{place} is not JSON ({error}): {line[:60]!r}. A corpus has one JSON object a line, with id, title and text."
        ) from error
    if not isinstance(record, dict):
        raise CorpusError(f"{place} is not an object with id, title and text: {line[:60]!r}.")
    return _document(record, place)


def _document(record: dict[str, Any], place: str) -> Document:
    id_field = "_id" if "_id" in record and "id" not in record else "id"
    if isinstance(record.get(id_field), int):
        record[id_field] = str(record[id_field])
    id = _field(record, id_field, place)
    if "contents" in record and "text" not in record:
        given = record.get("title")
        title = given if isinstance(given, str) else ""
        return Document(id, *title_and_text(title, _field(record, "contents", place)))
    title = _field(record, "title", place) if "title" in record else ""
    return Document(id, title, _field(record, "text", place))


def title_and_text(title: str, contents: str) -> tuple[str, str]:
    """Splits contents into title and text: its first line is the title if text follows and no other title is given."""
    first, newline, text = contents.partition("\n")
    first = first.strip().strip('"')
    if title and first != title.strip().strip('"'):
        return title, contents
    return (title or first, text) if newline else (title, contents)


def _field(record: dict[str, Any], name: str, place: str) -> str:
    if name not in record:
        raise CorpusError(
            f"{place} lacks the field {name!r}; it has {', '.join(map(repr, record)) or 'none'}."
        )
    value = record[name]
    if not isinstance(value, str) or (name == "id" and not value):
        raise CorpusError(f"{place}: {name!r} is {value!r}; give a string.")
    return value


def document_line(document: Document) -> bytes:
    """Returns the line of a document in a saved corpus; a corpus's fingerprint is the SHA-256 of all lines."""
    record = {"id": document.id, "title": document.title, "text": document.text}
    try:
        return (json.dumps(record, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"Document {document.id!r} holds half of a surrogate pair, which is no text: repair it."
        ) from error
