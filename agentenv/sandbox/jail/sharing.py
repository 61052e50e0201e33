"""What of a process a fork would share with its parent or lose: it cannot be rewound, or two forks could talk by it."""

import os
import re
import signal
import stat
from collections.abc import Collection, Sequence

from agentenv.sandbox.jail.watch import read_small, stat_of

MAPPING = re.compile(rb"^\S+ ...(.) \S+ (\S+) \S+ *(.*)$", re.MULTILINE)
"""A line of ``/proc/PID/maps``: whether it is shared, the device, and the name of what is mapped."""
DEVICES = {os.makedev(1, minor) for minor in (3, 5, 7, 8, 9)}
"""null, zero, full, random, urandom: they have no state."""
DELETED = " (deleted)"
WAITING = re.compile(rb"^S(?:ig|hd)Pnd:\t([0-9a-f]+)$", re.MULTILINE)
"""The signals that wait for one thread, and for the whole process, in ``/proc/PID/status``."""
OURS = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGCONT, signal.SIGSTOP))
"""Signals that the supervisor sends itself."""


def descriptor(fd: int) -> str:
    """The name that the kernel gives to what ``fd`` of this process is: the same for every descriptor of it, anywhere."""
    return os.readlink(f"/proc/self/fd/{fd}")


def shared_descriptor(pid: int, own: Collection[str], box: str) -> str:
    """The first descriptor of ``pid`` that is no device and none of ``own``, each once, in words; or ''."""
    left = set(own)
    folder = f"/proc/{pid}/fd"
    try:
        names = sorted(os.listdir(folder), key=int)
    except OSError as error:  # it hides them, or has died
        return f"the program's open files cannot be seen: {error.strerror}"
    for fd in names:
        try:
            goal, found = os.readlink(f"{folder}/{fd}"), os.stat(f"{folder}/{fd}")
        except OSError:
            continue
        if goal in left:
            # Once each: a second descriptor of the same stream was made by the program.
            left.remove(goal)
        elif not (stat.S_ISCHR(found.st_mode) and found.st_rdev in DEVICES):
            copied = f"a copy of its {goal}" if goal in own else _named(goal, box)
            return f"the program holds {copied} open"
    return ""


def _named(goal: str, box: str) -> str:
    if goal.startswith("/memfd:"):
        return f"the memory file {goal.removeprefix('/memfd:').removesuffix(DELETED)!r}"
    if goal.startswith("/"):
        name = os.path.basename(goal.removesuffix(DELETED))
        if goal.endswith(DELETED):
            return f"the deleted file {name!r}"
        return repr(name) if goal.startswith(f"{box}/") else repr(goal)
    kind, _, rest = goal.partition(":")
    return f"a {kind}" if kind in ("pipe", "socket") else f"a descriptor of kind {rest.strip('[]') or goal}"


def lost_in_fork(pid: int) -> str:
    """What of a stopped process a fork of it would not have, in words; or ''.

    The timers that ``setitimer`` and ``alarm`` set are shown to nobody else; the interpreter itself says whether one is set.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as stream:
            waiting = [int(value, 16) for value in WAITING.findall(stream.read())]
        if any(signals & ~OURS for signals in waiting):
            return "a signal waits for the program"
        return "the program has a timer" if read_small(f"/proc/{pid}/timers") else ""
    except OSError:
        return ""  # it has ended, which is found next, or this kernel shows no timers


class Mappings:
    """Judges what processes map. A list of mappings is looked through unless it is the same as the last one that was sound.

    A fork maps what its parent maps, so its list is usually that.
    """

    def __init__(self, first: int, kept: Sequence[str]) -> None:
        """``first`` is the process that all interpreters are forked from; files below ``kept`` cannot change."""
        self._safe = tuple(f"{folder}/".encode() for folder in kept)
        self._sound = b""
        # Where file systems lie upon each other, the kernel does not always tell the path.
        self._devices = {
            device for _, device, name in MAPPING.findall(_maps_of(first)) if name.startswith(b"/")
        }

    def shared(self, pid: int) -> str:
        """The first memory of ``pid`` that a fork would not have for itself, in words; or ''.

        A mapping of a file that can change shows what is written to it later, even a private one. Those on the devices from
        which the first process itself was mapped cannot.
        """
        try:
            maps = _maps_of(pid)
        except OSError as error:
            return f"the program's memory cannot be seen: {error.strerror}"
        if maps == self._sound:
            return ""
        for shared, device, name in MAPPING.findall(maps):
            if name.startswith(b"/"):
                if device not in self._devices and not name.startswith(self._safe):
                    return f"the program maps {_mapped(name.decode('utf-8', 'replace'))}"
            elif shared == b"s":
                return "the program maps anonymous shared memory"
        self._sound = maps
        return ""


def _maps_of(pid: int) -> bytes:
    with open(f"/proc/{pid}/maps", "rb") as stream:
        return stream.read()


def _mapped(name: str) -> str:
    if name.startswith("/memfd:"):
        return f"the memory file {name.removeprefix('/memfd:').removesuffix(DELETED)!r}"
    if name.startswith("/dev/zero"):
        return "anonymous shared memory"
    return f"the file {os.path.basename(name.removesuffix(DELETED))!r}"


def fork_violation(pid: int, parent: int) -> str:
    """What is wrong with a fork; or ''.

    It must be a child of ``parent``, lead a session of its own, have one thread and stand in the root folder: two that stand
    in a folder that has no name any more could tell each other something by its mode and its times.
    """
    try:
        fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return "it ended at once"
    state, found, group, session = fields[0], *map(int, fields[1:4])
    if state in (b"Z", b"X"):
        return "it ended at once"
    if found != parent:
        return "it is another process's child"
    if (group, session) != (pid, pid):
        return "it is in the process group of another"
    if (threads := stat_of(pid)[1]) != 1:
        return f"it has {threads} threads"
    try:
        if (folder := os.readlink(f"/proc/{pid}/cwd")) != "/":
            return f"its working folder is {os.path.basename(folder)!r}"
    except OSError as error:
        return f"its working folder cannot be seen: {error.strerror}"
    return ""
