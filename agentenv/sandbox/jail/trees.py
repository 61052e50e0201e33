"""Working folders: writes given files, collects requested ones, and copies whole trees, without ever following a link."""

import errno
import itertools
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass


class PathRefused(Exception):
    """A path or a file that may not pass into or out of a jail."""


def parts_of(name: str) -> list[str]:
    """Splits a relative path into its components.

    Raises:
        PathRefused: it is absolute, empty or too long, or contains ``..``, NUL, a newline or a lone surrogate.
    """
    try:
        name.encode()
    except UnicodeEncodeError:  # not a valid file name
        raise PathRefused(f"{name[:80]!r} is no relative path") from None
    parts = name.split("/")
    bad = not name or len(name) > 1024 or any(part in ("", ".", "..") or len(part) > 255 for part in parts)
    if bad or any(ord(letter) < 32 for letter in name):
        raise PathRefused(f"{name[:80]!r} is no relative path")
    return parts


def _open_folder(root: str, parts: list[str], *, make: bool = False) -> int:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    for part in parts:
        try:
            if make:
                try:
                    os.mkdir(part, dir_fd=folder)
                except FileExistsError:
                    pass
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            # One component at a time, because any of them could be a link that leads out of the box.
            inner = os.open(part, flags, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def write(root: str, name: str, content: bytes) -> None:
    """Writes one file below ``root``, and creates its folders.

    Raises:
        PathRefused: the path is not valid, or a link or a full disk prevents writing.
    """
    *folders, leaf = parts_of(name)
    try:
        folder = _open_folder(root, folders, make=True)
        try:
            # Non-blocking, because opening a named pipe of the program would wait for a reader for ever.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(leaf, flags, 0o644, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(fd, "wb") as stream:
            stream.write(content)
    except OSError as error:
        raise PathRefused(f"{name!r} cannot be written: {error.strerror}") from error


def read(root: str, name: str, limit: int) -> bytes:
    """Reads one regular file of at most ``limit`` bytes below ``root``.

    Raises:
        PathRefused: the path is not valid, or its file is missing, a link, not regular, or too large.
    """
    *folders, leaf = parts_of(name)
    try:
        folder = _open_folder(root, folders)
        try:
            # Non-blocking, because opening a named pipe of the program would wait for a writer for ever.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(leaf, flags, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise PathRefused(f"{name!r} cannot be read: {error.strerror}") from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise PathRefused(f"{name!r} is no regular file")
    with os.fdopen(fd, "rb") as stream:
        if found.st_nlink > 1:
            raise PathRefused(f"{name!r} has a second name")
        if found.st_size > limit:
            raise PathRefused(f"{name!r} has {found.st_size} bytes, more than {limit}")
        return stream.read(limit)


@dataclass
class _Level:
    """One folder on the path to the present folder of a copy."""

    source: tuple[int, int]
    target: tuple[int, int]
    """Device and inode of both folders; ``..`` must lead back to them."""
    found: os.stat_result
    """The source's attributes before the copy."""
    name: str
    left: list[str]
    """Subfolders that remain to be copied."""


class _Copy:
    """Copies one tree. Its position is a pair of descriptors, so depth and path lengths are not limited."""

    def __init__(self, room: int) -> None:
        self._room, self._total = room, 0
        self._way: list[_Level] = []
        self._source = self._target = -1

    def run(self, source: str, target: str) -> int:
        """Copies everything; returns the size of the files in bytes."""
        try:
            self._descend(source, target, None)
            while self._way:
                level = self._way[-1]
                if level.left:
                    name = level.left.pop()
                    os.mkdir(name, 0o700, dir_fd=self._target)
                    self._descend(name, name, level)
                else:
                    self._ascend()
        finally:
            for fd in {self._source, self._target} - {-1}:
                os.close(fd)
        return self._total

    def _descend(self, source: str, target: str, above: _Level | None) -> None:
        """Enters a folder and copies its content except for subfolders."""
        given = (None, None) if above is None else (self._source, self._target)
        found = os.stat(source, dir_fd=given[0], follow_symlinks=False)
        self._replace(_enter(source, given[0], found), _enter(target, given[1]))
        left = []
        with os.scandir(self._source) as entries:
            for entry in entries:
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.name, dir_fd=self._source), entry.name, dir_fd=self._target)
                elif entry.is_dir(follow_symlinks=False):
                    left.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    self._file(entry)
        self._way.append(_Level(_identity(self._source), _identity(self._target), found, source, left))

    def _ascend(self) -> None:
        """Gives the folder the mode and times of its source, and returns to the folder above."""
        level = self._way.pop()
        source, target = self._source, self._target
        if self._way:
            above = self._way[-1]
            up = (_above(source, above.source), _above(target, above.target))
        else:
            up = (-1, -1)
        self._source, self._target = up
        try:
            # Set after it is filled, because the source's mode may not allow writing.
            mode = stat.S_IMODE(level.found.st_mode)
            os.fchmod(source, mode)
            os.fchmod(target, mode)
            os.utime(target, ns=(level.found.st_atime_ns, level.found.st_mtime_ns))
        finally:
            os.close(source)
            os.close(target)

    def _replace(self, source: int, target: int) -> None:
        for fd in {self._source, self._target} - {-1}:
            os.close(fd)
        self._source, self._target = source, target

    def _file(self, entry: os.DirEntry[str]) -> None:
        """Copies a file with its data and holes."""
        found = entry.stat(follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        if not mode & stat.S_IRUSR:
            # Made readable while it is opened, so that files that their owner may not read are copied too.
            os.chmod(entry.name, mode | stat.S_IRUSR, dir_fd=self._source)
        reading = os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._source)
        try:
            os.fchmod(reading, mode)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            writing = os.open(entry.name, flags, 0o600, dir_fd=self._target)
            try:
                self._data(reading, writing, found.st_size)
                os.fchmod(writing, mode)
                os.utime(writing, ns=(found.st_atime_ns, found.st_mtime_ns))
            finally:
                os.close(writing)
        finally:
            os.close(reading)
        self._total += found.st_size

    def _data(self, reading: int, writing: int, end: int) -> None:
        at = 0
        while at < end:
            try:
                # Holes are preserved; otherwise a file of a few bytes could fill a whole disk.
                at = os.lseek(reading, at, os.SEEK_DATA)
            except OSError:  # the rest is a hole
                break
            hole = os.lseek(reading, at, os.SEEK_HOLE)
            self._room -= hole - at
            if self._room < 0:
                raise OSError(errno.EFBIG, "they are larger than the disk, for files have several names")
            os.lseek(writing, at, os.SEEK_SET)
            while at < hole:
                sent = os.sendfile(writing, reading, at, hole - at)
                if not sent:
                    raise OSError(errno.EBUSY, "a file was cut while it was copied")
                at += sent
        os.ftruncate(writing, end)


def copy(source: str, target: str, room: int = 1 << 62) -> int:
    """Copies folders, regular files and links unchanged; returns the size of the files in bytes.

    All that a program can create is copied: folders of any depth, and folders that their owner may not read.

    Args:
        source: The folder to copy.
        target: The destination. It may exist, but must not contain an entry of the same name.
        room: Largest number of bytes of data; each hard link of a file is copied as a separate file.

    Raises:
        OSError: there is not enough space, or the tree changed meanwhile.
    """
    os.makedirs(target, exist_ok=True)
    return _Copy(room).run(source, target)


def _enter(name: str, parent: int | None, found: os.stat_result | None = None) -> int:
    """Opens a folder, and makes it readable and writable for its owner if it is not; returns the descriptor."""
    found = found or os.stat(name, dir_fd=parent, follow_symlinks=False)
    if found.st_mode & stat.S_IRWXU != stat.S_IRWXU and stat.S_ISDIR(found.st_mode):
        os.chmod(name, stat.S_IMODE(found.st_mode) | stat.S_IRWXU, dir_fd=parent)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _identity(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


def _above(folder: int, wanted: tuple[int, int]) -> int:
    """Returns the parent of an open folder, if it is still the one that was left."""
    above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    if _identity(above) != wanted:
        os.close(above)
        raise OSError(errno.EBUSY, "a folder was moved while it was copied")
    return above


def clear(root: str) -> None:
    """Removes the content of a folder.

    Nested folders are first moved to the top under unpredictable names, so that depth does not matter.
    """
    top = _enter(root, None)
    secret, numbers = os.urandom(16).hex(), itertools.count()
    try:
        waiting = _empty(top, lambda name: name)
        while waiting:
            name = waiting.pop()
            inner = _enter(name, top)
            try:
                waiting += _empty(inner, lambda _: f"{secret}-{next(numbers)}", top)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _empty(folder: int, renamed: Callable[[str], str], top: int | None = None) -> list[str]:
    """Removes everything except folders, and moves these to ``top`` if that is given; returns their new names."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    moved = []
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        moved.append(renamed(name))
        if top is not None:
            os.close(_enter(name, folder))  # a folder without write permission cannot be moved
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
    return moved


def remove(root: str) -> None:
    """Removes a folder with its content; does nothing if it does not exist."""
    if os.path.isdir(root):
        clear(root)
        os.rmdir(root)


def remove_quietly(root: str) -> None:
    """Does what ``remove`` does, and ignores errors; for folders that are not used any more."""
    try:
        remove(root)
    except OSError:
        pass
