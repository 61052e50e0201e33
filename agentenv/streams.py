"""Streams for people, which lose what cannot be shown: the work of hours is more than what is said about it."""

import contextlib
from typing import Any, TextIO, cast


class _Forgiving:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def forgiving(stream: TextIO) -> TextIO:
    """``stream``, whose writing never fails: not on a terminal or pipe that was closed, and not on a full disk."""
    return stream if isinstance(stream, _Forgiving) else cast(TextIO, _Forgiving(stream))


__all__ = ["forgiving"]
