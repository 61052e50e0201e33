"""Waiting for a process under limits: time, memory, number of processes, size of output."""

import os
import select
import time
from collections.abc import Callable
from typing import Any

from agentenv.sandbox.jail.output import Bounded, drain

TICK_S = 0.02
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


def processes() -> list[int]:
    """Every process of this PID namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat_of(pid: int) -> tuple[int, int, str]:
    """Parent, number of threads and state of a process; parent 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0, "Z"
    return int(fields[1]), int(fields[17]), fields[0].decode()


def group_of(pid: int) -> int:
    """The process group of a process; 0 where it is gone."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def resident(pid: int) -> int:
    """Resident bytes, those shared with others included."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as stream:
            return int(stream.read().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def share(pid: int) -> int:
    """Bytes of memory for which a process answers: what is shared counts by its share."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as stream:
            return next(int(line.split()[1]) << 10 for line in stream if line.startswith(b"Pss:"))
    except (OSError, ValueError, StopIteration):
        return resident(pid)


def used_by(pids: list[int], enough: int) -> int:
    """Bytes that ``pids`` use together; an upper bound as long as that is below ``enough``."""
    rough = sum(map(resident, pids))
    return rough if rough < enough else sum(map(share, pids))


class Watch:
    """The streams of one process and the limits that it is held to."""

    def __init__(self, limits: dict[str, Any], streams: dict[int, Bounded]) -> None:
        """``streams`` maps descriptors (not blocking) to the records that they fill."""
        self.streams = streams
        self.peak = 0
        self._memory: int = limits["memory_mb"] * MIB
        self.baseline = 0
        self.members: Callable[[], list[int]] = lambda: [pid for pid in processes() if pid != 1]
        self.listeners: dict[int, Callable[[int], None]] = {}

    def until(self, fd: int, deadline: float) -> str:
        """Waits until ``fd`` can be read: ``ready``, or the name of the limit that was reached before."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        for stream in (*self.streams, *self.listeners):
            poll.register(stream, select.POLLIN)
        look = time.monotonic() + TICK_S / 4
        while True:
            now = time.monotonic()
            if now >= deadline:
                return "timeout"
            if now >= look:
                if self._too_much():
                    return "oom"
                look = now + TICK_S
            events = dict(poll.poll(max(1.0, (min(look, deadline) - now) * 1000)))
            for listener in [listener for listener in self.listeners if listener in events]:
                if events[listener] & select.POLLIN:
                    self.listeners[listener](listener)
                else:  # nobody lives under this filter any more
                    poll.unregister(listener)
                    del self.listeners[listener]
                    os.close(listener)
            for stream in [stream for stream in self.streams if stream in events]:
                if not drain(stream, self.streams[stream]):
                    poll.unregister(stream)
            if any(record.offends for record in self.streams.values()):
                return "output_limit"
            if fd in events:
                return "ready"

    def _too_much(self) -> bool:
        pids = self.members()
        budget = self._memory + self.baseline
        used = used_by(pids, budget)
        self.peak = max(self.peak, used)
        return used > budget

    def drain_rest(self) -> None:
        """Takes what is left in the streams."""
        for fd, record in self.streams.items():
            drain(fd, record)
