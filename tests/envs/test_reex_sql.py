"""ReExSQL-v0: the tags and limits of ReEx-SQL, and what its episodes earn."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.env import Env
from agentenv.core.env_contract import EnvContract
from agentenv.core.types import EndReason, Task
from agentenv.data.sql_tasks import generate_sql_tasks
from agentenv.envs.reex_sql import ReExSQL
from agentenv.envs.sql import Sql

GOLD = "SELECT name FROM city WHERE size > 10"
LOOK = "<intermediate_sql>{}</intermediate_sql>"


class TestContract(EnvContract):
    def make(self) -> Env[Any]:
        return ReExSQL(tasks=generate_sql_tasks(8, databases=2))


@pytest.fixture
def task(tmp_path: Path) -> Task:
    path = str(tmp_path / "one.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE city (name TEXT, size INTEGER)")
        connection.executemany(
            "INSERT INTO city VALUES (?, ?)", zip("abcde", (5, 20, 30, 40, 50), strict=True)
        )
        connection.commit()
    return Task("cities", "Large cities?", ("",), data={"databases": (path,), "gold": GOLD})


def begun(task: Task, **options: Any) -> ReExSQL:
    env = ReExSQL(tasks=(task,), **options)
    env.reset(seed=0)
    return env


def test_a_result_shows_the_columns_and_three_rows(task: Task) -> None:
    env = begun(task)
    text = env.step("<think>look</think>" + LOOK.format("SELECT * FROM city")).observation[0].text
    assert text == "\n<result>\nname | size\na | 5\nb | 20\nc | 30\n[there are more rows]\n</result>\n"
    wrong = env.step(LOOK.format("SELECT nme FROM city")).observation[0].text
    assert wrong == "\n<result>\nOperationalError: no such column: nme\n</result>\n"
    assert "<final_sql>" in env.step("SELECT 1").observation[0].text


@pytest.mark.parametrize(
    ("looks", "final", "earned"),
    [
        (["SELECT * FROM city", "SELECT max(size) FROM city"], GOLD, 9),
        (["SELECT * FROM city", "select *  from city;"], GOLD, 8),  # one query in two spellings is one probe
        (["SELECT 1", "SELECT 2"], GOLD, 7),  # they read nothing
        (["SELECT nme FROM city"] * 2, GOLD, 7),
        ([], GOLD, 7),
        (["SELECT * FROM city", "SELECT max(size) FROM city"], "SELECT name FROM city", 2 + 4 / 5),
        ([], "SELECT c.name FROM city c WHERE c.size >= 11", 6),  # right in other words
        ([], "SELECT", 2),
    ],
    ids=["two-probes", "same-probe", "no-table", "failed-probes", "none", "wrong", "other-words", "no-query"],
)
def test_what_an_episode_earns_in_ninths(task: Task, looks: list[str], final: str, earned: float) -> None:
    env = begun(task)
    actions = [*(LOOK.format(query) for query in looks), f"<final_sql>{final}</final_sql>"]
    actions[0] = "<think>so</think>" + actions[0]
    rewards = [env.step(action).reward for action in actions]
    assert rewards[:-1] == [0.0] * len(looks)
    assert rewards[-1] == pytest.approx(earned / 9)


def test_one_action_out_of_form_costs_everything(task: Task) -> None:
    env = begun(task)
    env.step(LOOK.format("SELECT 1"))  # no thought before it
    assert env.step(f"<final_sql>{GOLD}</final_sql>").reward == 0.0


def test_ten_turns_and_then_the_final_query(task: Task) -> None:
    env = begun(task)
    steps = [env.step("<think>a</think>" + LOOK.format("SELECT 1")) for _ in range(11)]
    assert [step.truncated for step in steps] == [False] * 10 + [True]
    assert steps[-1].info["end_reason"] is EndReason.TURN_LIMIT


def test_silence_costs_what_giving_up_costs(task: Task) -> None:
    """A reward that punishes an episode without a query does so where the context is full, too."""
    env = Sql(tasks=(task,), reward="sql_r1", max_turns=0)
    env.reset(seed=0)
    assert env.cut_reward() == pytest.approx(-1 / 6)
    assert env.step("nothing").reward == pytest.approx(-1 / 6)


def test_a_vote_is_what_the_shown_database_gives_and_nothing_of_the_gold(task: Task) -> None:
    votes = {}
    for query in (GOLD, "SELECT name FROM city WHERE size >= 20 ORDER BY size DESC", "SELECT 1", "SELECT"):
        step = begun(task).step(f"<final_sql>{query}</final_sql>")
        votes[query] = step.info["vote"]
        assert step.info["answer"] == query
    first, second, other, none = votes.values()
    assert first == second != other
    assert none is None


def test_notes_of_a_task_stand_below_the_schema(task: Task) -> None:
    noted = Task(task.id, task.question, task.answers, data={**task.data, "notes": "city.size: in thousands"})
    (message,), _ = begun(noted).reset(seed=0)
    assert "INTEGER);\nNotes on its columns:\ncity.size: in thousands\nQuestion:" in message.text
