"""Decides which files and folders the values of settings refer to. A value may also be any other text, of any length."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MODEL_CARD = "config.json"
"""The file that identifies a folder as that of a model."""


def existing_path(text: str) -> Path | None:
    """Returns the file or folder called ``text``; None if none exists, as for a prompt too long to be a file name."""
    with suppress(OSError, ValueError):
        path = Path(text)
        if text and path.exists():
            return path
    return None


def is_folder_name(name: str) -> bool:
    """Whether ``name`` is the name of a folder directly within another one, and not a path that leads out of it."""
    return bool(name) and Path(name).name == name and name != ".." and "\0" not in name


def is_existing_file(text: str) -> bool:
    """Whether ``text`` names an existing regular file, and not a socket, a pipe or a device."""
    path = existing_path(text)
    return path is not None and path.is_file()


def named_content(text: str) -> Path | None:
    """Returns the file or model folder that ``text``, or its part after the first or last colon, names; None without one.

    A file name counts only if it contains a slash or a dot, because a word may equal a file name by chance. The current
    folder and its parents do not count as models. Folders without a model are ignored, because they may be outputs.
    """
    for name in (text, text.partition(":")[2], text.rpartition(":")[2]):
        path = existing_path(name)
        if path is not None and (_is_model(path) if path.is_dir() else _is_named_file(name, path)):
            return path
    return None


def _is_named_file(name: str, path: Path) -> bool:
    return path.is_file() and ("/" in name or "." in name)


def _is_model(folder: Path) -> bool:
    here = Path.cwd()
    if folder.resolve() in (here, *here.parents):
        return False
    with suppress(OSError):  # the folder may be inaccessible
        return (folder / MODEL_CARD).is_file()
    return False


def texts_in(table: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Yields every text in ``table``, with the keys and indices that lead to it, joined by dots."""
    if isinstance(table, str):
        yield above, table
        return
    items = (
        table.items()
        if isinstance(table, Mapping)
        else enumerate(table)
        if isinstance(table, list | tuple)
        else ()
    )
    for key, value in items:
        yield from texts_in(value, f"{above}.{key}" if above else str(key))
