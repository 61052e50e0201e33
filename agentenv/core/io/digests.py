"""Digests of content: two files, folders or values are the same where their digests are, whatever their names and dates.

A file of up to ``WHOLE`` bytes is read whole. Of a larger one, which only indexes of many millions of vectors are, the size
and ``WHOLE`` bytes in blocks spread evenly over it are read, the first and the last block among them: such a digest notices
an index that was built anew, and not every single changed byte.
"""

import dataclasses
import hashlib
import json
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

WHOLE = 8 << 30
_BLOCK = 1 << 20

PathState = tuple[tuple[str | int, ...], ...]
"""For each file its path, device, inode, size, and the times (ns) of the last change of content and of metadata."""


def file_digest(path: Path, *, whole: int = WHOLE) -> str:
    """SHA-256 of a file's content, in hexadecimal digits.

    Args:
        path: The file.
        whole: Bytes up to which a file is read whole.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        if size <= whole:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256(f"{size}\n".encode())
        count = max(whole // _BLOCK, 2)
        for number in range(count):
            file.seek((size - _BLOCK) * number // (count - 1))
            digest.update(file.read(_BLOCK))
        return digest.hexdigest()


def file_digests(folder: Path, *, whole: int = WHOLE) -> dict[str, str]:
    """The digest of every file below ``folder`` by its relative path; hidden files and folders are left out."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    inner = {path.relative_to(folder): path for path in paths}
    visible = {name: path for name, path in inner.items() if not any(p.startswith(".") for p in name.parts)}
    return {name.as_posix(): file_digest(path, whole=whole) for name, path in sorted(visible.items())}


def path_digest(path: Path) -> str:
    """One digest of a file's content, or of the names and contents of all files below a folder.

    Raises:
        OSError: it is neither, or cannot be read.
    """
    if path.is_dir():
        return value_digest(file_digests(path))
    return file_digest(path)


def path_state(path: Path) -> PathState:
    """What tells a file, or the files below a folder, from those that stood there before; empty where there is nothing.

    Nothing is read: a cache may compare it each time it is asked.
    """
    inside = sorted(path.rglob("*")) if path.is_dir() else [path]
    states: list[tuple[str | int, ...]] = []
    for one in inside:
        with suppress(OSError):  # there is nothing, or it has just been removed
            found = one.stat()
            if stat.S_ISREG(found.st_mode):
                times = (found.st_mtime_ns, found.st_ctime_ns)
                states.append((str(one), found.st_dev, found.st_ino, found.st_size, *times))
    return tuple(states)


def value_digest(value: Any) -> str:
    """SHA-256 of a value: text, numbers, bytes, lists, mappings and data classes of these, equal ones in every process.

    A path stands for the content of what lies there, because tasks may name files in a temporary folder. Another object says
    by a method ``digest_members`` what it holds.
    """
    text = json.dumps(value, default=_plain, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A value that JSON does not know as one that it does; of an unknown object no more than its type is known."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): held for key, held in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(value_digest, value))
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Path):
        return path_digest(value) if value.exists() else str(value)
    if callable(members := getattr(value, "digest_members", None)) and not isinstance(value, type):
        return members()
    return f"{type(value).__module__}.{type(value).__qualname__}"


__all__ = [
    "WHOLE",
    "PathState",
    "file_digest",
    "file_digests",
    "path_digest",
    "path_state",
    "value_digest",
]
