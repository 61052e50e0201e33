"""Decides whether a query is right: its result equals that of the gold query on every database of the task.

Rows are compared as a multiset, and in order only if the gold query orders them; columns are compared by position,
regardless of their names. A query may be right on one database by chance, or by containing the values that an earlier query
showed. So a task may have further databases that the policy never sees (test-suite accuracy, Zhong et al. 2020,
arXiv:2010.02840).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentenv.core.scoring.tables import rounded
from agentenv.errors import ConfigurationError, SandboxFault
from agentenv.sandbox.sql import SqlReader, SqlResult, Value

MAX_ROWS = 10_000
GOLD_S = 120.0
"""Processor time limit of a gold query on one database in seconds."""


def time_limit(gold_s: float) -> float:
    """Returns 1.2 t + 10: the processor time limit of a query whose gold query takes t (Think2SQL, arXiv:2504.15077)."""
    return 1.2 * gold_s + 10.0


@dataclass(frozen=True, slots=True)
class SqlGrade:
    """The grade of a query."""

    first_result: SqlResult
    """The query's result on the first database."""
    matches: tuple[bool, ...]
    """Whether it matched, for each database."""
    results: tuple[tuple[SqlResult, SqlResult], ...] = ()
    """The results of the query and of the gold query on each database, up to the first failure."""

    @property
    def all_matched(self) -> bool:
        """Whether it matched on every database."""
        return bool(self.matches) and all(self.matches)


def grade_query(
    reader: SqlReader,
    query: str,
    gold: str,
    databases: Sequence[str | Path],
    *,
    query_s: float | None = None,
    gold_s: float = GOLD_S,
) -> SqlGrade:
    """Runs ``gold`` and ``query`` on every database, each with its own connection, up to the first failure of ``query``.

    Args:
        reader: Runs the queries.
        query: The submitted, untrusted query.
        gold: The gold query.
        databases: SQLite files, at least one.
        query_s: Processor time limit of ``query`` on one database; None uses the ``time_limit`` for the gold query.
        gold_s: Processor time limit of ``gold`` on one database.

    Raises:
        ConfigurationError: there is no database.
        SandboxFault: a database cannot be read, or the gold query fails or returns more than ``MAX_ROWS`` rows.
    """
    ordered, matches = orders(gold), [False] * len(databases)
    first_result: SqlResult | None = None
    results: list[tuple[SqlResult, SqlResult]] = []
    for index, database in enumerate(databases):
        wanted = gold_result(reader, gold, database, gold_s)
        limit = time_limit(wanted.cpu_s) if query_s is None else query_s
        found = reader.run(database, query, rows=MAX_ROWS, cpu_s=limit)
        first_result = first_result or found
        if not found.ok:
            break
        results.append((found, wanted))
        matches[index] = same_rows(found, wanted, ordered=ordered)
    if first_result is None:
        raise ConfigurationError("no database is given: a query is graded on at least one")
    return SqlGrade(first_result, tuple(matches), tuple(results))


def gold_result(reader: SqlReader, gold: str, database: str | Path, cpu_s: float = GOLD_S) -> SqlResult:
    """Runs the gold query within ``cpu_s`` seconds of processor time.

    Raises:
        SandboxFault: the database cannot be read, or the query fails or returns more than ``MAX_ROWS`` rows.
    """
    wanted = reader.run(database, gold, rows=MAX_ROWS, cpu_s=cpu_s)
    if not wanted.ok or wanted.more:
        raise SandboxFault(f"the gold query {gold!r} cannot be graded: {wanted.message or 'too many rows'}")
    return wanted


def same_set(found: SqlResult, wanted: SqlResult) -> bool:
    """BIRD's execution accuracy: whether both results are equal as sets of rows, ignoring order and duplicates."""
    if found.more or not found.ok or not wanted.ok:
        return False
    ours, theirs = ({repr(tuple(map(rounded, row))) for row in result.rows} for result in (found, wanted))
    return ours == theirs


def same_rows(found: SqlResult, wanted: SqlResult, *, ordered: bool) -> bool:
    """Whether two results have the same rows including duplicates, and in the same order if ``ordered``."""
    if found.more or len(found.columns) != len(wanted.columns) or len(found.rows) != len(wanted.rows):
        return False
    ours, theirs = ([tuple(map(rounded, row)) for row in result.rows] for result in (found, wanted))
    # Sorted instead of counted, because a query could return many numbers with the same hash, which makes counting slow.
    return ours == theirs if ordered else sorted(ours, key=_rank) == sorted(theirs, key=_rank)


_KINDS = {type(None): 0, int: 1, float: 1, str: 2, bytes: 3}


def _rank(row: tuple[Value, ...]) -> list[tuple[int, Value]]:
    """Returns a key for sorting rows of any values: only values of the same kind are compared."""
    return [(_KINDS[type(cell)], 0 if cell is None else cell) for cell in row]


_PIECES = re.compile(
    r"""--[^\n]* | /\*.*?(?:\*/|\Z)             # comments
      | '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | \[[^\]]*(?:\]|\Z)   # text and quoted names
      | (?P<open>\() | (?P<close>\)) | (?P<order>\border\s+by\b)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def orders(query: str) -> bool:
    """Whether ``query`` orders its own rows: an ORDER BY outside of parentheses, texts, quoted names and comments."""
    depth = 0
    for piece in _PIECES.finditer(query):
        depth += bool(piece["open"]) - bool(piece["close"])
        if piece["order"] and depth == 0:
            return True
    return False
