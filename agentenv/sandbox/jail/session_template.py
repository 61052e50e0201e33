"""The process that the interpreters of a session are forked from.

It is forked before the session's supervisor reads its first order, and receives only limits. So an interpreter that is
started late inherits no memory of the session's earlier cells or of its forks.
"""

import json
import os
import signal
import socket
from typing import Any, NamedTuple, NoReturn

from agentenv.sandbox.jail import confine, frames
from agentenv.sandbox.jail.once import BEGINS, become
from agentenv.sandbox.jail.worker import Interpreter

LINK, READY = 3, 4
"""Descriptors of a starting interpreter, besides its standard streams."""


class SessionTemplate(NamedTuple):
    """The template, with the link for requesting interpreters."""

    link: socket.socket
    pid: int


def start(setup: dict[str, Any]) -> SessionTemplate:
    """Forks the template and waits until it is confined.

    Raises:
        OSError: it could not be forked or confined.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _serve(theirs, setup)
    theirs.close()
    try:
        frames.receive(ours)
    except frames.Closed as error:
        raise OSError("a session's template cannot be confined") from error
    return SessionTemplate(ours, pid)


def request(template: SessionTemplate, limits: dict[str, Any], fds: list[int]) -> int:
    """Forks a new interpreter with ``fds`` as its descriptors; returns its pid.

    Raises:
        Closed: the template has ended.
        RuntimeError: it could not fork.
    """
    frames.send(template.link, frames.encode(limits), tuple(fds))
    pid: int = json.loads(frames.receive(template.link))
    if pid < 0:
        raise RuntimeError("an interpreter could not be forked")
    return pid


def _serve(link: socket.socket, setup: dict[str, Any]) -> NoReturn:
    try:
        os.setsid()
        # The kernel reaps interpreters, so that no process learns how one ended.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        become([null, null, null, link.detach()])
        link = socket.socket(fileno=LINK)
        size = confine.address_space()
        confine.renounce(setup, session=True)
        frames.send(link, b"{}")
        while True:
            body, fds = frames.receive_with_fds(link, READY + 1)
            frames.send(link, frames.encode(_fork(json.loads(body), fds, setup, size)))
            for fd in fds:
                os.close(fd)
    except BaseException:  # the supervisor notices that the link is closed
        os._exit(1)


def _fork(limits: dict[str, Any], fds: list[int], setup: dict[str, Any], size: int) -> int:
    try:
        pid = os.fork()
    except OSError:
        return -1
    if pid == 0:
        _become_interpreter(limits, fds, setup, size)
    return pid


def _become_interpreter(limits: dict[str, Any], fds: list[int], setup: dict[str, Any], size: int) -> NoReturn:
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if not setup["isolated"]:
            confine.renounce(setup)  # includes the signal at the parent's death, which forks do not inherit
        become(fds)
        link = socket.socket(fileno=LINK)
        listener = confine.forbid_calls(setup, session=True)
        if listener >= 0:
            frames.send(link, b"{}", (listener,))
            os.close(listener)
        # Set last: with a low descriptor limit, no descriptors can be sent while other programs of the user have many in
        # transit.
        confine.limit(limits, size, isolated=setup["isolated"], session=True)
    except BaseException as error:
        os.write(READY, f"a session cannot be confined: {error!r}".encode())
        os._exit(1)
    os.write(READY, BEGINS)
    os.close(READY)
    Interpreter(link, limits["folder"]).serve()
