"""Which files and folders the values of settings name: a value may be any other text as well, of any length."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MODEL_CARD = "config.json"
"""The file by which a folder is known as that of a model."""


def existing_path(text: str) -> Path | None:
    """The file or folder called ``text``; None where nothing is, as of a prompt that is longer than any name can be."""
    with suppress(OSError, ValueError):
        path = Path(text)
        if text and path.exists():
            return path
    return None


def is_folder_name(name: str) -> bool:
    """Whether ``name`` names a folder within another one, and nothing outside of it."""
    return bool(name) and Path(name).name == name and name != ".." and "\0" not in name


def is_existing_file(text: str) -> bool:
    """Whether a file is called ``text``; a socket, a pipe or a device is none."""
    path = existing_path(text)
    return path is not None and path.is_file()


def named_content(text: str) -> Path | None:
    """The file, or the folder of a model, that ``text`` names, whole or behind its first or last colon; None without one.

    A word that is the name of a file by chance is none: a file has a slash or a dot in what it is called. Neither the
    current folder nor one above it is a model, and folders without a model are not looked at: one may be written to.
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
    with suppress(OSError):  # a folder that may not be entered
        return (folder / MODEL_CARD).is_file()
    return False


def texts_in(table: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Every text of ``table``, with the keys and places that lead to it and dots between them."""
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
