"""How a session's supervisor has an interpreter forked by the session's template, and takes hold of it."""

import contextlib
import os
import signal
import socket
from typing import Any

from agentenv.sandbox.jail import answers, confine, frames, session_template, sharing
from agentenv.sandbox.jail.node import Node, Streams, new_streams, send_signal
from agentenv.sandbox.jail.once import await_confined
from agentenv.sandbox.jail.session_template import SessionTemplate


class TemplateGone(RuntimeError):
    """The process that interpreters are forked from has ended."""


def start(
    template: SessionTemplate, limits: dict[str, Any], name: int, work: str, *, isolated: bool
) -> tuple[Node, int]:
    """A new interpreter that has been confined, and the descriptor on which its signals wait for a word, or -1.

    Raises:
        TemplateGone: there is nothing to fork it from.
        RuntimeError: it could not be forked or confined.
    """
    streams, (link, other) = new_streams(), answers.link()
    own = frozenset(map(sharing.descriptor, (*streams.theirs, other.fileno())))
    try:
        pid = _forked(template, limits | {"folder": work}, streams, other)
        listener = -1
        if isolated:
            with contextlib.suppress(FileNotFoundError):  # what has ended is found when it is used
                confine.end_first(pid)
            listener = frames.receive_with_fds(link)[1][0]
    except BaseException:
        link.close()
        for fd in (streams.out, streams.err):
            os.close(fd)
        raise
    return Node(link, pid, streams.out, streams.err, own, name, work), listener


def _forked(template: SessionTemplate, limits: dict[str, Any], streams: Streams, other: socket.socket) -> int:
    """The pid of an interpreter that has been confined; the ends that are its own are closed here."""
    waiting, ready = os.pipe()
    send_signal(template.pid, signal.SIGCONT)
    try:
        pid = session_template.request(template, limits, [*streams.theirs, other.fileno(), ready])
    except BaseException as error:
        os.close(waiting)
        if isinstance(error, frames.Closed):
            raise TemplateGone("the session's template is gone") from error
        raise
    finally:
        for fd in (*streams.theirs, ready):
            os.close(fd)
        other.close()
    await_confined(waiting)
    return pid
