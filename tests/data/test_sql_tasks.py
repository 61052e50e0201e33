"""Generated databases and questions: reproducible, sound, graded, apart by split; no constant is right; golds recomputed."""

import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentenv.core.io.digests import value_digest
from agentenv.core.types import Task
from agentenv.data import sql_questions
from agentenv.data.sql_databases import TWINS, write_databases
from agentenv.data.sql_domains import DOMAINS, LEAGUE
from agentenv.data.sql_questions import TEMPLATES, QuestionContext, SQLQuestion, quoted
from agentenv.data.sql_tasks import LEVELS, fits, generate_sql_tasks, process_folder
from agentenv.data.world_config import SPLITS
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.sandbox.sql import SqlReader
from agentenv.sandbox.sql_grading import grade_query

KINDS = {template.__name__: level for level, templates in TEMPLATES.items() for template in templates}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Task, ...]]:
    folder = tmp_path_factory.mktemp("sql")
    return {split: generate_sql_tasks(150, split=split, folder=folder) for split in SPLITS}


def rows(path: str, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_equal_arguments_give_equal_tasks_and_bytes(tmp_path: Path) -> None:
    first = generate_sql_tasks(20, seed=3, databases=2, folder=tmp_path / "one")
    second = generate_sql_tasks(20, seed=3, databases=2, folder=tmp_path / "two")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(names) == 2 * (TWINS + 1)
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert [(t.id, t.question, t.data["gold"]) for t in first] == [
        (t.id, t.question, t.data["gold"]) for t in second
    ]
    other = generate_sql_tasks(20, seed=4, databases=2, folder=tmp_path / "one")
    assert [t.question for t in other] != [t.question for t in first]


def test_the_digest_of_tasks_is_of_what_their_databases_hold_and_not_of_where_they_lie(
    tmp_path: Path,
) -> None:
    """A run is resumed in another process, whose databases lie in another folder."""
    first, second = (generate_sql_tasks(4, databases=1, folder=tmp_path / name) for name in ("one", "two"))
    assert first[0].data["databases"] != second[0].data["databases"]
    assert value_digest(first) == value_digest(second)
    changed = second[0].data["databases"][0]
    changed.chmod(0o644)
    changed.write_bytes(b"another")
    assert value_digest(first) != value_digest(second)


def test_splits_share_no_domain_no_file_and_no_name(tasks: dict[str, tuple[Task, ...]]) -> None:
    seen: dict[str, set[str]] = {}
    for split in SPLITS:
        files = {path for task in tasks[split] for path in task.data["databases"]}
        tables = {
            str(row) for path in files for row in rows(path, "SELECT sql FROM sqlite_master WHERE sql > ''")
        }
        domains = {task.data["domain"] for task in tasks[split]}
        assert domains == set(DOMAINS[split])
        seen[split] = files | tables | domains | {task.question for task in tasks[split]}
    assert len(set().union(*seen.values())) == sum(map(len, seen.values()))


def test_every_kind_of_question_occurs_at_its_level(tasks: dict[str, tuple[Task, ...]]) -> None:
    found = {task.data["kind"]: task.data["level"] for split in SPLITS for task in tasks[split]}
    assert found == KINDS
    hard = generate_sql_tasks(10, levels=(5,), databases=1)
    assert {task.data["level"] for task in hard} == {5}
    assert Path(hard[0].data["databases"][0]).parent == process_folder()


def test_references_hold_and_files_are_read_only(tasks: dict[str, tuple[Task, ...]]) -> None:
    for path in {path for task in tasks["train"] for path in task.data["databases"]}:
        assert rows(path, "PRAGMA foreign_key_check") == []
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]
        assert Path(path).stat().st_mode & 0o222 == 0


def test_a_gold_query_is_right_and_its_own_result_written_down_is_not(
    tasks: dict[str, tuple[Task, ...]],
) -> None:
    with SqlReader() as reader:
        for task in tasks["dev"][:50]:
            gold, databases = task.data["gold"], task.data["databases"]
            assert grade_query(reader, gold, gold, databases).all_matched
            shown = rows(databases[0], gold)
            constant = ", ".join(f"({', '.join(map(written, row))})" for row in shown)
            assert grade_query(reader, f"VALUES {constant}", gold, databases).matches == (True, False, False)


def written(value: object) -> str:
    return quoted(value) if isinstance(value, str) else repr(value)


@pytest.mark.parametrize(
    "query", ["SELECT 0", "SELECT 1", "SELECT NULL", "SELECT count(*) FROM sqlite_master"]
)
def test_a_guess_solves_nothing(query: str, tasks: dict[str, tuple[Task, ...]]) -> None:
    with SqlReader() as reader:
        for task in tasks["test"][:20]:
            assert not grade_query(reader, query, task.data["gold"], task.data["databases"]).all_matched


def table(path: str, name: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {name}")]


def most_children(path: str) -> list[tuple[Any, ...]]:
    counts = Counter(row["team_id"] for row in table(path, "players"))
    return [(row["name"],) for row in table(path, "teams") if row["id"] == counts.most_common(1)[0][0]]


def childless(path: str) -> list[tuple[Any, ...]]:
    used = {row["team_id"] for row in table(path, "players")}
    return [(row["name"],) for row in table(path, "teams") if row["id"] not in used]


def best_of_each(path: str) -> list[tuple[Any, ...]]:
    groups = defaultdict(list)
    for row in table(path, "players"):
        groups[row["team_id"]].append((row["age"], row["name"]))
    return [(row["name"], max(groups[row["id"]])[1]) for row in table(path, "teams") if row["id"] in groups]


def above_average(path: str) -> list[tuple[Any, ...]]:
    ages = [row["age"] for row in table(path, "players")]
    return [(row["name"],) for row in table(path, "players") if row["age"] > sum(ages) / len(ages)]


@pytest.mark.parametrize(
    ("template", "question", "answer"),
    [
        (sql_questions.most_children, "Which team has the most players? Give its name.", most_children),
        (sql_questions.childless, "Give the name of every team that has no players at all.", childless),
        (
            sql_questions.best_of_each,
            "For each team that has any players, give its name and the name of the one among its players with the "
            "highest age.",
            best_of_each,
        ),
        (
            sql_questions.above_average,
            "List the name of all players whose age is above the average age of all players.",
            above_average,
        ),
    ],
)
def test_a_gold_query_says_what_its_question_says(
    template: Callable[[QuestionContext], SQLQuestion],
    question: str,
    answer: Callable[[str], list[tuple[Any, ...]]],
    tmp_path: Path,
) -> None:
    """The answer is computed here without SQL, in the first league of which the question can be asked."""
    for number in range(20):
        paths = [str(path) for path in write_databases(LEAGUE, f"league-{number}", "train", tmp_path)]
        with ExitStack() as stack:
            connections = [stack.enter_context(closing(sqlite3.connect(path))) for path in paths]
            drawn = (template(QuestionContext(LEAGUE, connections[0], Random(draw))) for draw in range(200))
            draft = next(draft for draft in drawn if draft.question == question)
            if fits(draft, connections):
                break
    assert [Counter(rows(path, draft.gold)) for path in paths] == [Counter(answer(path)) for path in paths]


@pytest.mark.parametrize(
    ("draft", "good"),
    [
        (SQLQuestion("", "SELECT a FROM t"), True),
        (SQLQuestion("", "SELECT a FROM t WHERE a > 5"), False),  # nothing on the first
        (SQLQuestion("", "SELECT max(a) FROM t WHERE a > 5"), False),  # NULL on the first
        (SQLQuestion("", "SELECT count(*) FROM t WHERE a > 5"), False),  # zero on the first
        (SQLQuestion("", "SELECT count(*) FROM t"), False),  # the same on both
        # A tie.
        (SQLQuestion("", "SELECT a FROM t ORDER BY b LIMIT 1", "SELECT b FROM t ORDER BY b", 2), False),
        (SQLQuestion("", "SELECT a FROM t ORDER BY b LIMIT 1", "SELECT b FROM t ORDER BY b", 1), True),
        (SQLQuestion("", "SELECT a FROM t ORDER BY b", "SELECT b FROM t ORDER BY b"), False),
    ],
)
def test_a_question_with_no_answer_or_several_is_not_asked(draft: SQLQuestion, good: bool) -> None:
    with closing(sqlite3.connect(":memory:")) as one, closing(sqlite3.connect(":memory:")) as two:
        for connection, values in ((one, [(1, 0), (2, 0)]), (two, [(6, 0), (7, 0)])):
            connection.execute("CREATE TABLE t (a, b)")
            connection.executemany("INSERT INTO t VALUES (?, ?)", values)
        assert fits(draft, (one, two)) is good


@pytest.mark.parametrize(
    "options", [{"n": 0}, {"n": 1, "databases": 0}, {"n": 1, "levels": (6,)}, {"n": 1, "levels": ()}]
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=rf"\bn={options['n']}\b"):
        generate_sql_tasks(**options)


def test_unknown_splits_and_used_up_databases_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="test"):
        generate_sql_tasks(1, split="tset")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"\(4,\)"):
        generate_sql_tasks(500, levels=(4,), databases=1, folder=tmp_path)
    assert LEVELS == (1, 2, 3, 4, 5)


FULL = """
import resource, signal, sys
from pathlib import Path
from agentenv.data.sql_tasks import generate_sql_tasks
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
try:
    generate_sql_tasks(1, split="train", folder=Path(sys.argv[1]))
except OSError as error:
    print(error.filename)
"""


def test_a_database_that_does_not_fit_is_an_error_of_the_system_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []
