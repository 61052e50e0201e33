"""The end of what a process writes to stderr, for errors that name it."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_KEPT = 4096  # bytes
_CHUNK = 65_536
_CHUNKS = 16  # read at a time, so that a process that writes without end leaves the event loop to others


class StderrTail:
    """Reads a pipe on the event loop as it is written to: the writer never waits for long, and nothing grows."""

    def __init__(self) -> None:
        self._kept = b""
        self._reading: int | None = None

    @contextmanager
    def pipe(self) -> Iterator[TextIO]:
        """The end to write to, for the length of the block."""
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._reading = reading
        loop.add_reader(reading, self._read)
        try:
            with os.fdopen(writing, "w", encoding="utf-8") as writer:
                yield writer
        finally:
            self._read()
            self._reading = None
            loop.remove_reader(reading)
            os.close(reading)

    def note(self, line: str) -> None:
        """Adds what was noticed otherwise."""
        self._kept = f"{line}\n".encode()

    @property
    def last_line(self) -> str:
        """The last line so far; empty where nothing was written."""
        self._read()
        lines = self._kept.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(_CHUNKS):
                if self._reading is None or not (chunk := os.read(self._reading, _CHUNK)):
                    return
                self._kept = (self._kept + chunk)[-_KEPT:]
