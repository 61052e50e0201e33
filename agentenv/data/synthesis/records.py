"""Work on many records at once, of which one that fails ends nothing, and the folder that comes of it."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count as counter
from pathlib import Path
from typing import Any, TypeVar

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.io.files import new_folder
from agentenv.core.types import Document, Task
from agentenv.errors import ConfigurationError, ContextTooSmall, DatasetError, Fault
from agentenv.progress import Display, SilentDisplay

In = TypeVar("In")
Out = TypeVar("Out")

QUESTIONS, CORPUS, CARD, FAILURES = "questions.jsonl", "corpus.jsonl", "synthesis.json", "failures.jsonl"


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """A record of which nothing came."""

    id: str
    kind: str
    """Name of the error's class."""
    message: str


async def over_records(
    records: Sequence[In],
    work: Callable[[In], Awaitable[Out]],
    name: Callable[[In], str],
    *,
    at_once: int = 8,
    display: Display | None = None,
) -> tuple[list[Out], list[RecordFailure]]:
    """The results of ``work`` in the order of ``records``, and the records that failed.

    A failure of a model, a reply that cannot be read, a record that fits into no context and a record that is malformed
    cost that record alone. A wrong key or address ends the work, because every record would meet it.

    Args:
        records: What is worked on.
        work: Makes one result.
        name: The id of a record, for the list of failures.
        at_once: Records under way at a time.
        display: Gets the number of records that are done; None shows nothing.

    Raises:
        ConfigurationError: the model is not configured as it should be.
    """
    places, progress, numbers = asyncio.Semaphore(at_once), display or SilentDisplay(), counter(1)
    progress.phase("records", len(records))

    async def one(record: In) -> tuple[list[Out], list[RecordFailure]]:
        async with places:
            try:
                return [await work(record)], []
            except (Fault, ContextTooSmall, DatasetError) as error:
                return [], [RecordFailure(name(record), type(error).__name__, str(error))]
            finally:
                progress.advance(next(numbers), {})

    finished = await gather_all(one(record) for record in records)
    return [made for some, _ in finished for made in some], [
        failed for _, some in finished for failed in some
    ]


def refuse_used_folder(out: Path, replies: Path | None = None) -> None:
    """Refuses a folder that holds something, or that replies are to be kept in, before anything is paid for.

    Raises:
        ConfigurationError: ``out`` is there and is no empty folder, or ``replies`` lies in it.
    """
    if replies is not None and out.resolve() in (replies.resolve(), *replies.resolve().parents):
        raise ConfigurationError(
            f"the folder {replies} lies in {out}, which has to be empty until the end; keep the replies elsewhere."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} exists and is not an empty folder; give a new one.")


def write_question_folder(
    out: Path,
    tasks: Iterable[Task],
    documents: Iterable[Document] | None,
    failures: Sequence[RecordFailure],
    card: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes the questions, their corpus, the failures and the card into the new folder ``out``, whole or not at all.

    Evaluations and runs read the questions by the name of their file. Failures have a file where there are some.

    Returns:
        The card, with the number of questions and the failures by kind.

    Raises:
        DatasetError: there is no question.
        OSError: it cannot be written.
    """
    rows = [
        {"id": task.id, "question": task.question, "answers": list(task.answers), **task.data}
        for task in tasks
    ]
    if not rows:
        raise DatasetError(_nothing(failures))
    kinds = dict(sorted(Counter(failure.kind for failure in failures).items()))
    full = {**card, "questions": len(rows), "failures": kinds}
    with new_folder(out) as folder:
        _lines(folder / QUESTIONS, rows)
        if documents is not None:
            _lines(folder / CORPUS, map(asdict, documents))
        if failures:
            _lines(folder / FAILURES, map(asdict, failures))
        (folder / CARD).write_text(json.dumps(full, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return full


def _nothing(failures: Sequence[RecordFailure]) -> str:
    if not failures:
        return "no question came of the records, and nothing is written; the checks accepted none."
    first = failures[0]
    return (
        f"no question came of the records, and nothing is written; {len(failures)} failed, the first ({first.id}) with "
        f"{first.kind}: {first.message}"
    )


def _lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
