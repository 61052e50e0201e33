"""What the commands ``agentenv synthesize NAME`` share."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from rich.console import Console

from agentenv.cli.making import making
from agentenv.core.env import run_sync
from agentenv.core.io.named_paths import is_existing_file
from agentenv.core.types import Document, Task
from agentenv.data.datasets import Dataset, load_dataset
from agentenv.data.synthesis.records import RecordFailure, over_records, write_question_folder
from agentenv.errors import ConfigurationError

In = TypeVar("In")
Out = TypeVar("Out")

GRAMMAR = "grammar"
"""The editor that needs no model."""


def refuse_without_effect(editor: str, **options: object) -> None:
    """Refuses options that only a model needs, where the work is done without one.

    Args:
        editor: The editor, which needs no model.
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
    name, place = ("jsonl", Path(dataset)) if is_existing_file(dataset) else (dataset, data)
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
    with making(command, out) as display:
        return run_sync(over_records(records, work, name, at_once=at_once, display=display))


class Recipe(Protocol):
    """A command that writes a folder of questions: a data class of its options."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def out(self) -> Path:
        """The folder."""


def options_of(recipe: Recipe) -> dict[str, Any]:
    """Every option that decides what a recipe makes, by name: all but where it writes and how much it does at a time."""
    values = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in values.items()
        if name not in ("out", "replies", "at_once")
    }


def write_result(
    recipe: Recipe,
    tasks: Iterable[Task],
    documents: Iterable[Document] | None,
    failures: Sequence[RecordFailure],
    card: Mapping[str, Any],
) -> dict[str, Any]:
    """`write_question_folder` with the options of ``recipe`` on the card.

    Returns:
        The result of the command, which is the card and the folder.
    """
    full = {**card, "options": options_of(recipe)}
    return {**write_question_folder(recipe.out, tasks, documents, failures, full), "out": str(recipe.out)}


def show_failures(result: Mapping[str, Any], console: Console) -> None:
    """Prints how many records failed, by kind."""
    for kind, count in result["failures"].items():
        console.print(f"  failed, {kind}: {count}")
