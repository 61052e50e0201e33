"""The fork server: warm, inside a jail that is already built; one warden for every run and session.

The host talks to it in frames on the descriptors 0 and 1, which the jail's programs never see. A frame on a new channel
opens a warden and is its first order; an empty one closes it. An empty frame to the host says that a warden is gone.
"""

import gc
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from agentenv.sandbox.jail import confine, frames, kernel
from agentenv.sandbox.jail.warden import immune, serve

SEND_S = 5.0


class Zygote:
    """Forks wardens and carries messages between them and the host."""

    def __init__(self, setup: dict[str, Any], source: int, sink: int) -> None:
        self._setup = setup
        self._source, self._sink = source, sink
        self._links: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(source, select.POLLIN)

    def serve(self) -> NoReturn:
        """Until the host is gone; as the jail's first process it takes everything with it."""
        by_fd: dict[int, int] = {}
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._source:
                    channel, body = frames.read_frame(fd)
                    self._from_host(channel, body)
                elif (channel := by_fd.get(fd, -1)) in self._links:
                    self._from_warden(channel)
            by_fd = {link.fileno(): channel for channel, link in self._links.items()}

    def _from_host(self, channel: int, body: bytes) -> None:
        if not body:
            self._end(channel)
            return
        if channel not in self._links:
            self._open(channel)
        try:
            frames.send(self._links[channel], body)
        except frames.Closed:
            self._end(channel)

    def _from_warden(self, channel: int) -> None:
        try:
            frames.write_frame(self._sink, channel, frames.receive(self._links[channel]))
        except frames.Closed:
            self._end(channel)

    def _open(self, channel: int) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(SEND_S)
        neighbours = sum(name.isdigit() for name in os.listdir("/proc")) if self._setup["isolated"] else None
        pid = kernel.fork_into(kernel.CLONE_NEWPID) if self._setup["isolated"] else os.fork()
        if pid == 0:
            # Nothing of the host's channel, nor of other wardens, stays open in here.
            keep = theirs.detach()
            os.closerange(3, keep)
            os.closerange(keep + 1, 1 << 20)
            serve(socket.socket(fileno=keep), self._setup | {"neighbours": neighbours})
        theirs.close()
        self._links[channel], self._pids[channel] = ours, pid
        self._poll.register(ours, select.POLLIN)

    def _end(self, channel: int) -> None:
        """Kills the warden, and with it its whole namespace, reaps it, and tells the host."""
        if channel in self._links:
            link, pid = self._links.pop(channel), self._pids.pop(channel)
            self._poll.unregister(link)
            link.close()
            if not self._setup["isolated"]:
                _let_end(pid)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        frames.write_frame(self._sink, channel, b"")


def _let_end(pid: int) -> None:
    """Without a namespace that dies with it, a warden must end its processes itself; it gets two seconds."""
    handle = os.pidfd_open(pid)
    select.select([handle], [], [], 2.0)
    os.close(handle)


def boot(setup: dict[str, Any]) -> NoReturn:
    """Takes over the process that the jail was started with."""
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    immune()
    if setup["isolated"]:
        os.makedirs("/new", exist_ok=True)
        confine.hide_host(setup["kept"])
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    sys.path.extend(setup["path"])
    for name in setup["imports"]:
        __import__(name)
    gc.collect()
    gc.freeze()
    frames.write_frame(sink, 0, frames.encode({"ready": os.getpid()}))
    try:
        Zygote(setup, source, sink).serve()
    except frames.Closed:
        os._exit(0)
