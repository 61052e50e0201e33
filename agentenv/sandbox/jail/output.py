"""Bounded records of a program's output: head and tail are kept, and the bytes in between are counted."""

import os


class Bounded:
    """The record of one stream; it uses bounded memory for any amount of output."""

    def __init__(self, limit: int, hard: int) -> None:
        """Keeps ``limit`` bytes. More than ``hard`` bytes violate the output limit."""
        self._hard = hard
        self._head_room = limit - limit // 2
        self._tail_room = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Adds the next output."""
        self.total += len(data)
        room = self._head_room - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        # Cut at once, so that memory stays bounded for any amount of output.
        if len(self._tail) > self._tail_room:
            del self._tail[: len(self._tail) - self._tail_room]

    @property
    def offends(self) -> bool:
        """Whether the output exceeds the hard limit."""
        return self.total > self._hard

    def forgive(self) -> None:
        """Disables the hard limit from now on, because the program is being ended anyway."""
        self._hard = 1 << 62

    @property
    def truncated(self) -> bool:
        """Whether any output is missing."""
        return self.total > len(self._head) + len(self._tail)

    @property
    def text(self) -> str:
        """Returns the head, a note about the missing bytes, and the tail; invalid UTF-8 is replaced."""
        head, tail = bytes(self._head), bytes(self._tail)
        if not self.truncated:
            return (head + tail).decode("utf-8", "replace")
        missing = self.total - len(head) - len(tail)
        note = f"\n[{missing} bytes left out]\n"
        return head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")


def drain(fd: int, into: Bounded) -> bool:
    """Reads available data, at most 1 MiB; returns False once the stream has ended."""
    # Bounded, because a program that writes without end would keep its watcher from checking time and memory.
    left = 1 << 20
    while left > 0:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        into.add(data)
        left -= len(data)
    return True
