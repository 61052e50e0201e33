"""Writes output files atomically: they are complete or absent. All output of the package that is renamed is written here.

A rename alone does not survive a power failure: the new name can reach the disk before the content, which leaves an empty
file. So every file is flushed to the disk before it is renamed, and its folder afterwards.
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

from agentenv.core.io.claims import claim, require_claimed_folder
from agentenv.errors import AgentEnvError, ConfigurationError

_PART = ".part"
_OLD = ".old"
_DISCARDED = ".gone"
# The format in which libraries written in Rust, such as safetensors, write an errno.
_ERRNO = re.compile(r"\(os error (\d+)\)")
_LISTED = re.compile(r"\[Errno (\d+)\]")  # an entry of the error list of shutil.copytree
_SQLITE = {8: errno.EROFS, 10: errno.EIO, 13: errno.ENOSPC, 14: errno.EACCES}
"""System errors by SQLite's result codes READONLY, IOERR, FULL and CANTOPEN (sqlite.org/rescode.html)."""


def sync(path: Path) -> None:
    """Waits until the file or folder ``path`` is on the disk. Windows cannot open folders, and flushes only open files."""
    windows = sys.platform == "win32"
    if windows and path.is_dir():
        return
    place = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def sync_folder(folder: Path) -> None:
    """Waits until all files and folders below ``folder`` are on the disk."""
    for inner in sorted(folder.rglob("*"), reverse=True):
        if not inner.is_symlink():
            sync(inner)
    sync(folder)


def put_in_place(part: Path, path: Path) -> None:
    """Renames the finished file ``part`` to ``path``, replacing an existing file; waits until both are on the disk."""
    sync(part)
    part.replace(path)
    sync(path.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a temporary file beside ``path``, which replaces ``path`` if the block succeeds.

    Args:
        path: The file. Its folder has to exist.

    Raises:
        OSError: it cannot be written, for example because the disk is full or its claimed folder was removed. ``path`` is
            then unchanged.
    """
    require_claimed_folder(path)
    part = path.with_name(path.name + _PART)
    with _naming_target(path, part), contextlib.ExitStack() as stack:
        try:
            part = stack.enter_context(_exclusive_part(part))
            with os_errors():
                yield part
            put_in_place(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _naming_target(path: Path, part: Path) -> Iterator[None]:
    """Within the block, errors that name ``part`` or a file in it name ``path`` instead, because the user knows that."""
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, str) and Path(error.filename).is_relative_to(part):
            error.filename = str(path / Path(error.filename).relative_to(part))
        raise


@contextlib.contextmanager
def _exclusive_part(part: Path) -> Iterator[Path]:
    """Yields ``part`` if no other process is writing it, and otherwise another temporary name.

    If two processes wrote to the same name, the second would continue in the file that the first has already renamed.
    """
    with contextlib.ExitStack() as stack:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT, 0o666))
        try:
            stack.enter_context(claim(part, f"{part} is being written"))
        # another process is writing it, or has just renamed it
        except (ConfigurationError, FileNotFoundError):
            part = part.with_name(f"{part.stem}.{os.getpid()}-{threading.get_ident()}{_PART}")
        yield part


def write_text(path: Path, text: str) -> None:
    """Writes or replaces a file of UTF-8 text atomically."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """Writes or replaces a file atomically."""
    with replacing(path) as part:
        part.write_bytes(content)


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Appends lines (without their line ends) to a log, and waits until they are on the disk.

    If the disk is full, a partial line is removed again, so that the next line does not continue it.

    Raises:
        OSError: they cannot be written.
    """
    require_claimed_folder(path)
    new = not path.exists()
    with path.open("ab", buffering=0) as file:  # a buffer would write its rest when closed
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
    """Yields an empty temporary folder beside ``path``, which becomes ``path`` if the block succeeds.

    Args:
        path: The folder to create.
        replace: Whether an existing ``path`` is replaced. It is renamed first, because a folder cannot be renamed over
            another one. If the process is killed between the two renames, ``recover_folder`` restores it.

    Raises:
        OSError: the folder cannot be written, or exists already. ``path`` is then unchanged.
        ConfigurationError: another process is filling it, or it is given as ``.`` or ``/``.
    """
    if not path.name:
        raise ConfigurationError(
            f"{str(path)!r} does not end in a name, so it cannot be replaced as a whole; give the folder by its name"
        )
    require_claimed_folder(path)
    part = path.with_name(path.name + _PART)
    if not replace and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with _naming_target(path, part), _part_folder(part, path, replace=replace):
        yield part


@contextlib.contextmanager
def _part_folder(part: Path, path: Path, *, replace: bool) -> Iterator[None]:
    """Creates ``part`` for this process alone, and renames it to ``path`` if the block succeeds."""
    taken = f"another process is writing {path}: wait for it, or choose another name"
    if part.is_dir():
        with claim(part, taken):  # its former owner is dead
            remove(part)
    else:
        remove(part)
    if replace:
        recover_folder(path)
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.mkdir()
    except FileExistsError as error:  # another process has begun meanwhile
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
    """Repairs what a killed process left behind: restores or removes the renamed old folder, removes a discarded one."""
    remove(path.with_name(path.name + _DISCARDED))
    old = path.with_name(path.name + _OLD)
    if old.exists() and not path.exists():
        old.rename(path)
    else:
        remove(old)


def discard_folder(path: Path) -> None:
    """Removes a folder such that no partial folder is left under its name, nor restored by ``recover_folder``."""
    recover_folder(path)
    if path.exists():
        going = path.with_name(path.name + _DISCARDED)
        path.rename(going)
        remove(going)


def recover_folders(parent: Path, pattern: str) -> None:
    """Calls ``recover_folder`` for folders in ``parent`` that match ``pattern`` and that a killed process left behind."""
    for left in [*parent.glob(pattern + _OLD), *parent.glob(pattern + _DISCARDED)]:
        recover_folder(left.with_suffix(""))


def remove(path: Path) -> None:
    """Removes a file, or a folder with its content; does nothing if neither exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Converts the error of a library whose system call failed to the corresponding ``OSError``.

    safetensors and SQLite report a full disk as their own exceptions, which would reach the user as a traceback, and shutil
    reports a list of errors for each file. Errors of agentenv are unchanged, because they already say what failed.
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
        while cause is not None:  # torch raises a second error when it closes the failed archive
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
