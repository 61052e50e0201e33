"""Untrusted SQL: hostile queries end in typed results and leave the file alone; workers are reaped; grading."""

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.core.types import ToolStatus
from agentenv.errors import ConfigurationError, SandboxFault
from agentenv.sandbox import sql
from agentenv.sandbox.sql import MAX_QUERY, SqlReader, SqlResult
from agentenv.sandbox.sql_grading import gold_result, grade_query, orders, same_rows, time_limit

SCRIPT = """
CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, "größe" REAL);
CREATE VIEW v AS SELECT a, b FROM t;
CREATE TABLE secret (x);
"""


def database(path: Path, shift: int = 0) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCRIPT)
        rows = [(n, f"text {n + shift}", (n + shift) / 4) for n in range(300)]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        connection.commit()
    return path


@pytest.fixture(scope="module")
def reader() -> Iterator[SqlReader]:
    with SqlReader(cpu_s=0.1, memory_mb=24, workers=2) as made:
        yield made


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return database(tmp_path_factory.mktemp("a folder? with #marks%20") / "db.sqlite")


def test_rows_columns_and_values(reader: SqlReader, db: Path) -> None:
    query = (
        "SELECT a AS n, b, größe, NULL, x'00ff', CAST(x'ff' AS TEXT), 9e999 FROM t WHERE a < 3 ORDER BY a;"
    )
    result = reader.run(db, query, rows=2)
    assert result.columns[:3] == ("n", "b", "größe")
    assert result.rows == (
        (0, "text 0", 0.0, None, b"\x00\xff", "�", float("inf")),
        (1, "text 1", 0.25, None, b"\x00\xff", "�", float("inf")),
    )
    assert result.ok
    assert result.more


def test_bytes_are_bounded_too(reader: SqlReader, db: Path) -> None:
    result = reader.run(db, "SELECT printf('%900s', a) FROM t", size=2000)
    assert (len(result.rows), result.more) == (2, True)
    assert reader.run(db, "SELECT hex(printf('%900s', '')), 1", size=100).rows == ()


CROSS = "SELECT count(*) FROM t a, t b, t c, t d"
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
LONG = "replace(printf('%999999d', 1), ' ', 'a')"
HOSTILE = {
    "attach": ("ATTACH '/tmp/stolen.sqlite' AS s", "NotAllowed"),
    "detach": ("DETACH main", "NotAllowed"),
    "write schema": ("PRAGMA writable_schema = 1", "NotAllowed"),
    "query only off": ("PRAGMA query_only = 0", "NotAllowed"),
    "heap limit off": ("PRAGMA hard_heap_limit = 0", "NotAllowed"),
    "temp folder": ("PRAGMA temp_store_directory = '/tmp'", "NotAllowed"),
    "path of the file": ("SELECT file FROM pragma_database_list", "NotAllowed"),
    "load extension": ("SELECT load_extension('/tmp/x.so')", "NotAllowed"),
    "tokenizer": ("SELECT fts3_tokenizer('simple')", "NotAllowed"),
    "insert": ("INSERT INTO t VALUES (1, 2, 3)", "NotAllowed"),
    "update": ("UPDATE t SET b = ''", "NotAllowed"),
    "delete": ("DELETE FROM t", "NotAllowed"),
    "delete in a CTE": ("WITH x AS (SELECT 1) DELETE FROM t", "NotAllowed"),
    "drop": ("DROP TABLE t", "NotAllowed"),
    "create": ("CREATE TEMP TABLE z (a)", "NotAllowed"),
    "trigger": ("CREATE TEMP TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END", "NotAllowed"),
    "virtual table": ("CREATE VIRTUAL TABLE f USING fts5(x)", "NotAllowed"),
    "vacuum": ("VACUUM INTO '/tmp/copy.sqlite'", "NotAllowed"),
    "reindex": ("REINDEX", "NoQuery"),
    "analyze": ("ANALYZE", "NotAllowed"),
    "commit": ("COMMIT", "NotAllowed"),
    "savepoint": ("SAVEPOINT s", "NotAllowed"),
    "random bytes": ("SELECT randomblob(1000000000)", "NotAllowed"),
    "zero bytes": ("SELECT hex(zeroblob(1000000000))", "NotAllowed"),
    "clock": ("SELECT current_timestamp", "NotAllowed"),
    "chance": ("SELECT random()", "NotAllowed"),
    "table function": ("SELECT * FROM json_each('[1]')", "NotAllowed"),
    "statistics": ("SELECT * FROM dbstat", "NotAllowed"),
    "two statements": ("SELECT 1; SELECT 2", "ProgrammingError"),
    "a second statement after a comment": ("SELECT 1 /* ; */; -- ;\nDROP TABLE t", "ProgrammingError"),
    "only a comment": ("-- SELECT 1", "NoQuery"),
    "unclosed comment": ("/* SELECT 1", "NoQuery"),
    "nothing": ("", "NoQuery"),
    "no SQL": ("hello", "OperationalError"),
    "unknown table": ("SELECT * FROM ta\u0308glich", "OperationalError"),
    "unknown column": ('SELECT "größer".x FROM t', "OperationalError"),
    "zero byte": ("SELECT \x00 1", "ProgrammingError"),
    "surrogate": ("SELECT '\ud800'", "UnicodeEncodeError"),
    "parentheses": ("SELECT " + "(" * 4000 + "1" + ")" * 4000, "OperationalError"),
    "long sum": ("SELECT " + "+".join(["1"] * 4000), "OperationalError"),
    "long union": (" UNION ALL ".join(["SELECT 1"] * 400), "OperationalError"),
    "too long": ("SELECT 1" + " " * MAX_QUERY, "TooLong"),
    "huge value": (f"SELECT {LONG} || {LONG}", "DataError"),
    "cross join": (CROSS, "Timeout"),
    "recursion": (ENDLESS, "Timeout"),
    "recursion without a first row": (ENDLESS.replace("count(*)", "x") + " WHERE x < 0", "Timeout"),
    "one step that takes for ever": (f"SELECT instr({LONG}, substr({LONG}, 500000) || 'x')", "Timeout"),
    "memory of a sort": (
        "SELECT a.b || b.b || c.b FROM t a, t b, t c ORDER BY 1",
        ("OutOfMemory", "Timeout"),
    ),
    "memory of a recursion": (
        f"WITH RECURSIVE c(x) AS (SELECT {LONG} UNION SELECT x || '' FROM c UNION ALL SELECT substr(x, 2) FROM c) "
        "SELECT count(*) FROM c",
        ("OutOfMemory", "Timeout", "OperationalError"),
    ),
    "memory of many values": ("SELECT " + ", ".join([LONG] * 100), "OutOfMemory"),
}


def traces(db: Path) -> tuple[object, ...]:
    """All that a query could leave behind."""
    beside = sorted(path.name for path in db.parent.iterdir())
    return hashlib.sha256(db.read_bytes()).digest(), db.stat().st_mtime_ns, beside


@pytest.mark.parametrize("name", HOSTILE)
def test_h15_a_hostile_query_ends_in_a_typed_result_and_changes_nothing(
    name: str, reader: SqlReader, db: Path
) -> None:
    query, wanted = HOSTILE[name]
    before = traces(db)
    result = reader.run(db, query, rows=3)
    assert result.error_class in wanted if isinstance(wanted, tuple) else result.error_class == wanted
    assert (result.status is ToolStatus.TIMEOUT) == (result.error_class == "Timeout")
    assert not result.ok
    assert 0 < len(result.message) <= 300
    assert traces(db) == before
    assert reader.run(db, "SELECT count(*) FROM t").rows == ((300,),)


WORDS = """
    SELECT WITH RECURSIVE FROM WHERE UNION ALL VALUES ATTACH PRAGMA DELETE INSERT INTO UPDATE SET JOIN LIMIT EXPLAIN AS t v a
    b größe * ( ) , ; = + || 1 '' " -- /* */ x'00' count(*) randomblob(9) load_extension('x') pragma_table_info('t')
"""


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS.split()), max_size=12).map(" ".join)))
@settings(max_examples=150, deadline=None)
def test_any_text_at_all_ends_in_a_result(reader: SqlReader, db: Path, query: str) -> None:
    before = traces(db)
    result = reader.run(db, query, rows=3)
    assert result.ok == (not result.error_class)
    assert traces(db) == before


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 -- ; DROP TABLE t",
        "/* a */ SELECT 1;",
        "VALUES (1)",
        "SELECT count(*) FROM sqlite_master WHERE name = 'secret'",
        "SELECT a FROM v WHERE a = 1",
        "SELECT DISTINCT 1 FROM t WHERE b LIKE '%x%' GROUP BY a HAVING max(größe) >= 0 LIMIT 1",
        "SELECT sum(a) OVER (ORDER BY a) FROM t LIMIT 1 OFFSET 1",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 5) SELECT min(x) FROM c",
    ],
)
def test_reading_is_allowed(query: str, reader: SqlReader, db: Path) -> None:
    assert reader.run(db, query).rows == ((1,),)


def children() -> list[str]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += (task / "children").read_text(encoding="ascii").split()
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_workers_are_reaped_and_descriptors_do_not_grow(db: Path) -> None:
    before = (len(children()), descriptors())
    with SqlReader(workers=1) as reader:
        for _ in range(3):
            os.kill(worker_of(reader, db), signal.SIGKILL)
            assert reader.run(db, "SELECT 1").ok
            assert len(children()) <= before[0] + 1
    assert (len(children()), descriptors()) == before


def test_many_threads_share_a_reader_and_get_their_own_results(db: Path) -> None:
    with SqlReader(workers=2) as reader, ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda n: reader.run(db, f"SELECT b FROM t WHERE a = {n}").rows, range(100))
        assert list(found) == [((f"text {n}",),) for n in range(100)]
        assert len(reader._idle) <= 2


def worker_of(reader: SqlReader, db: Path) -> int:
    assert reader.run(db, "SELECT 1").ok
    return reader._idle[-1]._process.pid


def test_a_worker_that_died_by_itself_costs_the_query_nothing(db: Path) -> None:
    with SqlReader() as reader:
        os.kill(worker_of(reader, db), signal.SIGKILL)
        assert reader.run(db, "SELECT 1").ok


def test_a_query_that_ends_every_worker_is_charged_and_one_that_cannot_start_is_not(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "worker.py"
    monkeypatch.setattr(sql, "WORKER", script)
    with SqlReader() as reader:
        script.write_text("import os; input(); os.kill(os.getpid(), 11)", encoding="ascii")
        assert reader.run(db, "SELECT 1").error_class == "Crash"
        script.write_text("import no_such_module", encoding="ascii")
        with pytest.raises(SandboxFault, match=r"\b1\b"):
            reader.run(db, "SELECT 1")


def test_workers_end_with_their_owner_however_it_ends(db: Path) -> None:
    code = (
        "import os, sys; from agentenv.sandbox.sql import SqlReader; reader = SqlReader()\n"
        "reader.run(sys.argv[1], 'SELECT 1'); print(reader._idle[0]._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(db)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    end = time.monotonic() + 10
    while alive(int(done.stdout)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(int(done.stdout))


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def test_a_worker_that_is_silent_is_our_fault(db: Path) -> None:
    with SqlReader() as reader:
        os.kill(worker_of(reader, db), signal.SIGSTOP)
        reader._hang_timeout_s = 0.05
        with pytest.raises(SandboxFault, match="silent"):
            reader.run(db, "SELECT 1")
        reader._hang_timeout_s = 30.0
        assert reader.run(db, "SELECT 1").ok


def test_a_reply_to_another_query_is_never_taken(db: Path) -> None:
    with SqlReader() as reader:
        worker_of(reader, db)
        process = reader._idle[-1]._process
        assert process.stdin is not None
        process.stdin.write(
            b'{"id": "other", "uri": "file::memory:", "query": "", "rows": 1, "bytes": 1, "cpu_s": 1}\n'
        )
        with pytest.raises(SandboxFault):
            reader.run(db, "SELECT 1")


def test_a_file_that_cannot_be_read_is_our_fault(reader: SqlReader, tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_text("no database at all, but long enough for a header" * 100, encoding="ascii")
    for path in (broken, tmp_path / "missing.sqlite"):
        with pytest.raises(SandboxFault, match=path.name):
            reader.run(path, "SELECT 1")
    assert not (tmp_path / "missing.sqlite").exists()


@pytest.mark.parametrize("options", [{"cpu_s": 0}, {"memory_mb": 0}, {"workers": -1}])
def test_bounds_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        SqlReader(**options)


def rows(*values: tuple[object, ...]) -> SqlResult:
    return SqlResult(ToolStatus.OK, ("x",) * len(values[0]), values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "wanted", "ordered", "same"),
    [
        (rows((1,), (2,)), rows((2,), (1,)), False, True),
        (rows((1,), (2,)), rows((2,), (1,)), True, False),
        (rows((1,), (1,), (2,)), rows((1,), (2,), (2,)), False, False),
        (rows((1,), (1,)), rows((1,)), False, False),
        (rows((1, "a")), rows(("a", 1)), False, False),
        (rows((1, 1)), rows((1,)), False, False),
        (rows((2.0,)), rows((2,)), False, True),
        (rows((0.1 + 0.2,)), rows((0.3,)), False, True),
        (rows((0.31,)), rows((0.3,)), False, False),
        (rows((10**15 + 1,)), rows((10**15,)), False, False),
        (rows(("2",)), rows((2,)), False, False),
        (rows((None,)), rows((0,)), False, False),
        (rows((None,)), rows((None,)), False, True),
        (rows((b"a",)), rows(("a",)), False, False),
        (rows((float("inf"),)), rows((float("inf"),)), False, True),
    ],
)
def test_h16_results_are_multisets_and_ordered_where_asked(
    found: SqlResult, wanted: SqlResult, ordered: bool, same: bool
) -> None:
    assert same_rows(found, wanted, ordered=ordered) is same
    assert same_rows(wanted, found, ordered=ordered) is same


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t order\n  by a limit 1", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
        ("SELECT a FROM (SELECT ')' FROM t) ORDER BY 1", True),
        ("SELECT sum(a) OVER (ORDER BY a) FROM t", False),
        (
            "SELECT 'order by', \"order by\", [order by], `order by` -- order by\n FROM t /* order by */",
            False,
        ),
        ("SELECT 'it''s' FROM t ORDER BY 1", True),
        ("SELECT reorder FROM t", False),
    ],
)
def test_what_counts_as_ordered(query: str, ordered: bool) -> None:
    assert orders(query) is ordered


def test_a_query_is_right_on_every_database_or_not_at_all(
    reader: SqlReader, db: Path, tmp_path: Path
) -> None:
    twin = database(tmp_path / "twin.sqlite", shift=7)
    gold = "SELECT b FROM t WHERE a = 1"
    for query, matches in (
        ("SELECT b FROM v WHERE a < 2 AND a > 0", (True, True)),
        ("SELECT 'text 1'", (True, False)),
        ("SELECT b FROM t", (False, False)),
        ("SELECT c FROM t", (False, False)),
    ):
        grade = grade_query(reader, query, gold, (db, twin))
        assert (grade.matches, grade.all_matched) == (matches, all(matches))
    with pytest.raises(SandboxFault, match="'SELECT c FROM t'"):
        grade_query(reader, gold, "SELECT c FROM t", (db,))
    with pytest.raises(ConfigurationError):
        grade_query(reader, gold, gold, ())


SLOW = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT max(i) FROM n"
)
"""Takes a second or so: longer than the deadline of ``reader`` on a fast machine, less than ten seconds on a slow one."""


def test_a_query_has_a_fifth_and_ten_seconds_more_than_the_gold_query() -> None:
    assert [time_limit(t) for t in (0.0, 5.0, 100.0)] == [10.0, 16.0, 130.0]


def test_a_gold_query_slower_than_the_readers_deadline_is_graded(reader: SqlReader, db: Path) -> None:
    """The policy's limit follows from it unless it is given, and the gold query has a bound of its own."""
    assert reader.run(db, SLOW).error_class == "Timeout"
    wanted = gold_result(reader, SLOW, db)
    assert (wanted.rows, wanted.cpu_s > 0.1) == (((3_000_000,),), True)
    assert reader.run(db, "SELECT 1").cpu_s < 0.1
    assert grade_query(reader, SLOW, SLOW, (db,)).all_matched
    bounded = grade_query(reader, SLOW, "SELECT 3000000", (db,), query_s=0.05)
    assert (bounded.first_result.error_class, bounded.matches) == ("Timeout", (False,))
    with pytest.raises(SandboxFault, match="too long"):
        grade_query(reader, "SELECT 3000000", SLOW, (db,), gold_s=0.05)


def test_rows_of_one_hash_are_compared_like_any(tmp_path: Path) -> None:
    """Of numbers with one hash, rows of several columns make as many as a query likes: counting them would never end."""
    same_hash = (
        "WITH RECURSIVE f(i, x) AS (SELECT 0, 1.0 UNION ALL SELECT i + 1, x * 2305843009213693952.0 FROM f WHERE i < 15) "
        "SELECT a.x, b.x, c.x FROM f a, f b, f c"
    )
    with closing(sqlite3.connect(tmp_path / "empty.sqlite")) as made:
        made.execute("VACUUM")
    with SqlReader(workers=1) as reader:
        forward = reader.run(tmp_path / "empty.sqlite", same_hash, rows=5000)
        backward = reader.run(
            tmp_path / "empty.sqlite", f"{same_hash} ORDER BY 1 DESC, 2 DESC, 3 DESC", rows=5000
        )
    assert len({hash(row) for row in forward.rows}) < len(forward.rows) == 4096
    assert same_rows(forward, backward, ordered=False)
    assert not same_rows(forward, backward, ordered=True)


def test_rows_of_every_type_are_compared_without_order() -> None:
    rows = (
        (None, 1, "a"),
        (b"x", 1.0, None),
        ("a", 2.5, b""),
        (3, None, "b"),
        (3.0, None, "b"),
        (float("inf"), -1, ""),
    )
    found, wanted = (SqlResult(ToolStatus.OK, ("a", "b", "c"), given) for given in (rows, rows[::-1]))
    assert same_rows(found, wanted, ordered=False)
    for other in ((*rows[:-1], rows[0]), (*rows[:-1], (None, None, None)), (*rows[:-1], ("inf", -1, ""))):
        assert not same_rows(found, SqlResult(ToolStatus.OK, ("a", "b", "c"), other), ordered=False)
