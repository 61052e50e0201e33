"""The three standard streams of this process, whatever the caller has closed and which alphabet its terminal has."""

import io
import json
import logging
import os
import sys
from typing import Any

from agentenv.streams import forgiving, visible

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
    # What prints the warnings and the errors of servers and libraries, which repeat what their callers have written.
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleLines())


class _VisibleLines(logging.Formatter):
    """Lines of a log, and tracebacks in it, that command no terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def drop_output() -> None:
    """Sends what is still to be printed nowhere, because nobody takes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def as_json(document: Any) -> str:
    """``document`` as one line of JSON that standard output can print."""
    whole = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(document, ensure_ascii=not whole, allow_nan=False)
