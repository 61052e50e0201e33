"""Temporary folders. One that a killed process has left is removed when the next folder of its kind is made.

A process claims its folder as long as it uses it. A folder that can be claimed therefore belongs to a process that has
ended, also where that ran in another container. Another machine that shares the place may not see the lock, so the name of
a folder holds the boot id of the machine that made it, and folders with another boot id are never removed.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from agentenv.core.io.claims import claim
from agentenv.core.io.files import remove
from agentenv.errors import ConfigurationError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Changes with every start of the machine (man 4 random). Some container systems give each container one of its own."""
_ATTEMPTS = 100


@contextmanager
def temporary_folder(
    kind: str, parent: Path | None = None, discard: Callable[[Path], None] = remove
) -> Iterator[Path]:
    """Yields a new folder for this process alone, which is removed at the end of the block.

    First, the folders of the same kind are removed that killed processes of this user have left in the same place since the
    machine started. None is removed on a file system without locks, or on a system without a boot id. The folder itself is
    claimed, so code that needs a claim of its own has to claim something within it.

    Args:
        kind: A short word for what it holds, a part of its name.
        parent: Where it is made; None is the system's folder of temporary files.
        discard: Removes a folder, where it may hold something that ``remove`` cannot remove.

    Raises:
        OSError: it cannot be made.
    """
    place, owner = parent or Path(tempfile.gettempdir()), os.getpid()
    with ExitStack() as stack:
        folder = _made(f"agentenv-{kind}-{_boot_prefix()}", place, stack)
        _sweep(folder, kind, discard)
        try:
            yield folder
        finally:
            if os.getpid() == owner:  # a fork of the process leaves it alone
                with suppress(OSError):
                    discard(folder)


def _made(prefix: str, place: Path, stack: ExitStack) -> Path:
    """A new folder, claimed until ``stack`` closes."""
    for _ in range(_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        # Another process may remove it before it is claimed.
        with suppress(ConfigurationError, FileNotFoundError):
            stack.enter_context(claim(folder, f"{folder} is in use"))
            return folder
    raise FileNotFoundError(f"every new folder in {place} is removed before it can be used")


def _sweep(mine: Path, kind: str, discard: Callable[[Path], None]) -> None:
    """Removes the folders of the same kind beside the claimed folder ``mine`` whose processes have ended."""
    if not _boot_prefix() or not _is_claimed(mine):
        return
    for left in mine.parent.glob(f"agentenv-{kind}-{_boot_prefix()}*"):
        with suppress(OSError, ConfigurationError):  # it is in use, or has gone meanwhile
            if not left.is_symlink() and left.stat().st_uid == os.geteuid():
                with claim(left, f"{left} is in use"):
                    discard(left)


def _is_claimed(folder: Path) -> bool:
    """Whether a claim on ``folder`` keeps others out, which not every file system does."""
    try:
        with claim(folder, f"{folder} is in use"):
            return False
    except ConfigurationError:
        return True


@cache
def _boot_prefix() -> str:
    """The first eight characters of the boot id and a hyphen; empty where the system has none or locks no folders."""
    if sys.platform == "win32":
        return ""
    try:
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()[:8]}-"
    except OSError:
        return ""


__all__ = ["temporary_folder"]
