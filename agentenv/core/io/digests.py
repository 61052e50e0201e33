"""Digests of content: files, folders or values with equal content have equal digests, whatever their names and dates.

A file of up to ``WHOLE`` bytes is read completely. Of a larger one (only indexes of many millions of vectors are larger),
the digest covers the size and ``WHOLE`` bytes in evenly spaced blocks, including the first and the last. Such a digest
detects a rebuilt index, but not every single changed byte.
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
"""For each file: path, device, inode, size, and the times (ns) of the last change of content and of metadata."""


def file_digest(path: Path, *, whole: int = WHOLE) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal digits.

    Args:
        path: The file.
        whole: Files up to this number of bytes are read completely.

    Raises:
        OSError: the file cannot be read.
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
    """Returns the digest of every file below ``folder`` by its relative path. Hidden files and folders are left out."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    inner = {path.relative_to(folder): path for path in paths}
    visible = {name: path for name, path in inner.items() if not any(p.startswith(".") for p in name.parts)}
    return {name.as_posix(): file_digest(path, whole=whole) for name, path in sorted(visible.items())}


def path_digest(path: Path) -> str:
    """Returns one digest of a file's content, or of the names and contents of all files below a folder.

    Raises:
        OSError: it is neither a file nor a folder, or cannot be read.
    """
    if path.is_dir():
        return value_digest(file_digests(path))
    return file_digest(path)


def path_state(path: Path) -> PathState:
    """Returns what changes when a file, or a file below a folder, is replaced; empty if nothing exists.

    No content is read, so a cache may compare this state at every access.
    """
    inside = sorted(path.rglob("*")) if path.is_dir() else [path]
    states: list[tuple[str | int, ...]] = []
    for one in inside:
        with suppress(OSError):  # it does not exist, or has just been removed
            found = one.stat()
            if stat.S_ISREG(found.st_mode):
                times = (found.st_mtime_ns, found.st_ctime_ns)
                states.append((str(one), found.st_dev, found.st_ino, found.st_size, *times))
    return tuple(states)


def value_digest(value: Any) -> str:
    """Returns the SHA-256 of a value made of text, numbers, bytes, lists, mappings and data classes.

    Equal values have equal digests in every process. A path is replaced by the digest of its content, because tasks may name
    files in a temporary folder. Any other object provides its content by a method ``digest_members``.
    """
    text = json.dumps(value, default=_plain, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Converts a value that JSON does not support to one that it does; of an unknown object, only its type is used."""
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
