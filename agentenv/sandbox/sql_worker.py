"""The process that runs untrusted SQL: one read-only connection per query, with limits that no query can remove.

The owner runs it as a script. It reads one JSON request per line and writes one JSON reply per line. It imports only the
standard library and cannot write files.
"""

import json
import resource
import signal
import sqlite3
import sys
import time
from typing import Any

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
# The functions that a query may call: none reads a clock, draws random numbers or leaves the database.
_NAMES = """
    abs acos asin atan atan2 avg ceil ceiling char coalesce concat concat_ws cos count cume_dist degrees dense_rank exp
    first_value floor format glob group_concat hex ifnull iif instr lag last_value lead length like ln log log10 log2 lower
    ltrim max min mod nth_value ntile nullif octet_length percent_rank pi pow power printf quote radians rank replace round
    row_number rtrim sign sin sqrt string_agg substr substring sum tan total trim trunc typeof unicode upper
"""
FUNCTIONS = frozenset(_NAMES.split())
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,  # bytes of one value
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
BROKEN = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CANTOPEN", "SQLITE_IOERR")
STEPS = 1000  # steps of SQLite's virtual machine between two checks of the time
MESSAGE = 300  # characters
MOST_READS = 1000  # largest number of reported tables and columns


def main(memory_mb: int) -> None:
    """Answers requests until its input is closed."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    limit = memory_mb << 20
    # Set and read back, because an SQLite version without this pragma silently ignores it.
    granted = sqlite3.connect(":memory:").execute(f"PRAGMA hard_heap_limit = {limit}").fetchone()
    if granted != (limit,):
        sys.exit(f"SQLite {sqlite3.sqlite_version} cannot bound its memory; 3.31 or newer is needed")
    for line in sys.stdin:
        request = json.loads(line)
        _limit_processor_time(request["cpu_s"])
        sys.stdout.write(json.dumps(answer(request) | {"id": request["id"]}) + "\n")
        sys.stdout.flush()


def _limit_processor_time(seconds: float) -> None:
    """Makes the kernel end this process if a single step of a query exceeds the progress handler's deadline."""
    # The soft limit counts from the start of the process, which serves many queries. The hard limit is not lowered, because
    # it could not be raised again.
    soft = int(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs ``request["query"]`` on the database at ``request["uri"]``.

    Returns:
        ``columns``, ``rows``, whether there are ``more``, what it ``reads``, and the times ``seconds`` (wall clock) and
        ``cpu_s`` (processor); or ``error`` (a class) and ``message``; or ``fault`` if the database itself cannot be read.
    """
    refused: list[str] = []
    reads: set[tuple[str, str]] = set()
    try:
        connection = _open(request["uri"])
    except sqlite3.Error as error:
        return {"fault": str(error)}
    try:
        _confine(connection, refused, reads, request["cpu_s"])
        began, began_cpu = time.perf_counter(), time.process_time()
        cursor = connection.execute(request["query"])
        if cursor.description is None:
            return {"error": "NoQuery", "message": "there is no SELECT in it"}
        rows, more = _fetch(cursor, request["rows"], request["bytes"])
        columns = [column[0] for column in cursor.description]
        found = {"columns": columns, "rows": rows, "more": more, "reads": sorted(reads)[:MOST_READS]}
        return found | {
            "seconds": time.perf_counter() - began,
            "cpu_s": time.process_time() - began_cpu,
        }
    except Exception as error:  # any error is a failure of the query
        return _failure(error, refused)
    finally:
        connection.close()


def _open(uri: str) -> sqlite3.Connection:
    """Opens a connection and reads the schema."""
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        # Text in a file may not be UTF-8, and a decoding error would count as a failure of the query.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        connection.execute("PRAGMA query_only = 1")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA trusted_schema = 0")
        # Read before the authorizer and the limits apply, because an error here is caused by the file and not by a query.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _confine(
    connection: sqlite3.Connection, refused: list[str], reads: set[tuple[str, str]], cpu_s: float
) -> None:
    """Sets limits, authorizer and deadline; refused functions are recorded for the message, and reads for the answer."""

    def authorize(action: int, table: str | None, name: str | None, *__: str | None) -> int:
        if action == sqlite3.SQLITE_READ:
            reads.add((str(table).lower(), str(name or "").lower()))
        if action in READS or (action == sqlite3.SQLITE_FUNCTION and str(name).lower() in FUNCTIONS):
            return sqlite3.SQLITE_OK
        refused.append(
            f"the function {name} is not allowed"
            if action == sqlite3.SQLITE_FUNCTION
            else "only SELECT over the tables of this database is allowed"
        )
        return sqlite3.SQLITE_DENY

    for category, limit in LIMITS.items():
        connection.setlimit(category, limit)
    # Processor time instead of wall-clock time, so that load on the machine has no influence.
    end = time.process_time() + cpu_s
    connection.set_progress_handler(lambda: time.process_time() > end, STEPS)
    connection.set_authorizer(authorize)


def _fetch(cursor: sqlite3.Cursor, most: int, room: int) -> tuple[list[Any], bool]:
    """Returns at most ``most`` rows with at most ``room`` bytes together, and whether there are more."""
    rows: list[Any] = []
    for row in cursor:
        room -= sum(len(cell) if isinstance(cell, (str, bytes)) else 8 for cell in row)
        if len(rows) == most or room < 0:
            return rows, True
        rows.append([{"blob": cell.hex()} if isinstance(cell, bytes) else cell for cell in row])
    return rows, False


def _failure(error: Exception, refused: list[str]) -> dict[str, Any]:
    kind, name, text = type(error).__name__, getattr(error, "sqlite_errorname", ""), str(error)
    if refused:
        return {"error": "NotAllowed", "message": refused[0]}
    if name == "SQLITE_INTERRUPT":
        return {"error": "Timeout", "message": "the query took too long"}
    if isinstance(error, MemoryError) or name == "SQLITE_IOERR_NOMEM":
        return {"error": "OutOfMemory", "message": "the query needed too much memory"}
    if name.startswith(BROKEN):
        return {"fault": text}
    return {"error": kind, "message": text[:MESSAGE]}


if __name__ == "__main__":
    main(int(sys.argv[1]))
