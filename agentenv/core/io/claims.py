"""Exclusive locks ("claims") of files and folders. A claim ends with its process and leaves no lock file."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentenv.errors import ConfigurationError

_WITHOUT_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def claim(path: Path, taken: str) -> Iterator[None]:
    """Within the block, the existing file or folder ``path`` belongs to this process alone.

    The claim ends with the process, however that ends. It has no effect on file systems without locks (as on some clusters)
    and on Windows, where folders cannot be opened.

    Args:
        path: The file or folder to claim. It may be renamed or removed during the block.
        taken: The error message if another process has claimed it.

    Raises:
        ConfigurationError: another process, or another block in this one, has claimed it.
        OSError: it cannot be opened.
    """
    if sys.platform == "win32":
        with _recorded(path):
            yield
        return
    import fcntl

    # Folders can only be opened for reading; NFS locks only files that are open for writing (man 2 flock).
    place = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(taken) from error
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
        # The previous owner may have removed the file, and another process may have created a new one.
        if not _is_open_at(place, path):
            raise ConfigurationError(taken)
        with _recorded(path):
            yield
    finally:
        os.close(place)


_claimed: dict[Path, os.stat_result] = {}
"""The folders that this process has claimed, as they were then; another folder may have their name now."""


@contextmanager
def _recorded(path: Path) -> Iterator[None]:
    """Within the block, ``require_claimed_folder`` checks that the folder ``path`` still exists."""
    if not path.is_dir():
        yield
        return
    name = path.absolute()
    before = _claimed.get(name)
    _claimed[name] = name.stat()
    try:
        yield
    finally:
        del _claimed[name]
        if before is not None:  # an earlier claim of this process, on a folder that was removed
            _claimed[name] = before


def require_claimed_folder(path: Path) -> None:
    """Raises an error if a claimed folder was removed or replaced, so that nothing is written into another one's folder.

    Args:
        path: The file or folder to be written: a claimed folder, or anything below one.

    Raises:
        FileNotFoundError: a folder that this process has claimed no longer exists or was replaced.
    """
    whole = path.absolute()
    for name, found in [*_claimed.items()]:
        if whole.is_relative_to(name) and not _is_same_file(name, found):
            said = "the folder was removed or replaced while it was worked in, and the work ends"
            raise FileNotFoundError(errno.ENOENT, said, str(name))


def _is_open_at(place: int, path: Path) -> bool:
    return _is_same_file(path, os.fstat(place))


def _is_same_file(path: Path, found: os.stat_result) -> bool:
    """Whether ``path`` is still the file or folder that ``found`` describes."""
    try:
        return os.path.samestat(found, path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


__all__ = ["claim", "require_claimed_folder"]
