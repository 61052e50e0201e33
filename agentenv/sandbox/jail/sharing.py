"""Detects parts of a process that a fork would share or lose: they prevent a rewind, or would connect two forks."""

import os
import re
import signal
import stat
from collections.abc import Collection, Sequence

from agentenv.sandbox.jail.watch import read_small, stat_of

MAPPING = re.compile(rb"^\S+ ...(.) \S+ (\S+) \S+ *(.*)$", re.MULTILINE)
"""Matches a line of ``/proc/PID/maps``: whether the mapping is shared, its device, and the name of the mapped file."""
DEVICES = {os.makedev(1, minor) for minor in (3, 5, 7, 8, 9)}
"""The devices null, zero, full, random and urandom, which have no state."""
DELETED = " (deleted)"
WAITING = re.compile(rb"^S(?:ig|hd)Pnd:\t([0-9a-f]+)$", re.MULTILINE)
"""Matches the pending signals of one thread, and of the whole process, in ``/proc/PID/status``."""
OURS = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGCONT, signal.SIGSTOP))
"""Signals that the supervisor itself sends."""


def descriptor(fd: int) -> str:
    """Returns the kernel's name for what descriptor ``fd`` of this process refers to; equal for all descriptors of it."""
    return os.readlink(f"/proc/self/fd/{fd}")


def shared_descriptor(pid: int, own: Collection[str], box: str) -> str:
    """Describes the first descriptor of ``pid`` that is neither a device nor one of ``own`` (each counted once); or ''."""
    left = set(own)
    folder = f"/proc/{pid}/fd"
    try:
        names = sorted(os.listdir(folder), key=int)
    except OSError as error:  # the process hides them, or has ended
        return f"the program's open files cannot be seen: {error.strerror}"
    for fd in names:
        try:
            goal, found = os.readlink(f"{folder}/{fd}"), os.stat(f"{folder}/{fd}")
        except OSError:
            continue
        if goal in left:
            # Each only once, because a second descriptor of the same stream was made by the program.
            left.remove(goal)
        elif not (stat.S_ISCHR(found.st_mode) and found.st_rdev in DEVICES):
            copied = f"a copy of its {goal}" if goal in own else _describe_target(goal, box)
            return f"the program holds {copied} open"
    return ""


def _describe_target(goal: str, box: str) -> str:
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
    """Describes what a fork of a stopped process would lose; or ''.

    Timers set by ``setitimer`` and ``alarm`` are not visible from outside; the interpreter itself reports them.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as stream:
            waiting = [int(value, 16) for value in WAITING.findall(stream.read())]
        if any(signals & ~OURS for signals in waiting):
            return "a signal waits for the program"
        return "the program has a timer" if read_small(f"/proc/{pid}/timers") else ""
    except OSError:
        return ""  # the process has ended, which is noticed next, or this kernel shows no timers


class Mappings:
    """Checks the memory mappings of processes. A list is only checked if it differs from the last one that was sound.

    A fork has the mappings of its parent, so lists are usually equal.
    """

    def __init__(self, first: int, kept: Sequence[str]) -> None:
        """``first`` is the process from which all interpreters are forked; files below ``kept`` never change."""
        self._safe = tuple(f"{folder}/".encode() for folder in kept)
        self._sound = b""
        # With stacked file systems, the kernel does not always report the path, so devices are compared as well.
        self._devices = {
            device for _, device, name in MAPPING.findall(_maps_of(first)) if name.startswith(b"/")
        }

    def shared(self, pid: int) -> str:
        """Describes the first memory of ``pid`` that a fork would share; or ''.

        Even a private mapping of a file shows later writes to the file. Files on the devices from which the first process
        itself was mapped cannot be written to.
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
    """Describes what is wrong with a fork; or ''.

    It must be a child of ``parent``, lead its own session, have one thread, and be in the root folder. Two forks in the same
    removed folder could communicate by its mode and times.
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
