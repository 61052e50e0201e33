"""The process that the interpreters of a session are forked from.

It is forked before the session's supervisor reads its first order and is told nothing but limits. So an interpreter that is
started late finds nothing of the session's earlier cells, nor of those of its forks, in the memory that it inherits.
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
"""Descriptors of an interpreter that is being started, beside its streams."""


class SessionTemplate(NamedTuple):
    """The template and the link on which it is asked for interpreters."""

    link: socket.socket
    pid: int


def start(setup: dict[str, Any]) -> SessionTemplate:
    """Forks the template and waits until it has given up what it must.

    Raises:
        OSError: it could not.
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
    """The pid of a new interpreter with ``fds`` as its descriptors.

    Raises:
        Closed: the template is gone.
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
        # The kernel reaps interpreters: nobody learns how one ended.
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
    except BaseException:  # the supervisor finds the link closed
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
            confine.renounce(setup)  # to end with its parent is nothing that a fork inherits
        become(fds)
        link = socket.socket(fileno=LINK)
        listener = confine.forbid_calls(setup, session=True)
        if listener >= 0:
            frames.send(link, b"{}", (listener,))
            os.close(listener)
        # Only now: a process with a low limit of descriptors cannot send any while other programs of its user send many.
        confine.limit(limits, size, isolated=setup["isolated"], session=True)
    except BaseException as error:
        os.write(READY, f"a session cannot be confined: {error!r}".encode())
        os._exit(1)
    os.write(READY, BEGINS)
    os.close(READY)
    Interpreter(link, limits["folder"]).serve()
