"""One interpreter of a session, as the session's supervisor knows it."""

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
    """What its descriptors are: standard streams and link."""
    files: int
    """The node whose tree in the snapshot folder holds this one's files, where they are not in the box."""
    folder: str
    parent: int = -1
    frozen: bool = False
    changed: bool = True
    """Whether its files may differ from those in the snapshot folder."""
    began: bool = False
    """Whether it has begun to read a cell: before that, no program can be the cause of its end."""
    copied: int = 0
    """Bytes of its files in the snapshot folder."""
    held: int = -1
    """Bytes of memory that it was last seen to hold; -1 where nobody has looked since it or its kin changed."""

    def close(self) -> None:
        """Kills the process and forgets its streams; the kernel reaps it."""
        if self.pid:
            send_signal(self.pid, signal.SIGKILL)
        self.link.close()
        os.close(self.out)
        os.close(self.err)


def send_signal(pid: int, number: int) -> None:
    """Sends a signal to a process of the program, which may end at any moment."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class Streams(NamedTuple):
    """The standard streams of a new interpreter: what is read here, and its own ends."""

    out: int
    err: int
    theirs: tuple[int, int, int]


def new_streams() -> Streams:
    """New pipes. The input is one that has ended: unlike a device, no other process has the same."""
    (out, out_end), (err, err_end), (null, null_end) = pipe(), pipe(), os.pipe()
    os.close(null_end)
    return Streams(out, err, (null, out_end, err_end))
