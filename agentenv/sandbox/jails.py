"""One jail from the perspective of its owner: a process behind a boundary, and channels through that."""

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

    The kernel kills a jail when the *thread* that started it ends (``--die-with-parent``), so no short-lived thread may.
    """

    def __init__(self) -> None:
        super().__init__(name="agentenv-spawner", daemon=True)
        self._orders: queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], list[str], dict[str, Any]]] = (
            queue.SimpleQueue()
        )

    def run(self) -> None:
        """Starts ordered processes until this process ends."""
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
    """Starts a process that ends with this one."""
    global _spawner
    # The lock is needed because two threads that start their first jails at once would otherwise make two spawners.
    with _spawner_lock:
        if _spawner is None or _spawner[0] != os.getpid():  # a forked process has no threads
            _spawner = (os.getpid(), Spawner())
            _spawner[1].start()
    return _spawner[1].start_process(command, **options)


class JailDied(Exception):
    """The jail, or the supervisor that was asked, has ended; the message says what is known."""


class Channel:
    """The channel to one supervisor: orders and answers strictly alternate."""

    def __init__(self, jail: "Jail", number: int, processes: int) -> None:
        self.jail, self._number = jail, number
        self.processes = processes
        """Largest number of its processes at a time, including the supervisor."""
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._serials = itertools.count(1)
        self._closed = False

    def deliver(self, body: bytes) -> None:
        """Called by the jail's reader. An empty body means that the supervisor has ended."""
        self._answers.put(body)

    def ask(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Sends an order and waits for its answer.

        Both have the same serial number: a new supervisor refuses an old order, and a late answer is dropped.

        Raises:
            JailDied: the supervisor or its jail has ended, did not answer in time, or answered another order.
        """
        with self._lock:
            if self._closed:
                raise JailDied("the channel is closed")
            serial = next(self._serials)
            # The lock is held until the answer arrives, because a channel cannot otherwise distinguish the answers of two
            # orders.
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
        """Ends the supervisor with all of its processes. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self.jail.end(self._number)


class JailHost(Protocol):
    """The process or container of a jail. When it ends, the whole jail ends."""

    def kill(self) -> None:
        """Ends it at once; does nothing if it has ended."""

    def wait(self) -> object:
        """Waits until it has ended completely."""


class ZygoteStream(Protocol):
    """The stream to a zygote."""

    def read(self, size: int) -> bytes:
        """Reads at most ``size`` bytes; returns none at the end of the stream."""

    def write(self, data: bytes) -> None:
        """Writes all of ``data``; raises ``OSError`` if nobody reads it within ``SEND_S``."""

    def close(self) -> None:
        """Closes its descriptor."""


class SocketLink:
    """A stream over a plain socket."""

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
    """Sets a write timeout of ``SEND_S``, because a zygote that does not read must not block its owner; reads may wait."""
    sock.settimeout(None)
    # Not by Python's own timeout, which would limit reads as well.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_S, 0))


class Jail:
    """A zygote in its isolated environment."""

    def __init__(self, outside: JailHost, link: ZygoteStream, errors: IO[bytes], message: bytes) -> None:
        """Takes ownership of a started jail.

        Args:
            outside: The process or container of the jail.
            link: The stream to the zygote.
            errors: The jail's stderr while it starts.
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
        """Passes messages from the zygote to the channels until it ends."""
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
            self._clean_up()

    def _clean_up(self) -> None:
        """Ends and reaps the process of the jail, notifies every channel, and closes all descriptors."""
        self._outside.kill()
        self._outside.wait()
        with self._lock:
            self.closed = True
            # Closed and emptied in one step, because a channel opened in between would never be notified.
            left = list(self._channels.values())
            self._channels.clear()
        # Read after the jail has ended, so that its output is complete.
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
        """Waits until the zygote accepts orders.

        Raises:
            SandboxFault: it does not start, or not in time.
        """
        try:
            self._ready.result(START_S)
        except FutureTimeout:
            self.close()
            raise SandboxFault(f"a jail did not start within {START_S:.0f} s") from None

    def channel(self, processes: int = 1, *, session: bool = False) -> Channel:
        """Opens a channel to a new supervisor, which starts with the first order: that of a run or of a session.

        Args:
            processes: Largest number of its processes at a time, including itself.
            session: Whether its orders are those of a session.

        Raises:
            JailDied: the jail has ended.
        """
        with self._lock:
            if self.closed:
                raise JailDied("the jail is gone")
            # Numbers are never reused, so that a late answer finds no channel instead of a wrong one.
            number = next(self._numbers) | (frames.SESSION if session else 0)
            self._channels[number] = Channel(self, number, processes)
            return self._channels[number]

    def send(self, number: int, body: bytes) -> None:
        """Writes one frame.

        Raises:
            JailDied: the jail does not read it.
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
        """Number of supervisors in the jail."""
        return len(self._channels)

    @property
    def taken(self) -> int:
        """Number of processes that its supervisors may have together."""
        return sum(channel.processes for channel in tuple(self._channels.values()))

    def close(self) -> None:
        """Ends everything in the jail. A second call does nothing."""
        self._outside.kill()
        # The reader ends the jail itself, and a thread cannot wait for its own end.
        if threading.current_thread() is not self._reader:
            self._reader.join(START_S)
