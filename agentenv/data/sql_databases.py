"""SQLite files with invented rows: one that the policy sees, and twins of it with other values under the same labels.

Labels, words and the schema are the same in a twin, so every question can be asked of it; attributes and references are
drawn anew, so the answers differ.
"""

import os
import random
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from agentenv.core.io.files import os_errors, put_in_place
from agentenv.data.sql_domains import Column, Domain, SQLTable
from agentenv.data.world_config import Split
from agentenv.data.world_names import NameGenerator

TWINS = 2
ROWS = {0: 10, 1: 30, 2: 60}
"""Rows of a table by the length of its longest chain of parents."""


def write_databases(domain: Domain, name: str, split: Split, folder: Path) -> tuple[Path, ...]:
    """Writes ``name.sqlite`` and its twins into ``folder``; the same bytes for the same arguments and SQLite.

    Args:
        domain: The tables.
        name: Seed of all values, and name of the files.
        split: Whose invented names to use.
        folder: Where to write; files that are there are replaced.

    Returns:
        The file that is shown, then its twins.

    Raises:
        OSError: one cannot be written, because the disk is full for example.
    """
    labels = _labels(domain, random.Random(f"labels {name}"), split)
    paths = []
    for copy in range(TWINS + 1):
        path = folder / (f"{name}-{copy}.sqlite" if copy else f"{name}.sqlite")
        draft = path.with_suffix(f".{os.getpid()}.draft")
        draft.unlink(missing_ok=True)
        try:
            with os_errors():
                _fill(draft, domain, labels, random.Random(f"values {name} {copy}"))
        except OSError as error:
            draft.unlink(missing_ok=True)
            error.filename = str(path)
            raise
        draft.chmod(0o444)
        put_in_place(draft, path)
        paths.append(path)
    return tuple(paths)


def depth(table: SQLTable, domain: Domain) -> int:
    """Tables between ``table`` and the farthest one that it refers to."""
    parents = [other for other in domain if other.one in table.parents]
    return max((1 + depth(parent, domain) for parent in parents), default=0)


def _labels(domain: Domain, rng: random.Random, split: Split) -> dict[str, list[str]]:
    """The labels of every table, by its ``many``."""
    namer = NameGenerator(rng, split)
    found = {}
    for table in domain:
        count = ROWS[depth(table, domain)]
        if len(table.naming) == 1:
            numbers = rng.sample(range(100, 1000), count)
            found[table.many] = [f"{table.naming}-{number}" for number in numbers]
        else:
            found[table.many] = [namer.name(table.naming) for _ in range(count)]
    return found


def _fill(path: Path, domain: Domain, labels: Mapping[str, list[str]], rng: random.Random) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for table in domain:
            connection.execute(_create(table, domain))
            width = 2 + len(table.words) + len(table.numbers) + len(table.parents)
            places = ", ".join("?" * width)
            rows = _rows(table, domain, labels, rng)
            connection.executemany(f"INSERT INTO {table.many} VALUES ({places})", rows)
        connection.execute("COMMIT")


def _create(table: SQLTable, domain: Domain) -> str:
    columns = [f"{table.label} TEXT NOT NULL UNIQUE"]
    columns += [f"{column.name} TEXT NOT NULL" for column in table.words]
    columns += [f"{c.name} {'REAL' if c.decimals else 'INTEGER'} NOT NULL" for c in table.numbers]
    for parent in table.parents:
        many = next(other.many for other in domain if other.one == parent)
        columns.append(f"{parent}_id INTEGER NOT NULL REFERENCES {many} (id)")
    return f"CREATE TABLE {table.many} (id INTEGER PRIMARY KEY, {', '.join(columns)})"


def _rows(
    table: SQLTable, domain: Domain, labels: Mapping[str, list[str]], rng: random.Random
) -> Iterator[tuple[int | float | str, ...]]:
    # One parent in eight has no child, so that questions about those have an answer.
    parents = []
    for parent in table.parents:
        count = len(labels[next(other.many for other in domain if other.one == parent)])
        parents.append(rng.sample(range(1, count + 1), count - max(1, count // 8)))
    for number, label in enumerate(labels[table.many], 1):
        words = [rng.choice(column.choices) for column in table.words]
        numbers = [_number(column, rng) for column in table.numbers]
        yield (number, label, *words, *numbers, *(rng.choice(ids) for ids in parents))


def _number(column: Column, rng: random.Random) -> int | float:
    if column.decimals:
        return round(rng.uniform(column.low, column.high), column.decimals)
    return rng.randint(column.low, column.high)
