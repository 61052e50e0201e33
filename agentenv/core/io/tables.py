"""Tables of separated values and lines of records: opened, also compressed, and why a file cannot be read."""

import csv
import gzip
import io
import sys
import zlib
from pathlib import Path
from typing import TextIO, cast

UTF_8 = "utf-8-sig"
"""UTF-8 as people's files hold it: the byte order mark that spreadsheets and editors write first is no part of the text."""
_FREE_BYTES, _MOST_TIMES = 1 << 28, 200
"""A file may unpack to so many bytes, or to so many times its size: texts take a fifth to a fiftieth when packed, and a file
that was made to fill the memory a thousandth."""


class _Unpacked(gzip.GzipFile):
    """What a file of gzip holds, up to a bound."""

    most: int
    """Bytes that may be unpacked."""

    def read1(self, size: int = -1) -> bytes:
        """The next bytes; `io.TextIOWrapper` reads by this alone."""
        try:
            read = super().read1(size)
        except (EOFError, zlib.error) as error:
            raise gzip.BadGzipFile(str(error)) from error
        if self.tell() > self.most:
            raise gzip.BadGzipFile(
                f"it unpacks to more than {self.most >> 20:,} MiB, {_MOST_TIMES} times its size"
            )
        return read


def open_text(path: Path, *, newline: str | None = None) -> TextIO:
    """The text of a file in UTF-8, which is decompressed where its name ends in ``.gz``.

    Args:
        path: The file; it may begin with a byte order mark, which is left out.
        newline: As of `open`; "" keeps line ends as they are, of which a quoted field of a table may hold some.

    Raises:
        OSError: it cannot be opened. Reading raises one too, where a file unpacks to far more than texts do.
    """
    if path.suffix == ".gz":
        packed = _Unpacked(path, "rb")
        size = path.stat().st_size if path.is_file() else sys.maxsize  # of a pipe nobody knows it
        packed.most = max(_FREE_BYTES, _MOST_TIMES * size)
        return cast(TextIO, io.TextIOWrapper(packed, encoding=UTF_8, newline=newline))
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
