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
"""How often memory is looked at, and when first: most programs have ended by then."""
LOOK_S = 1.0
"""Processor time of one look: a program of so many regions that it takes longer uses too much."""
PAGE = os.sysconf("SC_PAGE_SIZE")


def _sender_bound() -> int:
    """Bytes that one sender may have in a socket's queue on this machine (``net.core.wmem_default``)."""
    with socket.socket(socket.AF_UNIX) as fresh:  # a jail does not see the setting itself
        return fresh.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


BUFFERS = {"socket": 2 * _sender_bound(), "pipe": 1 << 16}
"""Bytes that one can hold: twice the kernel's bound of a sender, which no program may change."""
SOCKETS = re.compile(rb"^sockets: used (\d+)")
"""How ``/proc/PID/net/sockstat`` says how many sockets a network has."""
REGION = 512
"""Bytes that the kernel needs for one mapped region: 440 were measured."""
SHARED = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ...s ([0-9a-f]+) (\S+) (\d+) +(?:/dev/zero|/memfd:|/SYSV|\[)", re.MULTILINE
)
"""A line of ``/proc/PID/maps`` for shared memory that is no file of the box: from, to, offset, device and inode."""
MIB = 1 << 20


def read_small(path: str) -> bytes:
    """The beginning of a file of ``/proc``, which is all of one that describes a process in a line."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # the way of ``open`` is five times as long
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


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


def witness(pid: int) -> int:
    """The thread of a process that the kernel shows its memory and its descriptors by; ``pid`` where nothing is left.

    The first thread may end before the others. The process goes on then, with everything that it holds, and its own folder
    in ``/proc`` says that it holds nothing.
    """
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return pid
    return next((thread for thread in threads if sizes(thread)[0]), pid)


def stat_of(pid: int) -> tuple[int, int, str]:
    """Parent, number of threads and state of a process; parent 0 where it is gone."""
    try:
        fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
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
        return int(read_small(f"/proc/{pid}/statm").split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


class Holding(NamedTuple):
    """Bytes of one process's memory, without shared memory."""

    by_share: int
    """What others have too counts by its share."""
    in_full: int
    """The same sum, but memory that the process has inherited counts in full, even where others have it too."""
    alone: int
    """What nobody else has."""


def share(pid: int) -> int:
    """Bytes of memory for which a process answers: what is shared counts by its share."""
    try:
        return _rollup(pid)[b"Pss:"]
    except (OSError, ValueError, LookupError):
        return resident(pid)


def _rollup(pid: int) -> dict[bytes, int]:
    with open(f"/proc/{pid}/smaps_rollup", "rb") as stream:
        return {line.split()[0]: int(line.split()[1]) << 10 for line in stream if line.endswith(b" kB\n")}


def holding(pid: int) -> Holding:
    """What a process holds beside shared memory; nothing where it is gone."""
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
    """Bytes that the processes of one program hold together.

    Shares alone would not do: of memory that a snapshot or a sibling of a fork has too, they are a part, and the fork could
    hold that much more. So there are two lower bounds, of which the greater counts: the shares of all, and what one of them
    holds in full with what each of the others has alone.
    """
    others = sum(one.alone for one in held)
    in_full = max((one.in_full - one.alone for one in held), default=0) + others
    return max(in_full, sum(one.by_share for one in held))


def sizes(pid: int) -> tuple[int, int]:
    """Bytes of address space and resident bytes of a process."""
    try:
        size, here, *_ = read_small(f"/proc/{pid}/statm").split()
    except (OSError, ValueError):
        return 0, 0
    return int(size) * PAGE, int(here) * PAGE


def outside_of_pages(pids: Iterable[int]) -> int:
    """Bytes that mappings of ``pids`` take beside the pages that a process has resident.

    Shared memory counts as far as any of them maps it, resident or not: a page that every process has let go of with
    ``MADV_DONTNEED`` is in none of them, and in the machine's memory. Every region counts with what the kernel needs to
    describe it, even one that holds no page. Of a process that hides its mappings all of its address space counts.
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
    """Sockets in the network of this process, with those of no descriptor: not accepted, or sent and not received."""
    try:
        found = SOCKETS.search(read_small("/proc/self/net/sockstat"))
    except OSError:
        return 0
    return int(found[1]) if found else 0


def buffers(pids: Iterable[int], most: int, *, own_network: bool = False) -> int:
    """Bytes that the sockets and pipes of ``pids`` can hold at most, each once however many have it.

    A process that hides its descriptors counts as if all of its ``most`` were sockets. With ``own_network`` every socket of
    this process's network belongs to them, whoever has a descriptor of it.
    """
    found: set[str] = set()
    hidden = 0
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:  # it hides them; or it has just ended, and then it has no memory any more
            hidden += most if sizes(pid)[0] else 0
            continue
        except OSError:
            continue
        for name in names:
            with contextlib.suppress(OSError):
                found.add(_goal(f"/proc/{pid}/fd/{name}"))
    kinds = Counter(goal.partition(":")[0] for goal in found)
    kinds["socket"] = hidden + max(kinds["socket"], network_sockets() if own_network else 0)
    return sum(count * BUFFERS.get(kind, 0) for kind, count in kinds.items())


def _goal(descriptor: str) -> str:
    """What a descriptor leads to; a pipe that has a name is shown as one that has none."""
    goal = os.readlink(descriptor)
    if goal.startswith("/") and stat.S_ISFIFO((found := os.stat(descriptor)).st_mode):
        return f"pipe:{found.st_dev}:{found.st_ino}"
    return goal


def unseen(pid: int) -> int:
    """Bytes that mappings of a process can take at most beside the pages that it has resident; see ``outside_of_pages``.

    What it has mapped for itself alone and may write to is no shared memory. Whatever else it has mapped could be, also
    where it has given up what every process begins with; and each region has a page at least.
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
    """Bytes that ``pids`` use together; an upper bound as long as that is below ``enough``.

    Args:
        pids: The processes.
        enough: From here on it must be exact.
        files: Descriptors that each may have.
        own_network: Whether nobody else has sockets in the network of this process.
        each: Goes through processes and may raise where that lasts too long.
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
    """A look at the memory of a program lasted too long; its argument is how the run ends."""


def in_time(deadline: float) -> Callable[[list[int]], Iterator[int]]:
    """Goes through processes until ``deadline``, or until this process has computed for ``LOOK_S``."""
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
    """The streams of one process and the limits that it is held to."""

    def __init__(self, limits: dict[str, Any], streams: dict[int, Bounded]) -> None:
        """``streams`` maps descriptors (not blocking) to the records that they fill."""
        self.streams = streams
        self.peak = 0
        self._memory: int = limits["memory_mb"] * MIB
        self._files: int = limits["open_files"]
        self.baseline = 0
        self.own_network = False
        self.members: Callable[[], list[int]] = lambda: [pid for pid in processes() if pid != 1]
        self.listeners: dict[int, Callable[[int], None]] = {}

    def until(self, fd: int, deadline: float) -> str:
        """Waits until ``fd`` can be read: ``ready``, or the name of the limit that was reached before."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        for stream in (*self.streams, *self.listeners):
            poll.register(stream, select.POLLIN)
        # Looks at memory go on beside output and answers: a program that writes all the time is looked at as often as
        # any other.
        look = time.monotonic() + FIRST_LOOK_S
        while True:
            now = time.monotonic()
            if now >= deadline:
                return "timeout"
            if now >= look:
                if verdict := self._look(deadline):
                    return verdict
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
            # Last, so that what was written before the end has been read, and an output that offends is seen.
            if fd in events:
                return "ready"

    def _look(self, deadline: float) -> str:
        """The limit that memory has reached, or that looking at it has; or ''."""
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
        """Takes what is left in the streams."""
        for fd, record in self.streams.items():
            drain(fd, record)
