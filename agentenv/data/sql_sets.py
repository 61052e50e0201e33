"""Spider and BIRD from local files, in the layouts of their authors: tasks for ``SQL-v0`` and ``ReExSQL-v0``.

A folder of Spider holds ``dev.json``, ``train_spider.json`` and ``train_others.json``, and ``database/NAME/NAME.sqlite``;
further files of a database's folder are its test suite (Zhong et al. 2020) and count for the reward. A folder of BIRD holds
``dev.json`` and ``dev_databases/NAME/NAME.sqlite``, or the same with ``train``, and for each database a folder
``database_description`` of tables that describe its columns. No database is opened here.
"""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentenv.core.io.tables import reason_of
from agentenv.core.types import Task
from agentenv.data.dataset_files import RawRow, read_records
from agentenv.errors import DatasetError, check_known

NOTE_CHARS = 4000
"""Characters of the notes on the columns of a database; later columns are left out."""


@dataclass(frozen=True)
class SqlFiles:
    """Where a split lies, below the folder of its set."""

    questions: tuple[str, ...]
    """Files of which at least one must be there."""
    databases: str
    """The folder of the databases."""


@dataclass(frozen=True)
class SqlSet:
    """A set of questions over SQLite databases."""

    splits: Mapping[str, SqlFiles]
    """By name, the default first."""
    read: Callable[[RawRow, Path, str], Task]
    """From a record, the folder of the databases and an id to a task."""


def load_sql_set(
    name: str, folder: Path, *, split: str | None = None, problems: list[str] | None = None
) -> tuple[Task, ...]:
    """The tasks of ``spider`` or ``bird``, with ``gold``, ``databases`` and ``db_id`` in ``data``.

    Questions over one database are a cluster for intervals: a policy that misreads its schema errs in many of them.

    Args:
        name: Which set.
        folder: The folder of the set, or the one that its files lie in below a folder of that name.
        split: Which split; None takes the set's default.
        problems: Takes one sentence for each malformed record, which is then left out; where None, the first is raised.

    Raises:
        UnknownName: no such set or split.
        DatasetError: files are missing, or a record is malformed.
    """
    check_known("SQL set", name, SQL_SETS)
    kind = SQL_SETS[name]
    split = split or next(iter(kind.splits))
    check_known(f"split of {name}", split, kind.splits)
    home = folder / name if (folder / name).is_dir() else folder
    files = kind.splits[split]
    present = [home / file for file in files.questions if (home / file).is_file()]
    if not present:
        raise DatasetError(f"{home} holds no {' and no '.join(files.questions)}: it is no folder of {name}.")
    tasks: list[Task] = []
    for path in present:
        for number, record in enumerate(read_records(path, problems=problems)):
            try:
                task = kind.read(record, home / files.databases, f"{name}/{path.stem}/{number}")
            except DatasetError as error:
                if problems is None:
                    raise
                problems.append(str(error))
                continue
            tasks.append(Task(task.id, task.question, task.answers, split, task.data))
    return tuple(tasks)


def spider(record: RawRow, databases: Path, key: str) -> Task:
    """A record of Spider: ``db_id``, ``question`` and ``query``; its parse and its tokens are not needed."""
    data = _over(record, databases) | {"gold": record.text("query")}
    return Task(key, record.text("question"), ("",), data=data)


def bird(record: RawRow, databases: Path, key: str) -> Task:
    """A record of BIRD: ``SQL`` is the gold query, ``evidence`` is shown below the question.

    Scores are listed by ``difficulty``. ``question_id`` names it where it is there, as in the split dev.
    """
    data = _over(record, databases) | {"gold": record.text("SQL")}
    if record.fields.get("difficulty"):
        data["family"] = record.text("difficulty")
    if "question_id" in record.fields:
        key = f"{key.rpartition('/')[0]}/{record.id('question_id')}"
    question, evidence = record.text("question"), record.fields.get("evidence") or ""
    if not isinstance(evidence, str):
        raise DatasetError(f"{record.place}: evidence must be text, not {evidence!r}.")
    if notes := column_notes(databases / str(data["db_id"]) / "database_description"):
        data["notes"] = notes
    return Task(
        key, f"{question}\nEvidence: {evidence.strip()}" if evidence.strip() else question, ("",), data=data
    )


def _over(record: RawRow, databases: Path) -> dict[str, object]:
    """The entries of ``data`` that name the databases: the file of that name first, then the others of its folder."""
    name = record.text("db_id")
    if Path(name).name != name or name in (".", ".."):
        raise DatasetError(f"{record.place}: db_id must be the name of a folder, not {name!r}.")
    first = databases / name / f"{name}.sqlite"
    if not first.is_file():
        raise DatasetError(f"{record.place}: {first} is missing.")
    others = (path for path in sorted(first.parent.glob("*.sqlite")) if path != first)
    return {"databases": tuple(map(str, (first, *others))), "db_id": name, "cluster": f"database {name}"}


def column_notes(folder: Path) -> str:
    """What BIRD's tables say about the columns of a database: a line for each, such as ``frpm.cdscode: CDSCode``.

    Raises:
        DatasetError: a file is no table.
    """
    lines: list[str] = []
    for path in sorted(folder.glob("*.csv")):
        lines += (f"{path.stem}.{line}" for line in _described(path))
    text = ""
    for line in lines:
        if len(text) + len(line) + 1 > NOTE_CHARS:
            break
        text += line + "\n"
    return text.rstrip("\n")


def _described(path: Path) -> Iterator[str]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {reason_of(error)}.") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:  # some of the published files are in the encoding of Windows
        text = raw.decode("cp1252", "replace")
    try:
        for row in csv.DictReader(io.StringIO(text)):
            column = (row.get("original_column_name") or "").strip()
            said = [
                " ".join(str(row.get(name) or "").split())
                for name in ("column_description", "value_description")
            ]
            if column and any(said):
                yield f"{column}: {'; '.join(one for one in said if one)}"
    except csv.Error as error:
        raise DatasetError(f"{path} is no table: {reason_of(error)}.") from error


SQL_SETS: Mapping[str, SqlSet] = {
    "spider": SqlSet(
        {
            "dev": SqlFiles(("dev.json",), "database"),
            "train": SqlFiles(("train_spider.json", "train_others.json"), "database"),
            "test": SqlFiles(("test.json",), "test_database"),
        },
        spider,
    ),
    "bird": SqlSet(
        {
            "dev": SqlFiles(("dev.json",), "dev_databases"),
            "train": SqlFiles(("train.json",), "train_databases"),
        },
        bird,
    ),
}
"""The sets by name."""
