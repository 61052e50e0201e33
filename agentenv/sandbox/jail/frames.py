"""Length-prefixed messages on a stream, by which host, zygote, supervisor and worker communicate.

This module runs on both sides of the jail's boundary.
"""

import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

LENGTH = struct.Struct(">I")
HEAD = struct.Struct(">IQ")  # length of the body, channel
MAX_BODY = 1 << 28
SESSION = 1 << 63
"""The bit in a channel's number that marks a session: the jail must know this before it reads an order."""


class Closed(Exception):
    """The other side has ended, or sent something that is not a message."""


def encode(document: Any) -> bytes:
    """Encodes a JSON document as bytes, including surrogates."""
    return json.dumps(document, separators=(",", ":")).encode()


def gather(read: Callable[[int], bytes], size: int) -> bytes:
    """Reads ``size`` bytes by a function that returns at most as many as requested.

    Raises:
        Closed: the stream ended before.
    """
    parts = bytearray()
    while len(parts) < size:
        try:
            # At most 1 MiB at a time, so that no memory is reserved for a length before the data arrives.
            part = read(min(size - len(parts), 1 << 20))
        except ConnectionError as error:
            raise Closed from error
        if not part:
            raise Closed
        parts += part
    return bytes(parts)


def read_exactly(fd: int, size: int, deadline: float | None = None) -> bytes:
    """Reads ``size`` bytes from ``fd``.

    Raises:
        Closed: the stream ended before.
        TimeoutError: ``deadline`` (monotonic) passed before.
    """

    def read(most: int) -> bytes:
        if deadline is not None and not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        return os.read(fd, most)

    return gather(read, size)


def write_all(fd: int, data: bytes) -> None:
    """Writes all of ``data``.

    Raises:
        Closed: the other end is closed.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except (BrokenPipeError, ConnectionError) as error:
            raise Closed from error


def read_frame(read: Callable[[int], bytes]) -> tuple[int, bytes]:
    """Reads channel and body of the next message between host and zygote.

    Raises:
        Closed: the other side has ended, or sent something that is not a message.
    """
    size, channel = HEAD.unpack(gather(read, HEAD.size))
    if size > MAX_BODY:
        raise Closed
    return channel, gather(read, size)


def frame(channel: int, body: bytes) -> bytes:
    """Encodes one message between host and zygote."""
    return HEAD.pack(len(body), channel) + body


def send(link: socket.socket, body: bytes, fds: tuple[int, ...] = ()) -> None:
    """Sends one message on a link, with descriptors.

    Raises:
        Closed: the other end is closed.
    """
    view = memoryview(LENGTH.pack(len(body)) + body)
    try:
        sent = socket.send_fds(link, [view], list(fds)) if fds else 0
        while sent < len(view):  # the timeout applies to each part, so a long message may take longer
            sent += link.send(view[sent:])
    except OSError as error:
        raise Closed from error


def reply(link: socket.socket, order: dict[str, Any], answer: dict[str, Any]) -> None:
    """Sends the answer to ``order`` with the order's serial number, so that it is not taken for that of another order.

    Raises:
        Closed: the other end is closed.
    """
    send(link, encode({**answer, "serial": order["serial"]}))


def receive(link: socket.socket, limit: int = MAX_BODY, deadline: float | None = None) -> bytes:
    """Reads the next message of at most ``limit`` bytes.

    Raises:
        Closed: the other side has ended, or the message is longer.
        TimeoutError: ``deadline`` passed before.
    """
    (size,) = LENGTH.unpack(read_exactly(link.fileno(), LENGTH.size, deadline))
    if size > limit:
        raise Closed
    return read_exactly(link.fileno(), size, deadline)


def receive_with_fds(link: socket.socket, count: int = 3) -> tuple[bytes, list[int]]:
    """Reads the next message and the descriptors that came with it."""
    # The whole header is read at once: descriptors arrive with its first byte, and a plain read of that byte would drop
    # them.
    head, fds, _, _ = socket.recv_fds(link, LENGTH.size, count, socket.MSG_WAITALL)
    if len(head) < LENGTH.size:
        raise Closed
    return read_exactly(link.fileno(), LENGTH.unpack(head)[0]), fds
