"""Tables of separated values and lines of records: opened, also compressed, and why one cannot be read."""

import csv
import gzip
from pathlib import Path
from typing import TextIO, cast


def open_text(path: Path, *, encoding: str = "utf-8", newline: str | None = None) -> TextIO:
    """The text of a file, which is decompressed where its name ends in ``.gz``.

    Args:
        path: The file.
        encoding: ``utf-8-sig`` leaves out a mark that some programs write first.
        newline: As of `open`; "" keeps line ends as they are, of which a quoted field of a table may hold some.

    Raises:
        OSError: it cannot be opened.
    """
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding=encoding, newline=newline))
    return path.open(encoding=encoding, newline=newline)


def reason_of(error: Exception) -> str:
    """What ``error`` of a table says; of a field that is too long also how that comes about and what to do."""
    if not isinstance(error, csv.Error) or "field limit" not in str(error):
        return str(error)
    return (
        f"a field has more than {csv.field_size_limit():,} characters; close the quote that stays open, or save longer "
        "texts as JSON lines"
    )


__all__ = ["open_text", "reason_of"]
