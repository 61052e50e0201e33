"""Forks interpreters for a session's supervisor from the session's template."""

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
    """The process from which interpreters are forked has ended."""


def start(
    template: SessionTemplate, limits: dict[str, Any], name: int, work: str, *, isolated: bool
) -> tuple[Node, int]:
    """Starts a confined interpreter; returns it with the descriptor on which its signal calls wait, or -1.

    Raises:
        TemplateGone: the template has ended.
        RuntimeError: the interpreter could not be forked or confined.
    """
    streams, (link, other) = new_streams(), answers.link()
    own = frozenset(map(sharing.descriptor, (*streams.theirs, other.fileno())))
    try:
        pid = _fork_interpreter(template, limits | {"folder": work}, streams, other)
        listener = -1
        if isolated:
            # an interpreter that has ended is noticed when it is used
            with contextlib.suppress(FileNotFoundError):
                confine.end_first(pid)
            listener = frames.receive_with_fds(link)[1][0]
    except BaseException:
        link.close()
        for fd in (streams.out, streams.err):
            os.close(fd)
        raise
    return Node(link, pid, streams.out, streams.err, own, name, work), listener


def _fork_interpreter(
    template: SessionTemplate, limits: dict[str, Any], streams: Streams, other: socket.socket
) -> int:
    """Forks and confines an interpreter; returns its pid, and closes this process's copies of its descriptors."""
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
