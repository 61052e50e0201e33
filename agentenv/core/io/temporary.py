"""Temporary folders that no process leaves behind for ever: what one that was killed has left, the next one removes.

Each is claimed for as long as it is used, so a claim that can be had says that its process is dead, whoever that was, in
whichever container. Locks need not be seen by other machines that share the place, so a folder has in its name which start
of which machine has made it, and folders of others stay.
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

_BOOT = Path(
    "/proc/sys/kernel/random/boot_id"
)  # man 4 random; one for all containers of a machine, or one for each
_ATTEMPTS = 100


@contextmanager
def temporary_folder(
    kind: str, parent: Path | None = None, discard: Callable[[Path], None] = remove
) -> Iterator[Path]:
    """Yields a new folder for this process alone; it goes with the block, or after the process was killed.

    Before, the folders of the same kind go that killed processes of this user have left there since the machine started.
    Nothing goes on a file system without locks, nor on a system that does not tell one start from another. The folder itself
    is claimed: whatever takes a claim of its own takes it on something within.

    Args:
        kind: A short word for what it holds, a part of its name.
        parent: Where it is made; None is the system's folder of temporary files.
        discard: Removes such a folder, where there may be in it what ``remove`` cannot deal with.

    Raises:
        OSError: it cannot be made.
    """
    place, owner = parent or Path(tempfile.gettempdir()), os.getpid()
    with ExitStack() as stack:
        folder = _made(f"agentenv-{kind}-{_this_start()}", place, stack)
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
        with suppress(
            ConfigurationError, FileNotFoundError
        ):  # another process swept it before it was claimed
            stack.enter_context(claim(folder, f"{folder} is in use"))
            return folder
    raise FileNotFoundError(f"every new folder in {place} is removed before it can be used")


def _sweep(mine: Path, kind: str, discard: Callable[[Path], None]) -> None:
    """Removes what dead processes have left beside the claimed folder ``mine``."""
    if not _this_start() or not _is_claimed(mine):
        return
    for left in mine.parent.glob(f"agentenv-{kind}-{_this_start()}*"):
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
def _this_start() -> str:
    """What is the same for every process since this machine was started and for no others; empty where none is known."""
    if sys.platform == "win32":  # where nobody claims a folder
        return ""
    try:
        return f"{_BOOT.read_text(encoding='ascii').strip()[:8]}-"
    except OSError:
        return ""


__all__ = ["temporary_folder"]
