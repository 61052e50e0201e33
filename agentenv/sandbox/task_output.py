"""The output of a command in a task container, read from the engine's stream until a deadline, with its middle left out."""

import socket
import struct
import time
from typing import Any

from agentenv.core.grammar import shortened

_FRAME = struct.Struct(">BxxxL")  # of a stream: which one, and the length of what follows


def read_output(stream: Any, deadline: float, most: int) -> tuple[str, bool]:
    """What a command writes, and whether it ended before ``deadline``.

    Args:
        stream: What the engine's client gives, in frames with a head each.
        deadline: On the monotonic clock.
        most: Characters that are kept: the first and the last half of them.
    """
    link: socket.socket = getattr(stream, "_sock", stream)
    kept = _Kept(4 * most)
    try:
        while True:
            head = _exactly(link, _FRAME.size, deadline)
            if len(head) < _FRAME.size:
                return shortened(kept.text, most), True
            left = _FRAME.unpack(head)[1]
            while left:
                part = _exactly(link, min(left, 1 << 16), deadline)
                if not part:
                    return shortened(kept.text, most), True
                kept.add(part)
                left -= len(part)
    except TimeoutError:
        return shortened(kept.text, most), False
    finally:
        stream.close()
        link.close()


def _exactly(link: socket.socket, size: int, deadline: float) -> bytes:
    """``size`` bytes, or fewer where the stream ends.

    Raises:
        TimeoutError: the deadline has passed.
    """
    parts = b""
    while len(parts) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        link.settimeout(left)
        part = link.recv(size - len(parts))
        if not part:
            break
        parts += part
    return parts


class _Kept:
    """The beginning and the end of a stream of bytes."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._first, self._last, self._dropped = bytearray(), bytearray(), False

    def add(self, part: bytes) -> None:
        room = self._half - len(self._first)
        self._first += part[:room]
        self._last += part[room:]
        if len(self._last) > 2 * self._half:
            del self._last[: -self._half]
            self._dropped = True

    @property
    def text(self) -> str:
        middle = b"\n[...]\n" if self._dropped else b""
        return bytes(self._first + middle + self._last).decode("utf-8", "replace")
