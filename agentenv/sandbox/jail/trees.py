"""Workspaces: writing given files, collecting asked ones, copying whole trees; no link is ever followed."""

import os
import shutil
import stat


class Refused(Exception):
    """A name or a file that does not cross the wall."""


def parts_of(name: str) -> list[str]:
    """The components of a relative path.

    Raises:
        Refused: absolute, empty, too long, or with ``..``, NUL or a newline in it.
    """
    parts = name.split("/")
    bad = not name or len(name) > 1024 or any(part in ("", ".", "..") or len(part) > 255 for part in parts)
    if bad or any(ord(letter) < 32 for letter in name):
        raise Refused(f"{name[:80]!r} is no relative path")
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
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(leaf, flags, 0o644, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(fd, "wb") as stream:
            stream.write(content)
    except OSError as error:
        raise Refused(f"{name!r} cannot be written: {error.strerror}") from error


def read(root: str, name: str, limit: int) -> bytes:
    """One regular file of at most ``limit`` bytes below ``root``.

    Raises:
        Refused: the name is bad, or what it names is missing, a link, no regular file, or too large.
    """
    *folders, leaf = parts_of(name)
    try:
        folder = _open_folder(root, folders)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(leaf, flags, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise Refused(f"{name!r} cannot be read: {error.strerror}") from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise Refused(f"{name!r} is no regular file")
    with os.fdopen(fd, "rb") as stream:
        if found.st_nlink > 1:
            raise Refused(f"{name!r} has a second name")
        if found.st_size > limit:
            raise Refused(f"{name!r} has {found.st_size} bytes, more than {limit}")
        return stream.read(limit)


def copy(source: str, target: str) -> int:
    """Copies folders, regular files and links as they are; returns the bytes of the files."""
    total = 0
    os.makedirs(target, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            goal = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), goal)
            elif entry.is_dir(follow_symlinks=False):
                total += copy(entry.path, goal)
            elif entry.is_file(follow_symlinks=False):
                total += _copy_file(entry, goal)
    found = os.stat(source)
    os.chmod(target, stat.S_IMODE(found.st_mode) | stat.S_IRWXU)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    return total


def _copy_file(entry: os.DirEntry[str], goal: str) -> int:
    """Copies data and holes of one file."""
    found = entry.stat(follow_symlinks=False)
    if not found.st_mode & stat.S_IRUSR:
        os.chmod(entry.path, 0o600)
    with open(entry.path, "rb") as source, open(goal, "wb") as target:
        at, end = 0, found.st_size
        while at < end:
            try:
                at = os.lseek(source.fileno(), at, os.SEEK_DATA)
            except OSError:  # only a hole is left
                break
            hole = os.lseek(source.fileno(), at, os.SEEK_HOLE)
            os.lseek(target.fileno(), at, os.SEEK_SET)
            while at < hole:
                at += os.sendfile(target.fileno(), source.fileno(), at, hole - at)
        os.ftruncate(target.fileno(), end)
    os.chmod(goal, stat.S_IMODE(found.st_mode))
    os.utime(goal, ns=(found.st_atime_ns, found.st_mtime_ns))
    return found.st_size


def clear(root: str) -> None:
    """Empties a folder."""
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                shutil.rmtree(entry.path, onerror=_make_removable)
            else:
                os.unlink(entry.path)


def _make_removable(remove: object, path: str, _: object) -> None:
    """For ``rmtree``: a folder without the write bit is ours all the same."""
    parent = os.path.dirname(path)
    os.chmod(parent, 0o700)
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)
