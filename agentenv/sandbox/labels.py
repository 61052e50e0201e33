"""Whose jail is whose: every jail carries its owner in its name, so that a stranger can tell an orphan."""

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

PREFIX = "agentenv-jail"


class Label(NamedTuple):
    """The process that owns a jail; its start time tells it from a later one of the same number."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return start_time(self.pid) == self.started


def start_time(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None where there is none or it is a zombie."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def label() -> str:
    """The name of a jail of this process."""
    return f"{PREFIX}:{os.getpid()}:{start_time(os.getpid())}"


def parse(name: str) -> Label | None:
    """The owner in a jail's name, or None where it is no jail's."""
    words = name.split(":")
    if len(words) != 3 or words[0] != PREFIX or not words[1].isdigit():
        return None
    return Label(int(words[1]), words[2])


def jails() -> dict[int, Label]:
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
    orphans = [pid for pid, owner in jails().items() if not owner.alive]
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(orphans)
