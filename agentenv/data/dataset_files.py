"""Files of question sets: finding them, reading their records, and refusing what cannot be scored.

Every message names the file and the line or record, because a list-typed or null gold that slips through
makes every answer wrong without a word.
"""

import ast
import csv
import os
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any, TextIO

from agentenv.core.grammar import shortened
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.io.tables import UTF_8, open_text, reason_of
from agentenv.errors import DatasetError, MissingExtra
from agentenv.syntax_trees import parse_expression

DATA_VARIABLE = "AGENTENV_DATA"
_QUESTION = "question"


@dataclass(frozen=True, slots=True)
class RawRow:
    """One JSON object of a file, and where it stands."""

    fields: Mapping[str, Any]
    place: str  # "dev.jsonl, line 3"

    def value(self, *names: str) -> Any:
        """The first of the fields ``names`` that is there."""
        for name in names:
            if name in self.fields:
                return self.fields[name]
        there = shortened(", ".join(map(repr, self.fields)), 200)
        raise DatasetError(
            f"{self.place} has no field {' or '.join(map(repr, names))}; its fields are {there}{self._advice(names)}."
        )

    def _advice(self, names: Sequence[str]) -> str:
        """What to change where a head line was written in another way; empty where no way is known."""
        for field in self.fields:
            if field.strip().lower() in names:
                return f"; write {field.strip().lower()!r} in place of {field!r}"
        if len(self.fields) == 1 and any(mark in next(iter(self.fields)) for mark in ";\t,|"):
            return "; separate the columns of a .csv file by commas, and those of a .tsv file by tabs"
        if _QUESTION in names and "prompt" in self.fields:
            return (
                f"; a prompt is no question: give the bare question a field {_QUESTION!r}, in the record or in its "
                "'extra_info'"
            )
        if {_QUESTION, "id"} & set(names) and self._in_table():
            return "; the first line of a table names its columns"
        return ""

    def _in_table(self) -> bool:
        return any(
            f"{ending}{part}, line " in self.place for ending in (".csv", ".tsv") for part in ("", ".gz")
        )

    def text(self, *names: str) -> str:
        """A field that holds text, stripped and not blank."""
        value = self.value(*names)
        if not isinstance(value, str):
            raise DatasetError(f"{self.place}: {names[0]} must be text, not {_short(value)}.")
        if not value.strip():
            raise DatasetError(f"{self.place}: {names[0]} is empty.")
        return value.strip()

    def id(self, *names: str) -> str:
        """A field that holds an id: text, or a whole number."""
        value = self.value(*names)
        return str(value) if type(value) is int else self.text(*names)

    def gold(self, *names: str) -> str:
        """A field that holds one accepted answer."""
        value = self.value(*names)
        if isinstance(value, list):
            raise DatasetError(f"{self.place}: {names[0]} must be one text, not the list {_short(value)}.")
        return _gold(value, self.place)

    def golds(self, *names: str) -> tuple[str, ...]:
        """A field that holds the accepted answers: a flat list of text, or one text."""
        value = self.value(*names)
        if value == [] or value == "":
            raise DatasetError(f"{self.place}: the question has no answers ({names[0]} is empty).")
        return tuple(
            dict.fromkeys(_gold(gold, self.place) for gold in (value if isinstance(value, list) else [value]))
        )

    def texts(self, name: str) -> tuple[str, ...]:
        """A field that holds a list of text, which may be empty or absent."""
        value = self.fields.get(name) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise DatasetError(f"{self.place}: {name} must be a list of text, not {_short(value)}.")
        return tuple(value)

    def items(self, name: str) -> Iterator["RawRow"]:
        """The objects in the list field ``name``."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise DatasetError(f"{self.place}: {name} must be a list of objects, not {_short(value)}.")
        return (RawRow(item, f"{self.place}, {name} {number}") for number, item in enumerate(value, 1))


def number_text(value: Any) -> Any:
    """A number as its text, without an exponent and, where it is whole, without a point; anything else as it is.

    pandas makes 1990.0 of a year where another row of the column is empty, and no answer says so.
    """
    if type(value) is int:
        return str(value)
    if not isinstance(value, float) or not isfinite(value):
        return value
    return str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"


def _gold(value: Any, place: str) -> str:
    if value is None:
        raise DatasetError(f"{place}: the gold answer is null; drop the question or give its answer.")
    if isinstance(value, list):
        raise DatasetError(
            f"{place}: the gold answers hold a list inside the list, {_short(value)}; flatten it."
        )
    if not isinstance(value, str):
        raise DatasetError(f"{place}: the gold answer {_short(value)} is no text; write it as a string.")
    if not value.strip():
        raise DatasetError(f"{place}: the gold answer is blank; drop it.")
    if _is_written_list(value.strip()):
        raise DatasetError(
            f"{place}: the gold answer {_short(value)} is the text of a list, which no answer can equal; write a list "
            'of JSON, such as ["Rome", "Roma"].'
        )
    return value.strip()


def _is_written_list(text: str) -> bool:
    """Whether ``text`` is what ``str`` makes of a list or an array of texts, as pandas writes it into a table."""
    if not (text.startswith("[") and text.endswith("]")):
        return False
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not know
            found = ast.literal_eval(parse_expression(text))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # TypeError: a list as a key
        return False
    return bool(found) and all(isinstance(one, str) for one in found)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_records(
    path: Path, *, lines: bool | None = None, problems: list[str] | None = None
) -> Iterator[RawRow]:
    """The objects of a file.

    ``.jsonl`` holds one a line, ``.json`` an array or one single object, ``.csv`` and ``.tsv`` a head line and
    rows, whose fields are all text, ``.parquet`` a table whose empty fields are left out. All but the last may be
    compressed (``.gz``).

    Args:
        path: the file.
        lines: True reads one object a line whatever the name says; None goes by the name.
        problems: takes one sentence for each malformed record, which is then left out; where None, the first
            is raised.

    Raises:
        DatasetError: the file cannot be read, is corrupt, or holds something other than objects.
        MissingExtra: a parquet file, and pyarrow is not installed.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        yield from (RawRow(row, place) for place, row in _parquet(path))
        return
    found: Iterator[tuple[str, Any]]
    lines = lines or ".jsonl" in name
    try:
        if path.is_file():  # of a pipe the first bytes can be read only once
            _refuse_compressed(path)
        with open_text(path, newline="") as file:
            if name.endswith((".csv", ".tsv")):
                found = _table(file, path, "\t" if name.endswith(".tsv") else ",")
            elif lines:
                found = ((f"{path}, line {n}", text) for n, text in enumerate(file, 1) if text.strip())
            else:
                found = _array(file, path)
            for place, value in found:
                try:
                    yield _record(_json(value, place) if lines else value, place)
                except DatasetError as error:
                    if problems is None:
                        raise
                    problems.append(str(error))
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} cannot be read: {error}; save it in UTF-8.") from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise DatasetError(f"{path} cannot be read: {reason_of(error)}.") from error


_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PK\x03\x04": "zip",
}
"""Programs by the bytes with which a file that they compressed begins."""


def _refuse_compressed(path: Path) -> None:
    """Refuses a file that is compressed, unless it is by gzip and its name says so: it would be read as damaged text."""
    with path.open("rb") as file:
        begins = file.read(max(map(len, _COMPRESSED)))
    program = next((name for mark, name in _COMPRESSED.items() if begins.startswith(mark)), "")
    if program == "gzip" and path.suffix != ".gz":
        raise DatasetError(f"{path} is compressed by gzip, which its name does not say; let it end in .gz.")
    if program not in ("", "gzip"):
        raise DatasetError(
            f"{path} is compressed by {program}, which is not read; decompress it, or compress it by gzip."
        )


_PARQUET_BYTES, _PARQUET_ROWS = 1 << 20, 1024  # read at once


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra.of("pyarrow", "eval") from None
    try:
        # By default the columns of many rows are read at once, whatever the batch: most of a large file.
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_PARQUET_BYTES) as file:
            batches = file.iter_batches(batch_size=_PARQUET_ROWS)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield (
                    f"{path}, row {number}",
                    {name: value for name, value in row.items() if value is not None},
                )
    except (OSError, pyarrow.ArrowException) as error:
        raise DatasetError(f"{path} cannot be read: {error}.") from error


def _table(file: TextIO, path: Path, delimiter: str) -> Iterator[tuple[str, Any]]:
    rows = csv.reader(file, delimiter=delimiter, strict=True)
    head = next(rows, [])
    if twice := next((name for name in head if name and head.count(name) > 1), None):
        raise DatasetError(
            f"{path} has two columns {twice!r}, of which only one would be read; rename or remove one."
        )
    line = rows.line_num + 1
    for row in rows:
        place, line = f"{path}, line {line}", rows.line_num + 1
        if row:
            yield place, dict(zip(head, row, strict=True)) if len(row) == len(head) else (len(row), len(head))


def _array(file: TextIO, path: Path) -> Iterator[tuple[str, Any]]:
    try:
        content = _json(file.read(), str(path))
    except DatasetError as error:
        if bare_name(path) != path.name.removesuffix(".gz"):
            raise
        known = ", ".join(FORMATS)
        raise DatasetError(f"{error} The end of a file's name says its format: {known}.") from error
    for number, item in enumerate(content if isinstance(content, list) else [content], 1):
        yield f"{path}, record {number}", item


def _json(text: str, place: str) -> Any:
    try:
        return read_json_text(text, distinct=True)
    except ValueError as error:
        raise DatasetError(f"{place} is no valid JSON: {str(error)[:200]}.") from error


def _record(value: Any, place: str) -> RawRow:
    if isinstance(value, tuple):
        found, wanted = value
        hint = (
            "a value that contains the delimiter must stand in quotes"
            if found > wanted
            else "a cell is missing"
        )
        raise DatasetError(
            f"{place} has {found} column{'s' * (found > 1)} and the head line {wanted}; {hint}."
        )
    if not isinstance(value, dict):
        raise DatasetError(f"{place} must be a JSON object, not {_short(value)}.")
    return RawRow(value, place)


FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def bare_name(path: Path) -> str:
    """The name of a file of records without what says its format; what follows ``.json`` says it, whatever it is."""
    name = path.name.removesuffix(".gz")
    ends = [name.index(kind) for kind in (".json", ".csv", ".tsv", ".parquet") if kind in name]
    return name[: min(ends)] if ends else name


def read_qrels(questions: Path) -> dict[str, tuple[str, ...]] | None:
    """Supporting document ids by question id, from the ``.qrels.tsv`` beside ``questions``; None without one.

    A line is question id, document id and relevance, separated by tabs; relevance 0 does not support, and blank lines
    are skipped.

    Raises:
        DatasetError: a line is anything else.
    """
    path = questions.with_name(bare_name(questions) + ".qrels.tsv")
    if not path.is_file():
        return None
    found: dict[str, tuple[str, ...]] = {}
    try:
        # Not splitlines(): it would also cut at U+2028 and its like, which may stand in an id.
        lines = path.read_text(encoding=UTF_8).removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} cannot be read: {reason_of(error)}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 3 or not fields[2].isdecimal():
            raise DatasetError(
                f"{path}, line {number} must be question, document and relevance, not {_short(line)}."
            )
        if int(fields[2]) > 0:
            found[fields[0]] = (*found.get(fields[0], ()), fields[1])
    return found


def has_file(folder: str, pattern: str, path: Path | None) -> bool:
    """Whether a folder, as of ``find_file``, holds at least one file of this pattern."""
    root = path or Path(os.environ.get(DATA_VARIABLE) or ".")
    own = root / folder if (root / folder).is_dir() else root
    return any(file.is_file() for file in own.glob(pattern))


def find_file(name: str, folder: str, pattern: str, path: Path | None) -> Path:
    """The question file of the set ``name``.

    Args:
        name: the set, for messages.
        folder: what the set's own folder is called.
        pattern: of the file's name.
        path: the file itself, the set's own folder or its parent; None stands for the environment variable.

    Raises:
        DatasetError: there is no such file, or more than one.
    """
    if path is None and not os.environ.get(DATA_VARIABLE):
        raise DatasetError(
            f"Where is {name}? Pass its file or folder (--data PATH), or set {DATA_VARIABLE} to the folder "
            f"that holds {folder or 'it'}."
        )
    root = path or Path(os.environ[DATA_VARIABLE])
    if root.is_file():
        return root
    if not root.is_dir():
        raise DatasetError(f"There is no {root}; pass the file or folder of {name}.")
    own = root / folder if (root / folder).is_dir() else root
    files = sorted(file for file in own.glob(pattern) if file.is_file())
    if not files:
        places = f"it or in {root / folder}" if folder else "it"
        raise DatasetError(f"{root} does not hold {name}: there is no {pattern} in {places}.")
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise DatasetError(f"{own} holds {names}; pass the one you mean as --data {files[0]}.")
    return files[0]


def world_split(questions: Path) -> str:
    """The split that the card ``world.json`` of a fictional world declares; "" without a card."""
    card = questions.with_name("world.json")
    if not card.is_file():
        return ""
    try:
        return str(read_json_text(card.read_text(encoding="utf-8"))["config"]["split"])
    except (ValueError, LookupError, TypeError) as error:
        raise DatasetError(
            f"{card} does not say of which split its world is ({error!r}); write the world anew."
        ) from error
