"""Length-prefixed messages on a stream: how host, zygote, supervisor and worker talk.

Runs on both sides of the jail's wall.
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
"""Set in the number of a channel whose orders are a session's: the jail must know before it reads one."""


class Closed(Exception):
    """The other side is gone, or sent what is no message."""


def encode(document: Any) -> bytes:
    """One JSON document as bytes; surrogates survive."""
    return json.dumps(document, separators=(",", ":")).encode()


def gather(read: Callable[[int], bytes], size: int) -> bytes:
    """``size`` bytes from a function that gives at most as many as it is asked for.

    Raises:
        Closed: the stream ended before.
    """
    parts = bytearray()
    while len(parts) < size:
        try:
            # A mebibyte at most, so that what a length promises is not reserved before it comes.
            part = read(min(size - len(parts), 1 << 20))
        except ConnectionError as error:
            raise Closed from error
        if not part:
            raise Closed
        parts += part
    return bytes(parts)


def read_exactly(fd: int, size: int, deadline: float | None = None) -> bytes:
    """``size`` bytes from ``fd``.

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
        Closed: nobody reads any more.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except (BrokenPipeError, ConnectionError) as error:
            raise Closed from error


def read_frame(read: Callable[[int], bytes]) -> tuple[int, bytes]:
    """Channel and body of the next message between host and zygote.

    Raises:
        Closed: the other side is gone, or sent what is no message.
    """
    size, channel = HEAD.unpack(gather(read, HEAD.size))
    if size > MAX_BODY:
        raise Closed
    return channel, gather(read, size)


def frame(channel: int, body: bytes) -> bytes:
    """One message between host and zygote."""
    return HEAD.pack(len(body), channel) + body


def send(link: socket.socket, body: bytes, fds: tuple[int, ...] = ()) -> None:
    """Sends one message on a link, with descriptors.

    Raises:
        Closed: nobody reads any more.
    """
    view = memoryview(LENGTH.pack(len(body)) + body)
    try:
        sent = socket.send_fds(link, [view], list(fds)) if fds else 0
        while sent < len(view):  # a link's timeout is for each part: what is long may take its time
            sent += link.send(view[sent:])
    except OSError as error:
        raise Closed from error


def reply(link: socket.socket, order: dict[str, Any], answer: dict[str, Any]) -> None:
    """Sends the answer to ``order``, whose number it bears, so that it is taken for no other order's.

    Raises:
        Closed: nobody reads any more.
    """
    send(link, encode({**answer, "serial": order["serial"]}))


def receive(link: socket.socket, limit: int = MAX_BODY, deadline: float | None = None) -> bytes:
    """The next message of at most ``limit`` bytes on a link.

    Raises:
        Closed: the other side is gone, or the message is longer.
        TimeoutError: ``deadline`` passed before.
    """
    (size,) = LENGTH.unpack(read_exactly(link.fileno(), LENGTH.size, deadline))
    if size > limit:
        raise Closed
    return read_exactly(link.fileno(), size, deadline)


def receive_with_fds(link: socket.socket, count: int = 3) -> tuple[bytes, list[int]]:
    """The next message on a link and the descriptors that came with it."""
    # All of the head at once: descriptors come with its first byte, and a plain read of that byte would lose them.
    head, fds, _, _ = socket.recv_fds(link, LENGTH.size, count, socket.MSG_WAITALL)
    if len(head) < LENGTH.size:
        raise Closed
    return read_exactly(link.fileno(), LENGTH.unpack(head)[0]), fds
