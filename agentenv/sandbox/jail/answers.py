"""What a session's supervisor and its interpreters say to each other, and what the host is told of a cell.

An interpreter's word is its program's word: an answer may be anything that a program can write, or none at all.
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
"""What goes before the first cell of an interpreter, and what it answers before it reads that cell."""
TIMED = b"[]"
"""What an interpreter answers that does not fork because a timer of its program is set, which its fork would not have."""


def link() -> tuple[socket.socket, socket.socket]:
    """A link whose first end never waits for long to be written to: a program may leave the other end unread."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(READ_S), 0))
    return ours, theirs


def hand_over(talk: socket.socket, bodies: list[bytes], deadline: float) -> None:
    """Sends messages to an interpreter, which may not want them.

    Raises:
        Closed: it is gone.
        TimeoutError: it did not take all of them before ``deadline``.
    """
    view = memoryview(b"".join(frames.LENGTH.pack(len(body)) + body for body in bodies))
    writable = select.poll()
    writable.register(talk, select.POLLOUT)
    while view:
        if not writable.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        try:
            # Never blocking: an interpreter that reads nothing would otherwise hold its supervisor beyond the
            # deadline.
            view = view[talk.send(view, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            continue
        except OSError as error:
            raise frames.Closed from error


def has_taken(talk: socket.socket) -> bool:
    """Whether a new interpreter has answered ``TAKE``, as the first that it says; False where it ended before."""
    try:
        return frames.receive(talk, len(TAKEN), time.monotonic()) == TAKEN
    except (frames.Closed, TimeoutError):
        return False


def read_answer(talk: socket.socket) -> dict[str, Any]:
    """What the interpreter says of its cell, checked field by field.

    Raises:
        Closed: it is gone, or said what no interpreter of ours says.
        TimeoutError: it did not say all of it in time.
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
    """Class, message and line of an exception.

    Raises:
        TypeError: they are something else.
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
"""The answer to a cell that was not begun."""


def unwritten(reason: str) -> dict[str, Any]:
    """The outcome of a cell whose files could not be written for what its program had made before."""
    error = {"type": "OSError", "message": reason, "line": 0}
    return {"status": "error", "error": error, "stderr": f"{reason}; the cell was not run\n"}


def outcome(verdict: str, answer: dict[str, Any] | None) -> dict[str, Any]:
    """Status, value and error of a cell."""
    if answer is None:
        return {"status": verdict, "value": None, "error": None, "digest": ""}
    kept = {name: answer[name] for name in ("value", "error", "digest")}
    if verdict != "ready":
        return {"status": verdict, **kept}
    if not answer["ok"]:
        memory = (answer["error"] or {}).get("type") == "MemoryError"
        return {"status": "oom" if memory else "error", **kept}
    return {"status": "ok", **kept}
