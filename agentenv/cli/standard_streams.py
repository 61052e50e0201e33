"""The three standard streams of this process, whatever the caller has closed and which alphabet its terminal has."""

import io
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agentenv.streams import forgiving

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def complete_streams() -> None:
    """Opens what is closed of the three on the null device, lets every text be printed, and stderr be closed meanwhile.

    A socket or a file of a run would otherwise get the number of a closed stream, and what a library prints would be
    written into it. Characters that the terminal does not have are shown as escapes.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # Of libraries too, whose bars of progress would end the work otherwise.
    sys.stderr = forgiving(sys.stderr)


def visible(text: str) -> str:
    """``text`` with an escape for each control character but line ends and tabs.

    A terminal obeys them: what a program, a policy or a file of somebody else says could hide or overwrite what the command
    itself says, or fill the clipboard.
    """
    return text.translate(_CONTROLS)


def make_console(*, stderr: bool = False, **options: Any) -> "Console":
    """What commands print on for people: without marks and colours of its own in a text, and `visible` on a terminal."""
    from rich.console import Console

    class Guarded(Console):
        """Lets no text of a segment command the terminal; the colours of the console itself are no part of it."""

        def render(self, *given: Any, **more: Any) -> "Iterator[Segment]":
            for segment in super().render(*given, **more):
                shown = self.is_terminal and not segment.control
                yield segment._replace(text=visible(segment.text)) if shown else segment

    return Guarded(stderr=stderr, emoji=False, markup=False, highlight=False, **options)


def drop_output() -> None:
    """Sends what is still to be printed nowhere, because nobody takes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def as_json(document: Any) -> str:
    """``document`` as one line of JSON that standard output can print."""
    whole = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(document, ensure_ascii=not whole, allow_nan=False)
