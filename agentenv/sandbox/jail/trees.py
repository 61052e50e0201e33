"""Workspaces: writing given files, collecting asked ones, copying whole trees; no link is ever followed."""

import errno
import itertools
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass


class PathRefused(Exception):
    """A name or a file that does not cross the wall."""


def parts_of(name: str) -> list[str]:
    """The components of a relative path.

    Raises:
        PathRefused: absolute, empty, too long, or with ``..``, NUL, a newline or half a surrogate pair in it.
    """
    try:
        name.encode()
    except UnicodeEncodeError:  # no file can have it
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
            # One component after the other, because a link at any of them could lead out of the box.
            inner = os.open(part, flags, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def write(root: str, name: str, content: bytes) -> None:
    """Writes one file below ``root``, making its folders.

    Raises:
        Refused: the name is bad, or a link or a full disk is in the way.
    """
    *folders, leaf = parts_of(name)
    try:
        folder = _open_folder(root, folders, make=True)
        try:
            # Not blocking: a program may have put a pipe there, whose opening would wait for a reader for ever.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(leaf, flags, 0o644, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(fd, "wb") as stream:
            stream.write(content)
    except OSError as error:
        raise PathRefused(f"{name!r} cannot be written: {error.strerror}") from error


def read(root: str, name: str, limit: int) -> bytes:
    """One regular file of at most ``limit`` bytes below ``root``.

    Raises:
        Refused: the name is bad, or what it names is missing, a link, no regular file, or too large.
    """
    *folders, leaf = parts_of(name)
    try:
        folder = _open_folder(root, folders)
        try:
            # Not blocking: a program may have put a pipe there, whose opening would wait for a writer for ever.
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
    """One folder on the way down a tree that is being copied."""

    source: tuple[int, int]
    target: tuple[int, int]
    """Device and number of both folders: ``..`` must lead back to them."""
    found: os.stat_result
    """What the source was like before."""
    name: str
    left: list[str]
    """Folders in it that are still to be copied."""


class _Copy:
    """Copies one tree; where it stands is a pair of descriptors, so neither its depth nor its paths have a limit."""

    def __init__(self, room: int) -> None:
        self._room, self._total = room, 0
        self._way: list[_Level] = []
        self._source = self._target = -1

    def run(self, source: str, target: str) -> int:
        """Copies everything; returns the bytes of the files."""
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
        """Goes into a folder and copies what is in it but for its folders."""
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
        """Gives the folder the mode and the times of its source and goes back to the one above."""
        level = self._way.pop()
        source, target = self._source, self._target
        if self._way:
            above = self._way[-1]
            up = (_above(source, above.source), _above(target, above.target))
        else:
            up = (-1, -1)
        self._source, self._target = up
        try:
            # Now that it is filled: with the mode of its source nobody might be allowed to write to it.
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
        """Copies data and holes of one file."""
        found = entry.stat(follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        if not mode & stat.S_IRUSR:
            # For as long as it takes to open it: whatever a program made is copied, also what its owner may not read.
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
                # Holes stay holes, or a file of a few bytes could be written out as a whole disk.
                at = os.lseek(reading, at, os.SEEK_DATA)
            except OSError:  # only a hole is left
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
    """Copies folders, regular files and links as they are; returns the bytes of the files.

    Whatever a program made is copied: folders of any depth, and those that their owner may not read.

    Args:
        source: Folder to copy.
        target: Where to; it may exist and must then hold nothing of the same name.
        room: Bytes of data at most. A file of many names would otherwise become many files.

    Raises:
        OSError: there is no room, or the tree changed meanwhile.
    """
    os.makedirs(target, exist_ok=True)
    return _Copy(room).run(source, target)


def _enter(name: str, parent: int | None, found: os.stat_result | None = None) -> int:
    """A descriptor of a folder, made readable and writable for its owner where it is not."""
    found = found or os.stat(name, dir_fd=parent, follow_symlinks=False)
    if found.st_mode & stat.S_IRWXU != stat.S_IRWXU and stat.S_ISDIR(found.st_mode):
        os.chmod(name, stat.S_IMODE(found.st_mode) | stat.S_IRWXU, dir_fd=parent)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _identity(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


def _above(folder: int, wanted: tuple[int, int]) -> int:
    """The folder around an open one, if it is still the one that was left."""
    above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    if _identity(above) != wanted:
        os.close(above)
        raise OSError(errno.EBUSY, "a folder was moved while it was copied")
    return above


def clear(root: str) -> None:
    """Empties a folder.

    Folders in folders are first moved to the top under names that nobody can know, so that depth never counts.
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
    """Removes what is no folder and moves the folders to ``top``, where that is another; returns their new names."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    moved = []
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        moved.append(renamed(name))
        if top is not None:
            os.close(_enter(name, folder))  # a folder that its owner may not write cannot be moved
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
    return moved


def remove(root: str) -> None:
    """Removes a folder with all that is in it; one that is gone already is none."""
    if os.path.isdir(root):
        clear(root)
        os.rmdir(root)


def remove_quietly(root: str) -> None:
    """``remove``, for the end of what nobody looks at any more."""
    try:
        remove(root)
    except OSError:
        pass
