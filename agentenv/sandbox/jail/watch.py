"""Waiting for a process under limits: time, memory, number of processes, size of output."""

import contextlib
import os
import re
import select
import time
from collections.abc import Callable
from typing import Any

from agentenv.sandbox.jail.output import Bounded, drain

TICK_S = 0.02
PAGE = os.sysconf("SC_PAGE_SIZE")
BUFFERS = {"socket": 2 * 212992, "pipe": 1 << 16}
"""Bytes that one can hold: twice the kernel's default bound of a sender, which no program may raise further."""
SHARED = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ...s ([0-9a-f]+) (\S+) (\d+) +(?:/dev/zero|/memfd:|/SYSV|\[)", re.MULTILINE
)
"""A line of ``/proc/PID/maps`` for shared memory that is no file of the box: from, to, offset, device and inode."""
MIB = 1 << 20


def processes() -> list[int]:
    """Every process of this PID namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def all_but(others: set[int]) -> Callable[[], list[int]]:
    """What gives all processes but the init of the namespace and ``others``, which stand still or are dying."""
    others = set(others)

    def found() -> list[int]:
        here = processes()
        others.intersection_update(here)  # the number of one that is gone may be given again
        return [pid for pid in here if pid != 1 and pid not in others]

    return found


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


def share(pid: int, left_out: bytes = b"") -> int:
    """Bytes of memory for which a process answers: what is shared counts by its share.

    Args:
        pid: The process.
        left_out: A line of ``smaps_rollup`` that does not count.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as stream:
            sizes = {
                line.split()[0]: int(line.split()[1]) << 10 for line in stream if line.endswith(b" kB\n")
            }
        return sizes[b"Pss:"] - sizes.get(left_out, 0)
    except (OSError, ValueError, LookupError):
        return resident(pid)


def sizes(pid: int) -> tuple[int, int]:
    """Bytes of address space and resident bytes of a process."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as stream:
            size, here, *_ = stream.read().split()
    except (OSError, ValueError):
        return 0, 0
    return int(size) * PAGE, int(here) * PAGE


def shared_memory(pids: list[int]) -> int:
    """Bytes of all shared memory that any of ``pids`` maps, as far as it is mapped: whether or not a page is resident.

    A page that every process has let go of with ``MADV_DONTNEED`` is in none of them, and in the machine's memory.
    """
    ends: dict[tuple[bytes, bytes], int] = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as stream:
                found = SHARED.findall(stream.read())
        except OSError:
            continue
        for low, high, offset, device, inode in found:
            end = int(offset, 16) + int(high, 16) - int(low, 16)
            ends[device, inode] = max(end, ends.get((device, inode), 0))
    return sum(ends.values())


def buffers(pids: list[int]) -> int:
    """Bytes that the sockets and pipes of ``pids`` can hold at most, each once however many have it."""
    found: set[str] = set()
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return sum(BUFFERS.get(goal.partition(":")[0], 0) for goal in found)


def used_by(pids: list[int], enough: int, size: int = 1 << 62) -> int:
    """Bytes that ``pids`` use together; an upper bound as long as that is below ``enough``.

    Args:
        pids: The processes.
        enough: From here on it must be exact.
        size: Bytes of address space of a process that has mapped nothing of its own.
    """
    found = [sizes(pid) for pid in pids]
    queued = buffers(pids)
    rough = sum(here for _, here in found) + queued
    if rough + sum(max(0, taken - size) for taken, _ in found) < enough:
        return rough
    shared = shared_memory(pids)
    if rough + shared < enough:
        return rough + shared
    return queued + shared + sum(share(pid, left_out=b"Pss_Shmem:") for pid in pids)


class Watch:
    """The streams of one process and the limits that it is held to."""

    def __init__(self, limits: dict[str, Any], streams: dict[int, Bounded]) -> None:
        """``streams`` maps descriptors (not blocking) to the records that they fill."""
        self.streams = streams
        self.peak = 0
        self._memory: int = limits["memory_mb"] * MIB
        self.baseline = 0
        self._size = sizes(os.getpid())[0]
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
        used = used_by(pids, budget, self._size)
        self.peak = max(self.peak, used)
        return used > budget

    def drain_rest(self) -> None:
        """Takes what is left in the streams."""
        for fd, record in self.streams.items():
            drain(fd, record)
