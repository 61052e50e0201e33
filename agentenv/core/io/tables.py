"""Opens files of text, tables and JSON lines, also compressed ones, and explains why a file cannot be read."""

import csv
import gzip
import io
import sys
import zlib
from pathlib import Path
from typing import TextIO, cast

UTF_8 = "utf-8-sig"
"""UTF-8 that skips a byte order mark, which spreadsheets and editors write at the beginning of a file."""
_ALWAYS_ALLOWED_BYTES, _MOST_RATIO = 1 << 28, 200
"""A file may unpack to ``_ALWAYS_ALLOWED_BYTES``, or to ``_MOST_RATIO`` times its size. Compression shrinks real text to
between a fifth and a fiftieth of its size, and a decompression bomb to about a thousandth."""


class _BoundedGzipFile(gzip.GzipFile):
    """A gzip file that may unpack only to a limited size."""

    most: int
    """The largest number of unpacked bytes."""

    def read1(self, size: int = -1) -> bytes:
        """Reads the next bytes. `io.TextIOWrapper` uses only this method."""
        try:
            read = super().read1(size)
        except (EOFError, zlib.error) as error:
            raise gzip.BadGzipFile(str(error)) from error
        if self.tell() > self.most:
            raise gzip.BadGzipFile(
                f"it unpacks to more than {self.most >> 20:,} MiB, {_MOST_RATIO} times its size"
            )
        return read


def open_text(path: Path, *, newline: str | None = None) -> TextIO:
    """Opens a UTF-8 text file, and decompresses it if its name ends in ``.gz``.

    Args:
        path: The file. A byte order mark at its beginning is skipped.
        newline: As in `open`; "" preserves line ends, which quoted fields of a table may contain.

    Raises:
        OSError: the file cannot be opened. Reading also raises it if a file unpacks to far more than real text does.
    """
    if path.suffix == ".gz":
        packed = _BoundedGzipFile(path, "rb")
        size = path.stat().st_size if path.is_file() else sys.maxsize  # the size of a pipe is unknown
        packed.most = max(_ALWAYS_ALLOWED_BYTES, _MOST_RATIO * size)
        return cast(TextIO, io.TextIOWrapper(packed, encoding=UTF_8, newline=newline))
    return path.open(encoding=UTF_8, newline=newline)


def reason_of(error: Exception) -> str:
    """Returns the message of a file's error without its number and file name, which the caller's sentence contains.

    For a field of a table that is too long, the message also says how that happens and what to do.
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
