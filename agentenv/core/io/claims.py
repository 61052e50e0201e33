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
        # Whoever had it before may have removed it, and somebody may have made another.
        if not _is_at(place, path):
            raise ConfigurationError(taken)
        yield
    finally:
        os.close(place)


def _is_at(place: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(place), path.stat())
    except FileNotFoundError:
        return False


__all__ = ["claim"]
