"""What of a process a fork would share with its parent: it cannot be rewound, and two forks could talk through it."""

import os
import re
import stat
from collections.abc import Collection, Sequence

from agentenv.sandbox.jail.watch import stat_of

MAPPING = re.compile(rb"^\S+ ...(.) \S+ (\S+) \S+ *(.*)$", re.MULTILINE)
"""A line of ``/proc/PID/maps``: whether it is shared, the device, and the name of what is mapped."""
DEVICES = {os.makedev(1, minor) for minor in (3, 5, 7, 8, 9)}
"""null, zero, full, random, urandom: they have no state."""
DELETED = " (deleted)"


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


def mapped_devices(pid: int) -> frozenset[bytes]:
    """The devices of all files that ``pid`` maps."""
    return frozenset(device for _, device, name in _mappings(pid) if name.startswith(b"/"))


def shared_mapping(pid: int, first: Collection[bytes], kept: Sequence[str]) -> str:
    """The first memory of ``pid`` that a fork would not have for itself, in words; or ''.

    Files below ``kept`` cannot change, nor can those on the devices ``first``, from which the interpreter itself was mapped:
    where file systems lie upon each other, the kernel does not always tell the path. A mapping of any other file shows what
    is written to it later, even a private one.
    """
    safe = tuple(f"{folder}/".encode() for folder in kept)
    try:
        mappings = _mappings(pid)
    except OSError as error:
        return f"the program's memory cannot be seen: {error.strerror}"
    for shared, device, name in mappings:
        if name.startswith(b"/"):
            if device not in first and not name.startswith(safe):
                return f"the program maps {_mapped(name.decode('utf-8', 'replace'))}"
        elif shared == b"s":
            return "the program maps anonymous shared memory"
    return ""


def _mappings(pid: int) -> list[tuple[bytes, bytes, bytes]]:
    """Kind, device and name of everything that ``pid`` maps."""
    with open(f"/proc/{pid}/maps", "rb") as stream:
        return MAPPING.findall(stream.read())


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
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
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
