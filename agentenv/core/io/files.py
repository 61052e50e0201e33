"""Output that is complete or absent: whatever the package renames into place is written through this module.

A rename alone does not survive a power failure: the name can reach the disk before the bytes do, which leaves an empty file
under a good name. So every file is flushed to the disk before it is renamed, and its folder after.
"""

import contextlib
import errno
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentenv.core.io.claims import claim, require_place
from agentenv.errors import AgentEnvError, ConfigurationError

_PART = ".part"
_OLD = ".old"
_GONE = ".gone"
# Libraries written in Rust, such as safetensors, name an errno so.
_ERRNO = re.compile(r"\(os error (\d+)\)")
_LISTED = re.compile(r"\[Errno (\d+)\]")  # what went wrong with each file of a tree that shutil copied
_SQLITE = {8: errno.EROFS, 10: errno.EIO, 13: errno.ENOSPC, 14: errno.EACCES}
"""System errors by SQLite's result code: READONLY, IOERR, FULL, CANTOPEN (sqlite.org/rescode.html)."""


def sync(path: Path) -> None:
    """Waits until the file or folder ``path`` is on the disk. Windows opens no folder, and flushes what is written alone."""
    windows = sys.platform == "win32"
    if windows and path.is_dir():
        return
    place = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def sync_folder(folder: Path) -> None:
    """Waits until every file below ``folder`` is on the disk, and the folders too."""
    for inner in sorted(folder.rglob("*"), reverse=True):
        if not inner.is_symlink():
            sync(inner)
    sync(folder)


def put_in_place(part: Path, path: Path) -> None:
    """Renames the finished file ``part`` to ``path``, replacing what stands there, and waits until both are on the disk."""
    sync(part)
    part.replace(path)
    sync(path.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a sibling to write; it becomes ``path`` when the block ends well, and vanishes otherwise.

    Args:
        path: The file; its folder exists.

    Raises:
        OSError: it cannot be written, because the disk is full for example, or because it lies in a claimed folder that was
            removed; ``path`` is then what it was before.
    """
    require_place(path)
    part = path.with_name(path.name + _PART)
    with _named(path, part), contextlib.ExitStack() as stack:
        try:
            part = stack.enter_context(_written_alone(part))
            with os_errors():
                yield part
            put_in_place(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _named(path: Path, part: Path) -> Iterator[None]:
    """Within the block an error that names ``part``, or something in it, names ``path`` instead, which the user knows."""
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, str) and Path(error.filename).is_relative_to(part):
            error.filename = str(path / Path(error.filename).relative_to(part))
        raise


@contextlib.contextmanager
def _written_alone(part: Path) -> Iterator[Path]:
    """Yields ``part``, made or left by a dead process, or another sibling where somebody else writes it.

    Of two who write the same name at once the second would go on writing into what the first has renamed into place.
    """
    with contextlib.ExitStack() as stack:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT, 0o666))
        try:
            stack.enter_context(claim(part, f"{part} is being written"))
        except (ConfigurationError, FileNotFoundError):  # somebody writes it, or has just renamed it
            part = part.with_name(f"{part.stem}.{os.getpid()}-{threading.get_ident()}{_PART}")
        yield part


def write_text(path: Path, text: str) -> None:
    """Writes or replaces a file of UTF-8 text, whole or not at all."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """Writes or replaces a file, whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(content)


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Adds lines, each without its end of line, to a log, and waits until they are on the disk.

    What a full disk left of them is taken back, so that the next line does not grow onto half of one.

    Raises:
        OSError: they cannot be written.
    """
    require_place(path)
    new = not path.exists()
    with path.open("ab", buffering=0) as file:  # a buffer writes what is left in it when it is closed
        before = file.tell()
        try:
            rest = memoryview("".join(f"{line}\n" for line in lines).encode())
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, before)
            raise
    if new:
        sync(path.parent)


@contextlib.contextmanager
def new_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yields an empty sibling folder to fill; it becomes ``path`` when the block ends well, and vanishes otherwise.

    Args:
        path: The folder.
        replace: Whether whatever stands at ``path`` goes. It is moved aside before, because a folder cannot be renamed over
            another; ``recover_folder`` brings it back where the process was killed between the two renames.

    Raises:
        OSError: it cannot be written, or is there already; ``path`` is then what it was before.
        ConfigurationError: another process is filling it, or it is given as ``.`` or ``/``.
    """
    if not path.name:
        raise ConfigurationError(
            f"{str(path)!r} does not end in a name, so it cannot be replaced as a whole; give the folder by its name"
        )
    require_place(path)
    part = path.with_name(path.name + _PART)
    if not replace and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with _named(path, part), _filled(part, path, replace=replace):
        yield part


@contextlib.contextmanager
def _filled(part: Path, path: Path, *, replace: bool) -> Iterator[None]:
    """Makes ``part`` anew for this process alone, and puts it in place of ``path`` when the block ends well."""
    taken = f"another process is writing {path}: wait for it, or choose another name"
    if part.is_dir():
        with claim(part, taken):  # the process that left it is dead
            remove(part)
    else:
        remove(part)
    if replace:
        recover_folder(path)
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.mkdir()
    except FileExistsError as error:  # somebody else has begun meanwhile
        raise ConfigurationError(taken) from error
    with claim(part, taken):
        try:
            with os_errors():
                yield
            sync_folder(part)
        except BaseException:
            with contextlib.suppress(OSError):
                remove(part)
            raise
        if path.exists():
            path.rename(path.with_name(path.name + _OLD))
        part.rename(path)
        sync(path.parent)
        remove(path.with_name(path.name + _OLD))


def recover_folder(path: Path) -> None:
    """Repairs what a killed process left: the older folder is restored or removed, and a discarded one removed."""
    remove(path.with_name(path.name + _GONE))
    old = path.with_name(path.name + _OLD)
    if old.exists() and not path.exists():
        old.rename(path)
    else:
        remove(old)


def discard_folder(path: Path) -> None:
    """Removes a folder so that no half of it is ever left under its name, nor brought back by ``recover_folder``."""
    recover_folder(path)
    if path.exists():
        going = path.with_name(path.name + _GONE)
        path.rename(going)
        remove(going)


def recover_folders(parent: Path, pattern: str) -> None:
    """``recover_folder`` for the folders in ``parent`` of names like ``pattern`` that a killed process has left halfway."""
    for left in [*parent.glob(pattern + _OLD), *parent.glob(pattern + _GONE)]:
        recover_folder(left.with_suffix(""))


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it; nothing where there is neither."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Turns the error of a library that failed at a system call into the ``OSError`` that it stands for.

    safetensors and SQLite report a full disk as exceptions of their own, which would reach the user as a traceback, and
    shutil as a list with an entry for each file. An error of agentenv says already what failed, which may be another file.
    """
    try:
        yield
    except shutil.Error as error:
        if found := _LISTED.search(str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
        raise
    except (OSError, AgentEnvError):
        raise
    except Exception as error:
        found, code = _ERRNO.search(str(error)), getattr(error, "sqlite_errorcode", 0) & 0xFF
        if found or code in _SQLITE:
            number = int(found[1]) if found else _SQLITE[code]
            raise OSError(number, os.strerror(number)) from error
        cause: BaseException | None = error
        while cause is not None:  # torch fails once more while it closes the archive that it could not write
            if isinstance(cause, OSError):
                raise OSError(cause.errno, cause.strerror) from error
            cause = cause.__cause__ or cause.__context__
        raise


__all__ = [
    "append_lines",
    "discard_folder",
    "new_folder",
    "os_errors",
    "put_in_place",
    "recover_folder",
    "recover_folders",
    "remove",
    "replacing",
    "sync",
    "sync_folder",
    "write_bytes",
    "write_text",
]
