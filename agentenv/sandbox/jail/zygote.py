"""The fork server: warm, inside a jail that is already built; one warden for every run and session.

The host talks to it in frames on the descriptors 0 and 1, which the jail's programs never see. A frame on a new channel
opens a warden and is its first order; an empty one closes it. An empty frame to the host says that a warden is gone.
"""

import functools
import gc
import importlib.util
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NamedTuple, NoReturn

from agentenv.sandbox.jail import confine, frames, kernel
from agentenv.sandbox.jail.warden import immune, serve

SEND_S = 5.0
END_S = 2.0
SPARES = 2
PAUSE_MS = 10
"""With so long nothing to do, the last of ``SPARES`` wardens is made ahead: not while a run needs the processors."""


class Warden(NamedTuple):
    """A forked warden and the link to it."""

    link: socket.socket
    pid: int


class Zygote:
    """Forks wardens and carries messages between them and the host."""

    def __init__(self, setup: dict[str, Any], source: int, sink: int) -> None:
        self._setup = setup
        self._source, self._sink = source, sink
        self._channels: dict[int, Warden] = {}
        self._by_fd: dict[int, int] = {}
        """Channel by the descriptor of a warden's link."""
        self._dying: dict[int, int] = {}
        """Pid of a killed warden by its handle."""
        self._spares: list[Warden] = []
        self._poll = select.poll()
        self._poll.register(source, select.POLLIN)

    def serve(self) -> NoReturn:
        """Until the host is gone; as the jail's first process it takes everything with it."""
        while True:
            events = self._poll.poll(self._patience())
            if not events:
                self._spares.append(self._fork())
            for fd, _ in events:
                if fd == self._source:
                    self._from_host(*frames.read_frame(functools.partial(os.read, fd)))
                elif fd in self._dying:
                    self._bury(fd)
                elif fd in self._by_fd:
                    self._from_warden(self._by_fd[fd])

    def _patience(self) -> int | None:
        """Milliseconds to wait for something to do before the next run's fork is made ahead; None is for ever."""
        if len(self._spares) == SPARES:
            return None
        return PAUSE_MS if self._spares else 0

    def _from_host(self, channel: int, body: bytes) -> None:
        if not body:
            self._end(channel)
            return
        if channel not in self._channels:
            self._open(channel)
        try:
            frames.send(self._channels[channel].link, body)
        except frames.Closed:
            self._end(channel)

    def _from_warden(self, channel: int) -> None:
        try:
            deadline = time.monotonic() + SEND_S
            self._tell(channel, frames.receive(self._channels[channel].link, deadline=deadline))
        except (frames.Closed, TimeoutError):
            self._end(channel)

    def _open(self, channel: int) -> None:
        warden = self._spares.pop(0) if self._spares else self._fork()
        self._channels[channel] = warden
        self._by_fd[warden.link.fileno()] = channel
        self._poll.register(warden.link, select.POLLIN)

    def _fork(self) -> Warden:
        """A warden in a PID namespace of its own, waiting for its first order."""
        ours, theirs = socket.socketpair()
        ours.settimeout(SEND_S)
        isolated = self._setup["isolated"]
        corner = confine.corner(self._setup)
        pid = kernel.fork_into(kernel.CLONE_NEWPID) if isolated else os.fork()
        if pid == 0:
            # Nothing of the host's channel, nor of other wardens, stays open in here.
            keep = theirs.detach()
            os.closerange(3, keep)
            os.closerange(keep + 1, 1 << 20)
            serve(socket.socket(fileno=keep), self._setup | corner)
        theirs.close()
        return Warden(ours, pid)

    def _end(self, channel: int) -> None:
        """Kills a warden, and with it its whole namespace, and tells the host; the reaping need not be waited for."""
        if channel in self._channels:
            warden = self._channels.pop(channel)
            del self._by_fd[warden.link.fileno()]
            self._poll.unregister(warden.link)
            warden.link.close()
            handle = os.pidfd_open(warden.pid)
            if not self._setup["isolated"]:
                select.select(
                    [handle], [], [], END_S
                )  # no namespace dies with it: it ends its processes itself
            os.kill(warden.pid, signal.SIGKILL)
            self._dying[handle] = warden.pid
            self._poll.register(handle, select.POLLIN)
        self._tell(channel, b"")

    def _tell(self, channel: int, body: bytes) -> None:
        frames.write_all(self._sink, frames.frame(channel, body))

    def _bury(self, handle: int) -> None:
        os.waitpid(self._dying.pop(handle), 0)
        self._poll.unregister(handle)
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
        kernel.drop_bounding_set()
    sys.path.extend(folder for folder in setup["path"] if os.path.isdir(folder))
    for name in setup["imports"]:
        if name != "numpy" or importlib.util.find_spec(name):  # asked for by default, and not everywhere
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    frames.write_all(sink, frames.frame(0, frames.encode({"ready": os.getpid()})))
    try:
        Zygote(setup, source, sink).serve()
    except frames.Closed:
        os._exit(0)
