"""One interpreter of a session, as its supervisor represents it."""

import os
import signal
import socket
from dataclasses import dataclass
from typing import NamedTuple

from agentenv.sandbox.jail.once import pipe


@dataclass
class Node:
    """An interpreter in the tree of forks."""

    link: socket.socket
    pid: int
    out: int
    err: int
    own: frozenset[str]
    """The identities of its own descriptors: standard streams and link."""
    files: int
    """The node whose tree in the snapshot folder contains this node's files, if they are not in the box."""
    folder: str
    parent: int = -1
    frozen: bool = False
    changed: bool = True
    """Whether its files may differ from those in the snapshot folder."""
    began: bool = False
    """Whether it has started to read a cell. Before that, no program can be the cause of its end."""
    copied: int = 0
    """Size of its files in the snapshot folder in bytes."""
    held: int = -1
    """Memory in bytes at the last measurement; -1 if not measured since it or a related node changed."""

    def close(self) -> None:
        """Kills the process and closes its streams. The kernel reaps it."""
        if self.pid:
            send_signal(self.pid, signal.SIGKILL)
        self.link.close()
        os.close(self.out)
        os.close(self.err)


def send_signal(pid: int, number: int) -> None:
    """Sends a signal to a process of the program, which may end at any time."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class Streams(NamedTuple):
    """The standard streams of a new interpreter: the ends read here, and its own ends."""

    out: int
    err: int
    theirs: tuple[int, int, int]


def new_streams() -> Streams:
    """Creates the pipes. The input is a pipe at its end: unlike a device, no other process shares it."""
    (out, out_end), (err, err_end), (null, null_end) = pipe(), pipe(), os.pipe()
    os.close(null_end)
    return Streams(out, err, (null, out_end, err_end))
