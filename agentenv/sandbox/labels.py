"""Names of jails, which identify the owner to those who can see its process, and reveal nothing to others.

A name is a digest of the boot and of the owner's process. Whether the owner lives is found by the digests of all processes.
"""

import contextlib
import hashlib
import os
import re
import signal
from pathlib import Path

PREFIX = "agentenv-jail"
NAME = re.compile(f"{PREFIX}:([0-9a-f]{{24}})")


def start_time(pid: int) -> str | None:
    """Returns when a process started, in clock ticks since boot; None if it does not exist or is a zombie."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def boot() -> str:
    """Returns a name for the present boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def owner_of(pid: int) -> str | None:
    """Returns the name of a process as an owner; None if it has ended.

    The start time distinguishes it from a later process with the same id.
    """
    started = start_time(pid)
    if started is None:
        return None
    return hashlib.sha256(f"{boot()}:{pid}:{started}".encode()).hexdigest()[:24]


def label() -> str:
    """Returns the name of a jail of this process."""
    return f"{PREFIX}:{owner_of(os.getpid())}"


def parse(name: str) -> str | None:
    """Returns the owner in a jail's name; None if it is no jail's name."""
    found = NAME.fullmatch(name)
    return found[1] if found else None


def living() -> set[str]:
    """Returns the owner names of all processes of this machine."""
    found = (owner_of(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {owner for owner in found if owner is not None}


def jails() -> dict[int, str]:
    """Returns the outer process of every jail on this machine, with its owner."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                first = (entry / "cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
                if owner := parse(first):
                    found[int(entry.name)] = owner
    return found


def reap_orphans() -> int:
    """Kills every jail whose owner has ended; returns their number. Called at start-up and by the reaper."""
    found = jails()  # listed before the live processes, so that jails started meanwhile are not included
    alive = living() if found else set()
    orphans = [pid for pid, owner in found.items() if owner not in alive]
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(orphans)
