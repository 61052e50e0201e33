"""Files and folders that one process at a time works in. A claim leaves nothing behind: it ends with the process."""

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
    """The file or folder ``path``, which exists, is this process's alone within the block.

    The claim ends with the process, however it ends. On a file system without locks, as some clusters have, and on Windows,
    which opens no folder, it keeps nobody out.

    Args:
        path: What is claimed; it may be renamed or removed meanwhile.
        taken: What the error says where somebody else has it.

    Raises:
        ConfigurationError: another process, or another block of this one, has claimed it.
        OSError: it cannot be opened.
    """
    if sys.platform == "win32":
        with _held(path):
            yield
        return
    import fcntl

    # A folder can only be read, and NFS locks no file that is opened for reading alone (man 2 flock).
    place = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(taken) from error
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
        # The process that had it before may have removed it, and another may have made a new one.
        if not _is_at(place, path):
            raise ConfigurationError(taken)
        with _held(path):
            yield
    finally:
        os.close(place)


_claimed: dict[Path, os.stat_result] = {}
"""The folders that this process has claimed, whatever lies under their names by now."""


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Within the block the folder ``path`` is looked for by ``require_place``."""
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
        if before is not None:  # a claim of this process too, on a folder that was removed
            _claimed[name] = before


def require_place(path: Path) -> None:
    """Refuses to go on under the name of a claimed folder that somebody has removed, where another's may be by now.

    Args:
        path: What is about to be written: such a folder, or anything below one.

    Raises:
        FileNotFoundError: a folder that this process has claimed is not there any more.
    """
    whole = path.absolute()
    for name, found in [*_claimed.items()]:
        if whole.is_relative_to(name) and not _stands(name, found):
            said = "the folder was removed or replaced while it was worked in, and the work ends"
            raise FileNotFoundError(errno.ENOENT, said, str(name))


def _is_at(place: int, path: Path) -> bool:
    return _stands(path, os.fstat(place))


def _stands(path: Path, found: os.stat_result) -> bool:
    """Whether what was ``found`` lies under the name ``path`` still."""
    try:
        return os.path.samestat(found, path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


__all__ = ["claim", "require_place"]
