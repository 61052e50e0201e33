"""The router: the jail's first process, which owns the host's channel and carries messages to supervisors and back.

A frame on a new channel opens a supervisor and is its first order; an empty frame closes it. An empty frame to the host
means that a supervisor has ended. All orders of runs and sessions pass through this process's memory, so it never forks.
"""

import functools
import os
import select
import signal
import socket
import time
from typing import NamedTuple, NoReturn

from agentenv.sandbox.jail import frames
from agentenv.sandbox.jail.template import MADE, RUN, SESSION

SEND_S = 5.0
END_S = 2.0
FORK_S = 20.0
SPARES = 2
PAUSE_MS = 10
"""After this idle time, the last of ``SPARES`` supervisors is made in advance, but not while a run needs the processors."""


class Supervisor(NamedTuple):
    """A forked supervisor: the link to it, and the handle by which it is killed."""

    link: socket.socket
    handle: int


class Router:
    """Carries messages between the host and the supervisors that the template forks."""

    def __init__(self, source: int, sink: int, template: socket.socket, *, isolated: bool) -> None:
        """Takes ownership of the host's channel and the socket to the fork template."""
        self._source, self._sink, self._template, self._isolated = source, sink, template, isolated
        template.settimeout(FORK_S)
        self._channels: dict[int, Supervisor] = {}
        self._by_fd: dict[int, int] = {}
        """The channel for each descriptor of a supervisor's link."""
        self._dying: dict[int, int] = {}
        """The channel for each handle of a supervisor that was killed and still has processes."""
        self._spares: list[Supervisor] = []
        self._asked = False
        """Whether the template is making a spare supervisor at this moment."""
        self._failed = ""
        """Why the last spare supervisor could not be made."""
        self._poll = select.poll()
        for fd in (source, template.fileno()):
            self._poll.register(fd, select.POLLIN)

    def serve(self) -> NoReturn:
        """Serves until the host has ended; all other processes of the jail then end with this first one.

        Raises:
            Closed: the host or the template has ended.
        """
        while True:
            events = self._poll.poll(self._timeout())
            if not events:
                self._ask(RUN)
                self._asked = True
            for fd, _ in events:
                if fd == self._source:
                    self._from_host(*frames.read_frame(functools.partial(os.read, fd)))
                elif fd == self._template.fileno():
                    self._from_template()
                elif fd in self._by_fd:
                    self._from_supervisor(self._by_fd[fd])
                elif fd in self._dying:
                    self._report_end(fd)

    def _timeout(self) -> int | None:
        """Returns the milliseconds to wait before a spare supervisor is made; None waits for ever."""
        if self._asked or len(self._spares) == SPARES:
            return None
        return PAUSE_MS if self._spares or self._failed else 0

    def _from_host(self, channel: int, body: bytes) -> None:
        if not body:
            self._end(channel)
            return
        # This order was sent before its owner knew of the end; no new supervisor may start under this number.
        if channel in self._dying.values():
            return  # it will be told that its supervisor has ended
        if channel not in self._channels and not self._open(channel):
            self._tell(channel, frames.encode({"unstarted": self._failed}))
            self._end(channel)
            return
        try:
            frames.send(self._channels[channel].link, body)
        except frames.Closed:
            self._end(channel)

    def _from_supervisor(self, channel: int) -> None:
        try:
            deadline = time.monotonic() + SEND_S
            self._tell(channel, frames.receive(self._channels[channel].link, deadline=deadline))
        except (frames.Closed, TimeoutError):
            self._end(channel)

    def _open(self, channel: int) -> bool:
        """Assigns a supervisor to ``channel``; False if none can be made."""
        if self._asked:
            self._take_spare()
        session = channel & frames.SESSION
        if session or not self._spares:
            self._ask(SESSION if session else RUN)
            supervisor = self._receive()
        else:
            supervisor = self._spares.pop(0)
        if supervisor is None:
            return False
        self._channels[channel] = supervisor
        # By descriptor, because poll returns descriptors.
        self._by_fd[supervisor.link.fileno()] = channel
        self._poll.register(supervisor.link, select.POLLIN)
        return True

    def _ask(self, kind: bytes) -> None:
        try:
            self._template.sendall(kind)
        except OSError as error:
            raise frames.Closed from error

    def _from_template(self) -> None:
        if self._asked:
            self._take_spare()
        elif select.select([self._template], [], [], 0)[0]:
            raise frames.Closed  # the template has ended; otherwise an order in this round already took its supervisor

    def _take_spare(self) -> None:
        self._asked = False
        supervisor = self._receive()
        if supervisor is not None:
            self._spares.append(supervisor)

    def _receive(self) -> Supervisor | None:
        """Receives the supervisor that the template was asked for; None if it could not fork."""
        try:
            said, fds, _, _ = socket.recv_fds(self._template, 1, 2)
        except OSError as error:
            raise frames.Closed from error
        if not said:
            raise frames.Closed
        if said != MADE:
            self._failed = frames.receive(self._template, deadline=time.monotonic() + SEND_S).decode()
            return None
        self._failed = ""
        link = socket.socket(fileno=fds[0])
        link.settimeout(SEND_S)
        return Supervisor(link, fds[1])

    def _end(self, channel: int) -> None:
        """Kills a supervisor with its whole namespace; the host is told once all processes have ended."""
        if channel not in self._channels:
            self._tell(channel, b"")
            return
        supervisor = self._channels.pop(channel)
        del self._by_fd[supervisor.link.fileno()]
        # Unregistered before it is closed, because its number may be reused for the next descriptor.
        self._poll.unregister(supervisor.link)
        supervisor.link.close()
        if not self._isolated:
            # There is no namespace that ends with it, so it ends its processes itself.
            select.select([supervisor.handle], [], [], END_S)
        try:
            signal.pidfd_send_signal(supervisor.handle, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._dying[supervisor.handle] = channel
        self._poll.register(supervisor.handle, select.POLLIN)

    def _report_end(self, handle: int) -> None:
        """Tells the host that a supervisor has ended; until then, its processes count towards those of the container."""
        self._poll.unregister(handle)
        os.close(handle)
        self._tell(self._dying.pop(handle), b"")

    def _tell(self, channel: int, body: bytes) -> None:
        frames.write_all(self._sink, frames.frame(channel, body))
