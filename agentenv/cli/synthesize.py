"""What the commands ``agentenv synthesize NAME`` share."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from agentenv.core.env import run_sync
from agentenv.core.types import Document, Task
from agentenv.data.datasets import Dataset, load_dataset
from agentenv.data.synthesis.records import RecordFailure, over_records, write_question_folder
from agentenv.errors import ConfigurationError
from agentenv.progress import LiveDisplay

In = TypeVar("In")
Out = TypeVar("Out")

GRAMMAR = "grammar"
"""The editor that needs no model."""


def refuse_without_effect(editor: str, **options: object) -> None:
    """Refuses options that only a model needs, where the work is done without one.

    Args:
        editor: Who needs no model.
        **options: Values by name; one that is empty or None was not given.

    Raises:
        ConfigurationError: one was given.
    """
    for name, value in options.items():
        if value:
            raise ConfigurationError(f"--{name} is without effect with the editor {editor}: leave it out.")


def load_questions(
    dataset: str, data: Path | None, *, split: str | None, limit: int | None, seed: int
) -> Dataset:
    """The question set of that name in ``data``, or the questions of the file ``dataset``."""
    file = Path(dataset)
    name, place = ("jsonl", file) if file.is_file() else (dataset, data)
    return load_dataset(name, place, split=split, limit=limit, seed=seed)


def process_records(
    command: str,
    out: Path,
    records: Sequence[In],
    work: Callable[[In], Awaitable[Out]],
    name: Callable[[In], str],
    at_once: int,
) -> tuple[list[Out], list[RecordFailure]]:
    """`over_records` with a display, whose log is written beside the folder ``out``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with LiveDisplay(command, log=out.parent / f"{out.name}.log") as display:
        return run_sync(over_records(records, work, name, at_once=at_once, display=display))


def write_result(
    out: Path,
    tasks: Iterable[Task],
    documents: Iterable[Document] | None,
    failures: Sequence[RecordFailure],
    card: Mapping[str, Any],
) -> dict[str, Any]:
    """`write_question_folder`; returns the result of the command, which is the card and the folder."""
    return {**write_question_folder(out, tasks, documents, failures, card), "out": str(out)}


def show_failures(result: Mapping[str, Any], console: Console) -> None:
    """Prints how many records failed, by kind."""
    for kind, count in result["failures"].items():
        console.print(f"  failed, {kind}: {count}")
