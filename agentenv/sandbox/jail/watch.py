"""Waiting for a process under limits: time, memory, number of processes, size of output."""

import contextlib
import os
import re
import select
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from agentenv.sandbox.jail.output import Bounded, drain

TICK_S, FIRST_LOOK_S = 0.02, 0.01
"""How often memory is measured, and when first: most programs have ended by then."""
LOOK_S = 1.0
"""Largest processor time of one measurement. A program with so many mappings that it takes longer uses too much."""
PAGE = os.sysconf("SC_PAGE_SIZE")


def _sender_bound() -> int:
    """Returns the bytes that one sender may have in a socket's queue on this machine (``net.core.wmem_default``)."""
    with socket.socket(socket.AF_UNIX) as fresh:  # the setting itself is not visible in a jail
        return fresh.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


BUFFERS = {"socket": 2 * _sender_bound(), "pipe": 1 << 16}
"""Largest size of the content of one in bytes: twice the kernel's limit of a sender, which no program may change."""
SOCKETS = re.compile(rb"^sockets: used (\d+)")
"""Matches the number of sockets of a network in ``/proc/PID/net/sockstat``."""
REGION = 512
"""Bytes that the kernel needs for one mapping; 440 were measured."""
SHARED = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ...s ([0-9a-f]+) (\S+) (\d+) +(?:/dev/zero|/memfd:|/SYSV|\[)", re.MULTILINE
)
"""Matches shared memory that is not a file of the box in ``/proc/PID/maps``: start, end, offset, device and inode."""
MIB = 1 << 20


def read_small(path: str) -> bytes:
    """Reads the beginning of a file of ``/proc``, which suffices for files that describe a process on one line."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # ``open`` would take five times as long
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def processes() -> list[int]:
    """Returns all processes of this PID namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def all_but(others: set[int]) -> Callable[[], list[int]]:
    """Returns a function that lists all processes except the init and ``others``, which are stopped or dying."""
    others = set(others)

    def found() -> list[int]:
        here = processes()
        others.intersection_update(here)  # the id of an ended process may be reused
        return [pid for pid in here if pid != 1 and pid not in others]

    return found


def witness(pid: int) -> int:
    """Returns a thread of a process through which its memory and descriptors are visible; ``pid`` if none is left.

    The first thread may end before the others. The process then continues with everything it holds, but its own folder in
    ``/proc`` shows nothing.
    """
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return pid
    return next((thread for thread in threads if sizes(thread)[0]), pid)


def stat_of(pid: int) -> tuple[int, int, str]:
    """Returns parent, number of threads and state of a process; the parent is 0 if it has ended."""
    try:
        fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return 0, 0, "Z"
    return int(fields[1]), int(fields[17]), fields[0].decode()


def group_of(pid: int) -> int:
    """Returns the process group of a process; 0 if it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def resident(pid: int) -> int:
    """Returns the resident memory in bytes, including shared pages."""
    try:
        return int(read_small(f"/proc/{pid}/statm").split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


class Holding(NamedTuple):
    """The memory of one process in bytes, without shared mappings."""

    by_share: int
    """Pages that other processes have too count by share."""
    in_full: int
    """The same sum, but inherited pages count in full even if other processes have them too."""
    alone: int
    """Pages that no other process has."""


def share(pid: int) -> int:
    """Returns the memory in bytes that is attributed to a process; shared pages count by share."""
    try:
        return _rollup(pid)[b"Pss:"]
    except (OSError, ValueError, LookupError):
        return resident(pid)


def _rollup(pid: int) -> dict[bytes, int]:
    with open(f"/proc/{pid}/smaps_rollup", "rb") as stream:
        return {line.split()[0]: int(line.split()[1]) << 10 for line in stream if line.endswith(b" kB\n")}


def holding(pid: int) -> Holding:
    """Returns what a process holds besides shared mappings; zeros if it has ended."""
    try:
        found = _rollup(pid)
        by_share = found[b"Pss:"] - found[b"Pss_Shmem:"]
        private = found[b"Private_Clean:"] + found[b"Private_Dirty:"]
        return Holding(
            by_share,
            by_share - found[b"Pss_Anon:"] + found[b"Anonymous:"],
            max(0, private - found[b"Pss_Shmem:"]),
        )
    except (OSError, ValueError, LookupError):
        return Holding(*[resident(pid)] * 3)


def held_together(held: list[Holding]) -> int:
    """Returns the memory in bytes that the processes of one program hold together.

    Shares alone would not suffice: pages that a snapshot or a sibling also has count only in part, so a fork could hold that
    much more. So the larger of two lower bounds is used: the sum of the shares, and what one process holds in full plus what
    each of the others holds alone.
    """
    others = sum(one.alone for one in held)
    in_full = max((one.in_full - one.alone for one in held), default=0) + others
    return max(in_full, sum(one.by_share for one in held))


def sizes(pid: int) -> tuple[int, int]:
    """Returns the address space and the resident memory of a process in bytes."""
    try:
        size, here, *_ = read_small(f"/proc/{pid}/statm").split()
    except (OSError, ValueError):
        return 0, 0
    return int(size) * PAGE, int(here) * PAGE


def outside_of_pages(pids: Iterable[int]) -> int:
    """Returns the bytes that mappings of ``pids`` use besides resident pages.

    Shared memory counts if any of them maps it, resident or not: a page that every process has released with
    ``MADV_DONTNEED`` is resident in none, but still in memory. Every mapping counts with the kernel's own cost, even without
    a page. If a process hides its mappings, its whole address space counts.
    """
    ends: dict[tuple[bytes, bytes], int] = {}
    regions = hidden = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as stream:
                text = stream.read()
        except PermissionError:
            hidden += sizes(pid)[0]
            continue
        except OSError:
            continue
        regions += text.count(b"\n")
        found = SHARED.findall(text)
        for low, high, offset, device, inode in found:
            end = int(offset, 16) + int(high, 16) - int(low, 16)
            ends[device, inode] = max(end, ends.get((device, inode), 0))
    return sum(ends.values()) + regions * REGION + hidden


def network_sockets() -> int:
    """Returns the number of sockets in this process's network, including those without a descriptor (not yet accepted)."""
    try:
        found = SOCKETS.search(read_small("/proc/self/net/sockstat"))
    except OSError:
        return 0
    return int(found[1]) if found else 0


def buffers(pids: Iterable[int], most: int, *, own_network: bool = False) -> int:
    """Returns the largest number of bytes in the sockets and pipes of ``pids``, each counted once.

    A process that hides its descriptors counts as if all of its ``most`` were sockets. With ``own_network``, every socket of
    this process's network belongs to them, regardless of descriptors.
    """
    found: set[str] = set()
    hidden = 0
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:  # it hides them, or has just ended and has no memory any more
            hidden += most if sizes(pid)[0] else 0
            continue
        except OSError:
            continue
        for name in names:
            with contextlib.suppress(OSError):
                found.add(_link_target(f"/proc/{pid}/fd/{name}"))
    kinds = Counter(goal.partition(":")[0] for goal in found)
    kinds["socket"] = hidden + max(kinds["socket"], network_sockets() if own_network else 0)
    return sum(count * BUFFERS.get(kind, 0) for kind, count in kinds.items())


def _link_target(descriptor: str) -> str:
    """Returns what a descriptor refers to; a named pipe is shown like one without a name."""
    goal = os.readlink(descriptor)
    if goal.startswith("/") and stat.S_ISFIFO((found := os.stat(descriptor)).st_mode):
        return f"pipe:{found.st_dev}:{found.st_ino}"
    return goal


def unseen(pid: int) -> int:
    """Returns an upper bound of the bytes of a process's mappings besides resident pages; see ``outside_of_pages``.

    Its private writable mappings are no shared memory. All others could be, even if it has unmapped what every process
    starts with; and each mapping has at least one page.
    """
    try:
        size, *_, private, _ = map(int, read_small(f"/proc/{pid}/statm").split())
    except (OSError, ValueError):
        return 0
    return (size - private) * PAGE + size * REGION


def used_by(
    pids: list[int],
    enough: int,
    files: int,
    *,
    own_network: bool = False,
    each: Callable[[list[int]], Iterable[int]] = iter,
) -> int:
    """Returns the bytes that ``pids`` use together; if the result is below ``enough``, it may be an upper bound.

    Args:
        pids: The processes.
        enough: From this number on the result is exact.
        files: The number of descriptors that each process may have.
        own_network: Whether only these processes have sockets in the network of this process.
        each: Iterates over processes, and may raise an error if that takes too long.
    """
    found = [sizes(pid) for pid in pids]
    if any(not taken for taken, _ in found):
        pids = [pid if taken else witness(pid) for pid, (taken, _) in zip(pids, found, strict=True)]
        found = [sizes(pid) for pid in pids]
    queued = buffers(each(pids), files, own_network=own_network)
    rough = sum(here for _, here in found) + queued
    if rough + sum(map(unseen, pids)) < enough:
        return rough
    outside = outside_of_pages(each(pids))
    if rough + outside < enough:
        return rough + outside
    return queued + outside + held_together([holding(pid) for pid in each(pids)])


class LookEnded(Exception):
    """A measurement of a program's memory took too long; its argument is how the run ends."""


def in_time(deadline: float) -> Callable[[list[int]], Iterator[int]]:
    """Iterates over processes until ``deadline``, or until this process has used ``LOOK_S`` of processor time."""
    end = time.thread_time() + LOOK_S

    def each(pids: list[int]) -> Iterator[int]:
        for pid in pids:
            if time.monotonic() >= deadline:
                raise LookEnded("timeout")
            if time.thread_time() >= end:
                raise LookEnded("oom")
            yield pid

    return each


class Watch:
    """The streams of one process, and its limits."""

    def __init__(self, limits: dict[str, Any], streams: dict[int, Bounded]) -> None:
        """``streams`` maps non-blocking descriptors to their records."""
        self.streams = streams
        self.peak = 0
        self._memory: int = limits["memory_mb"] * MIB
        self._files: int = limits["open_files"]
        self.baseline = 0
        self.own_network = False
        self.members: Callable[[], list[int]] = lambda: [pid for pid in processes() if pid != 1]
        self.listeners: dict[int, Callable[[int], None]] = {}

    def until(self, fd: int, deadline: float) -> str:
        """Waits until ``fd`` is readable; returns ``ready``, or the name of the limit that was reached before."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        for stream in (*self.streams, *self.listeners):
            poll.register(stream, select.POLLIN)
        # Memory is also measured while output and answers arrive, so that a program that writes all the time is measured as
        # often as any other.
        look = time.monotonic() + FIRST_LOOK_S
        while True:
            now = time.monotonic()
            if now >= deadline:
                return "timeout"
            if now >= look:
                if verdict := self._exceeded_limit(deadline):
                    return verdict
                look = now + TICK_S
            events = dict(poll.poll(max(1.0, (min(look, deadline) - now) * 1000)))
            for listener in [listener for listener in self.listeners if listener in events]:
                if events[listener] & select.POLLIN:
                    self.listeners[listener](listener)
                else:  # no process is left under this filter
                    poll.unregister(listener)
                    del self.listeners[listener]
                    os.close(listener)
            for stream in [stream for stream in self.streams if stream in events]:
                if not drain(stream, self.streams[stream]):
                    poll.unregister(stream)
            if any(record.offends for record in self.streams.values()):
                return "output_limit"
            # Checked last, so that all output before the end is read, and excessive output is noticed.
            if fd in events:
                return "ready"

    def _exceeded_limit(self, deadline: float) -> str:
        """Returns the limit that memory, or measuring it, has reached; or ''."""
        pids = self.members()
        budget = self._memory + self.baseline
        each = in_time(deadline)
        try:
            used = used_by(pids, budget, self._files, own_network=self.own_network, each=each)
        except LookEnded as ended:
            return str(ended)
        self.peak = max(self.peak, used)
        return "oom" if used > budget else ""

    def drain_rest(self) -> None:
        """Reads the remaining data of the streams."""
        for fd, record in self.streams.items():
            drain(fd, record)
