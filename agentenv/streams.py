"""Streams for people: what cannot be shown is lost rather than the work of hours, and no text commands a terminal."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_DIRECTIONS = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_ESCAPES = _CONTROLS | _DIRECTIONS


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


def visible(text: str) -> str:
    """``text`` with an escape for each control character but line ends and tabs, and for those of the direction of writing.

    A terminal obeys them: what a program, a policy or a file of somebody else says could hide or overwrite what the command
    itself says, show it in another order, or fill the clipboard.
    """
    return text.translate(_ESCAPES)


def make_console(*, stderr: bool = False, soft_wrap: bool = True, **options: Any) -> "Console":
    """What commands print on for people: without marks and colours of its own in a text, and `visible` on a terminal.

    With ``soft_wrap`` no line is broken: a path or a command is copied as one line, and a program reads lines that do not
    depend on a width.
    """
    from rich.console import Console

    class Guarded(Console):
        """Lets no text of a segment command the terminal; the colours of the console itself are no part of it."""

        def render(self, *given: Any, **more: Any) -> "Iterator[Segment]":
            for segment in super().render(*given, **more):
                shown = self.is_terminal and not segment.control
                yield segment._replace(text=visible(segment.text)) if shown else segment

    return Guarded(stderr=stderr, emoji=False, markup=False, highlight=False, soft_wrap=soft_wrap, **options)


__all__ = ["forgiving", "make_console", "visible"]
