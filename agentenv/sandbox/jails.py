"""One jail as its owner sees it: a process behind a wall, and channels through the wall."""

import contextlib
import itertools
import json
import os
import queue
import socket
import struct
import subprocess
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import IO, Any, Protocol

from agentenv.errors import SandboxFault
from agentenv.sandbox.jail import frames

START_S = 30.0
SEND_S = 10


class Spawner(threading.Thread):
    """Starts every jail from one thread that lives as long as the process.

    The kernel kills a jail when the *thread* that started it ends (``--die-with-parent``), so no short-lived one may.
    """

    def __init__(self) -> None:
        super().__init__(name="agentenv-spawner", daemon=True)
        self._orders: queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], list[str], dict[str, Any]]] = (
            queue.SimpleQueue()
        )

    def run(self) -> None:
        """Starts what is ordered until the process ends."""
        while True:
            future, command, options = self._orders.get()
            try:
                future.set_result(subprocess.Popen(command, **options))
            except BaseException as error:
                future.set_exception(error)

    def start_process(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """``Popen`` in the spawner's thread."""
        future: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((future, command, options))
        return future.result(START_S)


_spawner: tuple[int, Spawner] | None = None
_spawner_lock = threading.Lock()


def spawn(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a process that dies with this one."""
    global _spawner
    # Two threads that start their first jails at once would otherwise have a spawner each.
    with _spawner_lock:
        if _spawner is None or _spawner[0] != os.getpid():  # a forked child has no threads
            _spawner = (os.getpid(), Spawner())
            _spawner[1].start()
    return _spawner[1].start_process(command, **options)


class JailDied(Exception):
    """The jail, or the one supervisor that was asked, is gone; the message says what is known."""


class Channel:
    """One supervisor: orders and answers, strictly in turn."""

    def __init__(self, jail: "Jail", number: int, processes: int) -> None:
        self.jail, self._number = jail, number
        self.processes = processes
        """Processes that it may have at a time, its supervisor included."""
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._serials = itertools.count(1)
        self._closed = False

    def deliver(self, body: bytes) -> None:
        """Called by the jail's reader; an empty body says that the supervisor is gone."""
        self._answers.put(body)

    def ask(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Sends an order and waits for its answer.

        Both bear the same number: a supervisor that began later refuses the order, and an answer that came too late is none.

        Raises:
            JailDied: the supervisor or its jail is gone, did not answer in time, or answered another order.
        """
        with self._lock:
            if self._closed:
                raise JailDied("the channel is closed")
            serial = next(self._serials)
            # Under the lock until the answer is here, because a channel has no other way to tell the answers of two
            # orders apart.
            self.jail.send(self._number, frames.encode({**order, "serial": serial}))
            try:
                body = self._answers.get(timeout=timeout_s)
            except queue.Empty:
                self.close()
                raise JailDied(f"the jail gave no answer within {timeout_s:.0f} s") from None
            if not body:
                self.close()
                raise JailDied(f"the supervisor is gone {self.jail.last_error}".rstrip())
            answer: dict[str, Any] = json.loads(body)
            if "unstarted" in answer:
                self.close()
                raise JailDied(answer["unstarted"])
            if answer.pop("serial") != serial:
                self.close()
                raise JailDied("the supervisor answered another order")
        return answer

    def close(self) -> None:
        """Ends the supervisor and all that it watches; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.jail.end(self._number)


class JailHost(Protocol):
    """What holds a jail: a process of this machine or a container; when it ends, all of the jail does."""

    def kill(self) -> None:
        """Ends it at once; where nothing is left of it, does nothing."""

    def wait(self) -> object:
        """Waits until nothing is left of it."""


class ZygoteStream(Protocol):
    """The stream to a zygote."""

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end of the stream."""

    def write(self, data: bytes) -> None:
        """Writes all of ``data``; ``OSError`` where nobody takes it within ``SEND_S``."""

    def close(self) -> None:
        """Gives its descriptor back."""


class SocketLink:
    """A link over a plain socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        never_stall(sock)

    def read(self, size: int) -> bytes:
        """See ``ZygoteStream``."""
        return self._socket.recv(size)

    def write(self, data: bytes) -> None:
        """See ``ZygoteStream``."""
        self._socket.sendall(data)

    def close(self) -> None:
        """See ``ZygoteStream``."""
        self._socket.close()


def never_stall(sock: socket.socket) -> None:
    """A zygote that takes nothing must not stop its owner: writing fails after ``SEND_S``; reading may wait for ever."""
    sock.settimeout(None)
    # A timeout of Python's own would make the reader wait no longer than that either.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_S, 0))


class Jail:
    """A zygote behind its wall."""

    def __init__(self, outside: JailHost, link: ZygoteStream, errors: IO[bytes], message: bytes) -> None:
        """Takes over what was started.

        Args:
            outside: Holds all of the jail.
            link: The stream to the zygote.
            errors: What the jail writes to stderr while it starts.
            message: The first bytes to send.
        """
        self._outside, self._link, self._errors = outside, link, errors
        self._channels: dict[int, Channel] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._ready: Future[None] = Future()
        self.closed = False
        self.last_error = ""
        self._reader = threading.Thread(target=self._read, args=(message,), name="agentenv-jail", daemon=True)
        self._reader.start()

    def _read(self, message: bytes) -> None:
        """Carries what the zygote says to the channels, until it is gone."""
        try:
            self._link.write(message)
            frames.read_frame(self._link.read)
            self._ready.set_result(None)
            while True:
                number, body = frames.read_frame(self._link.read)
                if channel := self._channels.get(number):
                    channel.deliver(body)
                if not body:
                    self._channels.pop(number, None)
        except (frames.Closed, OSError):
            pass
        finally:
            self._bury()

    def _bury(self) -> None:
        """Ends and reaps what holds the jail, tells every channel, and gives all descriptors back."""
        self._outside.kill()
        self._outside.wait()
        with self._lock:
            self.closed = True
            # Closed and emptied in one step: a channel that was opened in between would never be told.
            left = list(self._channels.values())
            self._channels.clear()
        # Read only now that the jail has ended, and all that it wrote is there.
        self._errors.seek(0)
        self.last_error = self._errors.read(2000).decode("utf-8", "replace").strip()
        if not self._ready.done():
            said = self.last_error or "it says nothing"
            self._ready.set_exception(SandboxFault(f"a jail does not start: {said}"))
        for channel in left:
            channel.deliver(b"")
        self._link.close()
        self._errors.close()

    def await_ready(self) -> None:
        """Waits until the zygote takes orders.

        Raises:
            SandboxFault: it does not start, or not in time.
        """
        try:
            self._ready.result(START_S)
        except FutureTimeout:
            self.close()
            raise SandboxFault(f"a jail did not start within {START_S:.0f} s") from None

    def channel(self, processes: int = 1, *, session: bool = False) -> Channel:
        """A new supervisor, which begins with the first order: that of a run, or of a session.

        Args:
            processes: Processes that it may have at a time, itself included.
            session: Whether its orders are those of a session.

        Raises:
            JailDied: the jail is gone.
        """
        with self._lock:
            if self.closed:
                raise JailDied("the jail is gone")
            # Numbers are never used again, so that a late answer finds no channel rather than the wrong one.
            number = next(self._numbers) | (frames.SESSION if session else 0)
            self._channels[number] = Channel(self, number, processes)
            return self._channels[number]

    def send(self, number: int, body: bytes) -> None:
        """Writes one frame.

        Raises:
            JailDied: nobody takes it.
        """
        with self._lock:
            if self.closed:
                raise JailDied("the jail is gone")
            try:
                self._link.write(frames.frame(number, body))
            except OSError as error:
                self._outside.kill()
                raise JailDied("the jail takes no orders") from error

    def end(self, number: int) -> None:
        """Ends one supervisor."""
        with contextlib.suppress(JailDied):
            self.send(number, b"")

    @property
    def load(self) -> int:
        """Supervisors that run in it."""
        return len(self._channels)

    @property
    def taken(self) -> int:
        """Processes that the supervisors in it may have together."""
        return sum(channel.processes for channel in tuple(self._channels.values()))

    def close(self) -> None:
        """Ends everything in it; a second call does nothing."""
        self._outside.kill()
        # The reader buries the jail itself, and a thread cannot wait for its own end.
        if threading.current_thread() is not self._reader:
            self._reader.join(START_S)
