"""What files hold, for tests that compare it: where megabytes differ, pytest would write their difference for minutes."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

SHORT = 20_000
"""Characters up to which a text is compared itself, so that a failed test shows where it differs."""


def content(path: Path) -> str:
    """The text of a short file, and of every other the SHA-256 digest."""
    held = path.read_bytes()
    if len(held) <= SHORT:
        try:
            return held.decode()
        except UnicodeDecodeError:
            pass
    return sha256(held).hexdigest()


def contents_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """What each file of ``folder`` holds that has one of ``names`` or, where one is a pattern with ``*``, fits it."""
    found: dict[str, str] = {}
    for name in names:
        paths = sorted(folder.glob(name)) if "*" in name else [folder / name]
        found |= {str(path.relative_to(folder)): content(path) for path in paths}
    return found
