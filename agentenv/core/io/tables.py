"""Tables of separated values and lines of records: opened, also compressed, and why a file cannot be read."""

import csv
import gzip
from pathlib import Path
from typing import TextIO, cast

UTF_8 = "utf-8-sig"
"""UTF-8 as people's files hold it: the byte order mark that spreadsheets and editors write first is no part of the text."""


def open_text(path: Path, *, newline: str | None = None) -> TextIO:
    """The text of a file in UTF-8, which is decompressed where its name ends in ``.gz``.

    Args:
        path: The file; it may begin with a byte order mark, which is left out.
        newline: As of `open`; "" keeps line ends as they are, of which a quoted field of a table may hold some.

    Raises:
        OSError: it cannot be opened.
    """
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding=UTF_8, newline=newline))
    return path.open(encoding=UTF_8, newline=newline)


def reason_of(error: Exception) -> str:
    """What ``error`` of a file says without its number and the name of the file, which stand in the sentence around it.

    Of a field of a table that is too long it also says how that comes about and what to do.
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if not isinstance(error, csv.Error) or "field limit" not in str(error):
        return str(error)
    return (
        f"a field has more than {csv.field_size_limit():,} characters; close the quote that stays open, or save longer "
        "texts as JSON lines"
    )


__all__ = ["UTF_8", "open_text", "reason_of"]
