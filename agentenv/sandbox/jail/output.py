"""Bounded records of what a program writes: the head and the tail stay, the middle is counted."""

import os


class Bounded:
    """One stream; holds at most ``limit`` bytes however much comes."""

    def __init__(self, limit: int, hard: int) -> None:
        """``limit`` bytes are kept; more than ``hard`` are an offence."""
        self._hard = hard
        self._head_room = limit - limit // 2
        self._tail_room = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Takes what was written next."""
        self.total += len(data)
        room = self._head_room - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        # Cut at once, so that memory stays bounded however much comes.
        if len(self._tail) > self._tail_room:
            del self._tail[: len(self._tail) - self._tail_room]

    @property
    def offends(self) -> bool:
        """Whether more came than a program may write at all."""
        return self.total > self._hard

    def forgive(self) -> None:
        """From now on no amount is an offence: the program is being ended for this or another reason."""
        self._hard = 1 << 62

    @property
    def truncated(self) -> bool:
        """Whether anything is missing."""
        return self.total > len(self._head) + len(self._tail)

    @property
    def text(self) -> str:
        """Head, a note of how much is missing, tail; what is no UTF-8 is replaced."""
        head, tail = bytes(self._head), bytes(self._tail)
        if not self.truncated:
            return (head + tail).decode("utf-8", "replace")
        missing = self.total - len(head) - len(tail)
        note = f"\n[{missing} bytes left out]\n"
        return head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")


def drain(fd: int, into: Bounded) -> bool:
    """Reads what is there, at most 1 MiB; False once the stream has ended."""
    # Bounded, because a program that writes without end would keep its watcher from looking at time and memory.
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
