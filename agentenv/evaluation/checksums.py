"""Checksums of files of episodes: scores are never read beside episodes that they were not computed from.

``episodes.jsonl`` has a neighbour ``episodes.sha256`` with the SHA-256 of each line. While episodes come in, a digest is
written before its line: a kill leaves a digest without a line, and never a line without a digest. What a killed process left
of a file can be cut anywhere, and its lines are still known to be those that were written.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from agentenv.core.io.files import append_lines, write_text
from agentenv.errors import ConfigurationError

SUFFIX = ".sha256"


def announce(path: Path, content: bytes) -> None:
    """Writes down the lines that are about to be added to ``path``."""
    append_lines(path.with_suffix(SUFFIX), _digests(content))


def note(path: Path) -> None:
    """Writes down the lines that ``path`` holds now, and no others."""
    write_text(path.with_suffix(SUFFIX), "".join(f"{digest}\n" for digest in _digests(path.read_bytes())))


def forget(path: Path) -> None:
    """Removes the checksums of ``path``."""
    path.with_suffix(SUFFIX).unlink(missing_ok=True)


def verify(path: Path, *, growing: bool = False) -> None:
    """Compares a file with its checksums; one without them, as earlier versions wrote it, is believed.

    Args:
        path: The file.
        growing: Whether lines may be missing, and the last one be torn.

    Raises:
        ConfigurationError: it was changed by somebody else than the evaluation.
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
