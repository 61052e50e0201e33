"""Finds example configurations and suites that are installed with the package by their names in the repository."""

import sysconfig
from pathlib import Path

_FOLDERS = ("examples", "benchmarks/suites")
_ROOTS = (Path(sysconfig.get_path("data"), "share", "agentenv-suite"), Path(__file__).resolve().parents[3])
"""The folders where a wheel installs them, and where they are in a checkout."""


def shipped_file(path: Path) -> Path:
    """Returns ``path`` if it is a file; otherwise the installed file of that name, if there is one.

    Names are relative to the repository, such as ``examples/dapo.toml``.
    """
    if path.is_file() or path.is_absolute() or path.parent.as_posix() not in _FOLDERS:
        return path
    return next((root / path for root in _ROOTS if (root / path).is_file()), path)
