"""Checksums of the files of a saved retriever, computed block by block.

A file has one SHA-256 for every `BLOCK_BYTES`. An index of ordinary size is read completely when it is opened, at about a
second per gigabyte. A larger one is only mapped into memory, so reading it would take minutes: only the sizes, the first and
last blocks and some random blocks are compared. ``agentenv retriever check`` reads everything.
"""

import hashlib
import os
import random
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from typing_extensions import TypedDict

from agentenv.errors import IndexMismatch

BLOCK_BYTES = 64 << 20
WHOLE_BYTES = 4 << 30  # folders up to this size are read completely at every opening
SAMPLED_BLOCKS = 16
# Bytes that are read at a time, into one buffer, because blocks of a megabyte would stay allocated in every worker process.
_PIECE_BYTES = 64 << 10
_THREADS = 4  # hashing releases the interpreter's lock


class FileSums(TypedDict):
    """The checksums of one file on a card."""

    bytes: int
    sha256: list[str]  # one digest per block, in order


class _Block(NamedTuple):
    path: Path
    number: int


def file_sums(folder: Path, skip: Iterable[str] = ()) -> dict[str, FileSums]:
    """Returns the checksums of all files below ``folder``, by their relative path.

    Args:
        folder: The folder. Links in it are followed.
        skip: Relative paths that are left out.
    """
    left_out = {Path(name) for name in skip}
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): FileSums(
            bytes=path.stat().st_size, sha256=_digests(_blocks(path, path.stat().st_size))
        )
        for path in paths
        if path.relative_to(folder) not in left_out
    }


def verify_files(folder: Path, recorded: Mapping[str, FileSums], *, whole: bool = False) -> None:
    """Compares the files of ``folder`` with recorded checksums.

    Args:
        folder: The folder of the saved retriever.
        recorded: Sizes and checksums by relative path; empty for a retriever that was saved without checksums.
        whole: Whether every block is read, regardless of the size.

    Raises:
        IndexMismatch: a file is missing, cannot be read, or differs from its checksums.
    """
    blocks: list[_Block] = []
    for name, sums in recorded.items():
        path = _checked_file(folder, name)
        try:
            found = path.stat().st_size
        except OSError as error:
            raise IndexMismatch(_damage_message(path, f"cannot be read: {error.strerror}")) from error
        if found != sums["bytes"]:
            raise IndexMismatch(
                _damage_message(path, f"has {found:,} bytes and was written with {sums['bytes']:,}")
            )
        of_file = _blocks(path, found)
        if len(of_file) != len(sums["sha256"]):
            raise IndexMismatch(
                _damage_message(path, f"has {len(of_file)} blocks and {len(sums['sha256'])} checksums")
            )
        blocks += of_file
    if not whole and sum(sums["bytes"] for sums in recorded.values()) > WHOLE_BYTES:
        blocks = _sample(blocks)
    try:
        digests = _digests(blocks)
    except OSError as error:
        raise IndexMismatch(
            f"{folder} cannot be read: {error.strerror}; build the retriever again."
        ) from error
    for block, digest in zip(blocks, digests, strict=True):
        if recorded[block.path.relative_to(folder).as_posix()]["sha256"][block.number] != digest:
            first = block.number * BLOCK_BYTES
            last = min(first + BLOCK_BYTES, block.path.stat().st_size)
            raise IndexMismatch(
                _damage_message(block.path, f"is not what was written (bytes {first:,} to {last:,} differ)")
            )


def _checked_file(folder: Path, name: str) -> Path:
    """Returns the file of ``folder`` with a name from a card, checked because another author may have written it."""
    path = PurePosixPath(name)
    if not path.name or path.is_absolute() or ".." in path.parts or name != str(path) or "\0" in name:
        raise IndexMismatch(
            f"the card in {folder} names {name!r:.80}, which is no file within it; build the retriever again."
        )
    return folder / name


def _damage_message(path: Path, how: str) -> str:
    return f"{path} {how}: it was damaged or replaced; build the retriever again."


def _blocks(path: Path, size: int) -> list[_Block]:
    return [_Block(path, number) for number in range(-(-size // BLOCK_BYTES))]


def _sample(blocks: list[_Block]) -> list[_Block]:
    """Returns the first and last blocks of every file and some others, drawn without the global generator."""
    last = {block.path: block for block in blocks}
    ends = [block for block in blocks if block.number == 0 or block is last[block.path]]
    others = [block for block in blocks if block.number != 0 and block is not last[block.path]]
    return ends + random.Random().sample(others, min(SAMPLED_BLOCKS, len(others)))


def _digests(blocks: Iterable[_Block]) -> list[str]:
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(_digest, blocks))


def _digest(block: _Block) -> str:
    found, left = hashlib.sha256(), BLOCK_BYTES
    with memoryview(bytearray(_PIECE_BYTES)) as piece, block.path.open("rb", buffering=0) as file:
        file.seek(block.number * BLOCK_BYTES)
        while left and (count := file.readinto(piece[: min(left, _PIECE_BYTES)])):
            found.update(piece[:count])
            left -= count
    return found.hexdigest()
