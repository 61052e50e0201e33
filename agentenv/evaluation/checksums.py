"""Checksums of episode files, so that scores are never read beside episodes from which they were not computed.

``episodes.jsonl`` has a companion ``episodes.sha256`` with the SHA-256 of each line. While episodes are added, each digest
is written before its line. So a killed process may leave a digest without a line, but never a line without a digest.
Wherever the file was cut, its remaining lines can be verified.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from agentenv.core.io.files import append_lines, write_text
from agentenv.errors import ConfigurationError

SUFFIX = ".sha256"


def append_digests(path: Path, content: bytes) -> None:
    """Writes the digests of lines that are about to be appended to ``path``."""
    append_lines(path.with_suffix(SUFFIX), _digests(content))


def write_digests(path: Path) -> None:
    """Replaces the stored digests by those of the lines that ``path`` has now."""
    write_text(path.with_suffix(SUFFIX), "".join(f"{digest}\n" for digest in _digests(path.read_bytes())))


def remove_digests(path: Path) -> None:
    """Removes the file of digests of ``path``."""
    path.with_suffix(SUFFIX).unlink(missing_ok=True)


def verify_digests(path: Path, *, growing: bool = False) -> None:
    """Compares a file with its digests. A file without digests, as earlier versions wrote it, is accepted.

    Args:
        path: The file.
        growing: Whether lines may be missing and the last one may be incomplete.

    Raises:
        ConfigurationError: the file was changed by another program than the evaluation.
    """
    noted = path.with_suffix(SUFFIX)
    if not noted.is_file():
        return
    held = noted.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    content = path.read_bytes() if path.is_file() else b""
    found = _digests(content[: content.rfind(b"\n") + 1] if growing else content)
    known = set(held)
    changed = (number for number, digest in enumerate(found, start=1) if digest not in known)
    place = next(changed, None)
    if place is not None or (not growing and found != held):
        where = path if place is None else f"line {place} of {path}"
        raise ConfigurationError(
            f"{where} has changed since the evaluation wrote it: put it back, or evaluate again with another --out"
        )


def _digests(content: bytes) -> Sequence[str]:
    lines = content.split(b"\n")
    return [hashlib.sha256(line).hexdigest() for line in lines[: None if lines[-1] else -1]]
