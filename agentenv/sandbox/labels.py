"""Whose jail is whose: every jail's name tells its owner to who can see the owner, and nothing to anybody else.

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
    """When a process started, in clock ticks since boot; None where there is none or it is a zombie."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def boot() -> str:
    """A name for the present boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def owner_of(pid: int) -> str | None:
    """The name of a process as an owner; None where it is gone.

    The time when it started tells it from a later one of the same number.
    """
    started = start_time(pid)
    if started is None:
        return None
    return hashlib.sha256(f"{boot()}:{pid}:{started}".encode()).hexdigest()[:24]


def label() -> str:
    """The name of a jail of this process."""
    return f"{PREFIX}:{owner_of(os.getpid())}"


def parse(name: str) -> str | None:
    """The owner in a jail's name, or None where it is no jail's."""
    found = NAME.fullmatch(name)
    return found[1] if found else None


def living() -> set[str]:
    """Every process of this machine, as an owner."""
    found = (owner_of(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {owner for owner in found if owner is not None}


def jails() -> dict[int, str]:
    """Every jail's outer process on this machine and its owner."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                first = (entry / "cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
                if owner := parse(first):
                    found[int(entry.name)] = owner
    return found


def reap_orphans() -> int:
    """Kills every jail whose owner is gone; returns how many. Start-up and the reaper call it."""
    found = jails()  # before the living: a jail that is started meanwhile is not in it
    alive = living() if found else set()
    orphans = [pid for pid, owner in found.items() if owner not in alive]
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(orphans)
