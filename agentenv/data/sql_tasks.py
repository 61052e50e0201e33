"""Questions to be answered by SQL, by the thousand: generated databases, templated questions, verified gold queries.

Every gold query was run when the task was made: it gives rows on every database of the task, other rows on each twin than on
the file that is shown (so that no constant is right), and what it orders or chooses by is never equal.
"""

import atexit
import functools
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from agentenv.core.io.temporary import temporary_folder
from agentenv.core.types import Task
from agentenv.data.sql_databases import write_databases
from agentenv.data.sql_domains import DOMAINS, Domain
from agentenv.data.sql_questions import TEMPLATES, QuestionContext, SQLQuestion, TemplateMismatch
from agentenv.data.world_config import Split
from agentenv.errors import ConfigurationError, check_known

LEVELS = tuple(TEMPLATES)
MAX_ROWS = 60
PATIENCE = 200
"""Drafts in a row that may fail before the databases count as used up."""


def generate_sql_tasks(
    n: int,
    *,
    seed: int = 0,
    split: Split = "train",
    levels: Sequence[int] = LEVELS,
    databases: int = 6,
    domains: Mapping[str, Domain] | None = None,
    folder: Path | None = None,
) -> tuple[Task, ...]:
    """``n`` tasks, the same for the same arguments, with ``databases``, ``gold``, ``level`` and ``kind`` in ``data``.

    Args:
        n: How many.
        seed: Which.
        split: Splits share no domain, no database and no invented name.
        levels: Difficulty: 1 one table, 2 aggregates and order, 3 joins, 4 groups, 5 subqueries.
        databases: How many different databases they are about.
        domains: What these are about, in turn; None is the domains of the split.
        folder: Where the files are written; None is a folder that goes away with this process.

    Raises:
        ConfigurationError: a number out of range, or more questions than the databases have.
        UnknownName: no such split.
    """
    check_known("split", split, DOMAINS)
    if n < 1 or databases < 1 or not levels or not set(levels) <= set(LEVELS):
        raise ConfigurationError(
            f"n={n} and databases={databases} must be at least 1, levels={tuple(levels)} some of {LEVELS}"
        )
    home = folder or process_folder()
    home.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"sql {split} {seed} {tuple(levels)}")
    subjects = DOMAINS[split] if domains is None else domains
    worlds = [_World(subjects, split, seed, index, home) for index in range(databases)]
    tasks: list[Task] = []
    with ExitStack() as stack:
        drafts = [world.drafts(stack, rng, tuple(levels)) for world in worlds]
        for index in range(n):
            chosen = rng.randrange(databases)
            level, kind, draft = next(drafts[chosen])
            data = {
                "databases": worlds[chosen].paths,
                "gold": draft.gold,
                "level": level,
                "kind": kind,
                "domain": worlds[chosen].name,
            }
            tasks.append(Task(f"sql-{split}-{seed}-{index}", draft.question, ("",), split, data))
    return tuple(tasks)


@functools.cache
def process_folder() -> Path:
    """A folder that is removed when this process ends."""
    stack = ExitStack()
    folder = stack.enter_context(temporary_folder("sql"))
    atexit.register(stack.close)
    return folder


class _World:
    """One database with its twins."""

    def __init__(
        self, subjects: Mapping[str, Domain], split: Split, seed: int, index: int, folder: Path
    ) -> None:
        names = sorted(subjects)
        self.name = names[(seed + index) % len(names)]
        self.domain = subjects[self.name]
        # As paths and not as texts: a digest of the tasks takes the content then, and the folder is another in each process.
        self.paths = write_databases(self.domain, f"{split}-{seed}-{index}-{self.name}", split, folder)

    def drafts(
        self, stack: ExitStack, rng: random.Random, levels: tuple[int, ...]
    ) -> Iterator[tuple[int, str, SQLQuestion]]:
        """Endless verified questions, none twice."""
        connections = [stack.enter_context(closing(sqlite3.connect(path))) for path in self.paths]
        context, seen, failed = QuestionContext(self.domain, connections[0], rng), set(), 0
        while failed < PATIENCE:
            level = rng.choice(levels)
            template = rng.choice(TEMPLATES[level])
            failed += 1
            try:
                draft = template(context)
            except TemplateMismatch:
                continue
            if draft.question not in seen and fits(draft, connections):
                failed = 0
                seen.add(draft.question)
                yield level, template.__name__, draft
        raise ConfigurationError(
            f"a {self.name} database has {len(seen)} questions of levels {levels}; ask fewer or raise databases"
        )


def fits(draft: SQLQuestion, connections: Sequence[sqlite3.Connection]) -> bool:
    """Whether the gold query has an answer everywhere, only one, and another one on every twin."""
    results = [connection.execute(draft.gold).fetchall() for connection in connections]
    if not all(0 < len(rows) <= MAX_ROWS and (None,) not in rows and rows != [(0,)] for rows in results):
        return False
    if any(Counter(rows) == Counter(results[0]) for rows in results[1:]):
        return False
    if draft.keys:
        for connection in connections:
            keys = [row[0] for row in connection.execute(draft.keys).fetchall()[: draft.first]]
            if len(set(keys)) < len(keys):
                return False
    return True
