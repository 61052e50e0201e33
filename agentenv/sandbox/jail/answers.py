"""Messages between a session's supervisor and its interpreters, and the answer about a cell for the host.

A program controls its interpreter, so an answer may contain anything that a program can write, or be missing.
"""

import json
import select
import socket
import struct
import time
from typing import Any

from agentenv.sandbox.jail import frames

REPLY_LIMIT = 1 << 20
READ_S = 5.0
MAX_LINE = 1 << 31
TAKE, TAKEN = b'{"op":"take"}', b"{}"
"""Sent before the first cell of an interpreter, and its answer before it reads that cell."""
TIMED = b"[]"
"""The answer of an interpreter that refuses to fork because its program has set a timer, which a fork would lose."""


def link() -> tuple[socket.socket, socket.socket]:
    """Makes a socket pair. Writing to its first end never blocks for long, because a program may not read the other end."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(READ_S), 0))
    return ours, theirs


def hand_over(talk: socket.socket, bodies: list[bytes], deadline: float) -> None:
    """Sends messages to an interpreter, which may not read them.

    Raises:
        Closed: the interpreter has ended.
        TimeoutError: it did not read all of them before ``deadline``.
    """
    view = memoryview(b"".join(frames.LENGTH.pack(len(body)) + body for body in bodies))
    writable = select.poll()
    writable.register(talk, select.POLLOUT)
    while view:
        if not writable.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        try:
            # Non-blocking, because an interpreter that does not read would otherwise hold its supervisor beyond the
            # deadline.
            view = view[talk.send(view, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            continue
        except OSError as error:
            raise frames.Closed from error


def has_taken(talk: socket.socket) -> bool:
    """Whether a new interpreter has answered ``TAKE`` with its first message; False if it ended before."""
    try:
        return frames.receive(talk, len(TAKEN), time.monotonic()) == TAKEN
    except (frames.Closed, TimeoutError):
        return False


def read_answer(talk: socket.socket) -> dict[str, Any]:
    """Reads an interpreter's answer about its cell, and checks every field.

    Raises:
        Closed: the interpreter has ended, or sent something that is not an answer.
        TimeoutError: the answer was not complete in time.
    """
    body = frames.receive(talk, REPLY_LIMIT, time.monotonic() + READ_S)
    try:
        answer = json.loads(body)
        kept = {name: answer[name] for name in ("ok", "value", "folder", "digest")}
        error = _read_error(answer["error"])
    except (ValueError, KeyError, TypeError, RecursionError) as bad:
        raise frames.Closed from bad
    texts = isinstance(kept["value"], str | None) and isinstance(kept["folder"], str)
    if type(kept["ok"]) is not bool or not texts or not isinstance(kept["digest"], str):
        raise frames.Closed
    return {**kept, "error": error}


def _read_error(error: Any) -> dict[str, Any] | None:
    """Reads class, message and line of an exception.

    Raises:
        TypeError: a value has another type.
    """
    if error is None:
        return None
    kind, message, line = error["type"], error["message"], error["line"]
    if not (isinstance(kind, str) and isinstance(message, str)):
        raise TypeError("no error of a cell")
    known = type(line) is int and 0 <= line < MAX_LINE
    return {"type": kind[:200], "message": message[:2000], "line": line if known else 0}


NOTHING_RAN: dict[str, Any] = {
    "stdout": "",
    "stderr": "",
    "value": None,
    "error": None,
    "digest": "",
    "truncated": False,
    "files": {},
    "refused": {},
    "wall_s": 0.0,
    "memory_mb": 0.0,
    "alive": True,
}
"""The answer about a cell that did not start."""


def unwritten(reason: str) -> dict[str, Any]:
    """Returns the outcome of a cell whose files could not be written because of what its program had created before."""
    error = {"type": "OSError", "message": reason, "line": 0}
    return {"status": "error", "error": error, "stderr": f"{reason}; the cell was not run\n"}


def outcome(verdict: str, answer: dict[str, Any] | None) -> dict[str, Any]:
    """Returns status, value and error of a cell."""
    if answer is None:
        return {"status": verdict, "value": None, "error": None, "digest": ""}
    kept = {name: answer[name] for name in ("value", "error", "digest")}
    if verdict != "ready":
        return {"status": verdict, **kept}
    if not answer["ok"]:
        memory = (answer["error"] or {}).get("type") == "MemoryError"
        return {"status": "oom" if memory else "error", **kept}
    return {"status": "ok", **kept}
