"""Question sets from the Hugging Face hub, or from a folder in its layout, through the library ``datasets``.

``hub:`` names the set's own repository, ``hub:owner/name`` another one, ``hub:FOLDER`` a local folder of data
files that ``datasets`` can read.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentenv.data.dataset_files import RawRow
from agentenv.errors import DatasetError, needs_extra

PREFIX = "hub:"


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a set lies on the hub."""

    repository: str
    config: str | None = None
    splits: Mapping[str, str] = field(default_factory=dict)
    """Our name of a split to the hub's; one that is not here has the same name there."""


def is_hub(path: Path | None) -> bool:
    """Whether ``path`` is no path but a place on the hub."""
    return path is not None and str(path).startswith(PREFIX)


def hub_source(path: Path, hub: Hub | None, name: str) -> Hub:
    """The place that ``path`` (``hub:...``) names for the set ``name``.

    Raises:
        DatasetError: the set has no repository of its own and none is named.
    """
    named = str(path).removeprefix(PREFIX)
    if named and not (hub and named == hub.repository):
        return Hub(named, splits=hub.splits if hub and not Path(named).is_dir() else {})
    if hub is None:
        raise DatasetError(f"{name} has no repository of its own; name one as --data hub:owner/name.")
    return hub


def read_hub(hub: Hub, split: str) -> Iterator[RawRow]:
    """The rows of one split.

    Raises:
        MissingExtra: ``datasets`` is not installed.
        DatasetError: the hub cannot be reached, or has no such repository, configuration or split.
    """
    with needs_extra("eval"):
        import datasets
    wanted = hub.splits.get(split, split)
    try:
        with _quiet(datasets):
            rows = datasets.load_dataset(hub.repository, hub.config, split=wanted)
    except Exception as error:  # the library has no base class of its own
        reason = " ".join(str(error).split())[:200]
        raise DatasetError(
            f"{hub.repository} ({hub.config or 'default'}, {wanted}) could not be read from the hub "
            f"({type(error).__name__}: {reason}); check the name and the network, or pass a local file."
        ) from error
    for number, row in enumerate(rows):
        yield RawRow(row, f"{hub.repository}, {wanted}, row {number}")


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Progress bars and the log of retries belong to nobody who asked for questions."""
    log = logging.getLogger("huggingface_hub")
    level, bars = log.level, datasets.are_progress_bars_disabled()
    log.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        log.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()
