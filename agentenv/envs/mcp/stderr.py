"""The last lines that a process writes to stderr, for errors about it."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_KEPT_BYTES = 4096
_CHUNK_BYTES = 65_536
_MOST_CHUNKS = 16  # limit per event, so that a process that writes without end does not block the event loop


class StderrTail:
    """Reads a pipe on the event loop, so that the writer never blocks for long; keeps only the last part."""

    def __init__(self) -> None:
        self._kept = b""
        self._reading: int | None = None

    @contextmanager
    def pipe(self) -> Iterator[TextIO]:
        """Yields the end of the pipe for writing, for the length of the block."""
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
        """Adds a line that did not come through the pipe."""
        self._kept = f"{line}\n".encode()

    @property
    def last_line(self) -> str:
        """Returns the last line so far; empty if nothing was written."""
        self._read()
        lines = self._kept.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(_MOST_CHUNKS):
                if self._reading is None or not (chunk := os.read(self._reading, _CHUNK_BYTES)):
                    return
                self._kept = (self._kept + chunk)[-_KEPT_BYTES:]
