"""Makes temporary folders. Folders that killed processes left are removed when the next one of their kind is made.

A process claims its folder while it uses it. So a folder that can be claimed belongs to a process that has ended, even one
in another container. Another machine that shares the file system may not see the lock, so a folder's name contains the boot
id of the machine that made it, and folders with another boot id are never removed.
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
"""Changes at every start of the machine (man 4 random). Some container systems give each container its own."""
_ATTEMPTS = 100


@contextmanager
def temporary_folder(
    kind: str, parent: Path | None = None, discard: Callable[[Path], None] = remove
) -> Iterator[Path]:
    """Yields a new folder for this process alone, which is removed at the end of the block.

    Before that, folders of the same kind in the same place are removed if killed processes of this user left them since the
    machine started. None are removed on file systems without locks, or on systems without a boot id. The new folder itself
    is claimed, so code that needs its own claim has to claim something inside it.

    Args:
        kind: A short word for the content, which becomes part of the folder's name.
        parent: Where the folder is made; None uses the system's folder for temporary files.
        discard: A function that removes a folder, if ``remove`` cannot remove its content.

    Raises:
        OSError: the folder cannot be created.
    """
    place, owner = parent or Path(tempfile.gettempdir()), os.getpid()
    with ExitStack() as stack:
        folder = _made(f"agentenv-{kind}-{_boot_prefix()}", place, stack)
        _sweep(folder, kind, discard)
        try:
            yield folder
        finally:
            if os.getpid() == owner:  # a forked process must not remove it
                with suppress(OSError):
                    discard(folder)


def _made(prefix: str, place: Path, stack: ExitStack) -> Path:
    """Creates a new folder, which stays claimed until ``stack`` closes."""
    for _ in range(_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        # Another process may remove the folder before it is claimed.
        with suppress(ConfigurationError, FileNotFoundError):
            stack.enter_context(claim(folder, f"{folder} is in use"))
            return folder
    raise FileNotFoundError(f"every new folder in {place} is removed before it can be used")


def _sweep(mine: Path, kind: str, discard: Callable[[Path], None]) -> None:
    """Removes the folders of the same kind beside the claimed folder ``mine`` if their processes have ended."""
    if not _boot_prefix() or not _is_claimed(mine):
        return
    for left in mine.parent.glob(f"agentenv-{kind}-{_boot_prefix()}*"):
        with suppress(OSError, ConfigurationError):  # it is in use or was removed meanwhile
            if not left.is_symlink() and left.stat().st_uid == os.geteuid():
                with claim(left, f"{left} is in use"):
                    discard(left)


def _is_claimed(folder: Path) -> bool:
    """Whether a claim on ``folder`` excludes others, which not every file system supports."""
    try:
        with claim(folder, f"{folder} is in use"):
            return False
    except ConfigurationError:
        return True


@cache
def _boot_prefix() -> str:
    """Returns the first eight characters of the boot id and a hyphen; empty without a boot id or folder locks."""
    if sys.platform == "win32":
        return ""
    try:
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()[:8]}-"
    except OSError:
        return ""


__all__ = ["temporary_folder"]
