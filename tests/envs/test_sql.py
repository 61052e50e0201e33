"""SQL-v0: what is shown to the byte, what is scored, mistakes of the policy, faults, time travel."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.env import Env
from agentenv.core.env_contract import EnvContract
from agentenv.core.types import EndReason, Task, ToolStatus
from agentenv.data.sql_tasks import generate_sql_tasks
from agentenv.envs.sql import CORRECTION, FORM, Sql
from agentenv.envs.sql_rewards import REWARDS
from agentenv.errors import ConfigurationError, DatasetError, SandboxFault
from agentenv.sandbox.sql import SqlReader

GOLD = "SELECT name FROM city WHERE size > 10 ORDER BY size DESC"


class TestContract(EnvContract):
    def make(self) -> Env[Any]:
        return Sql(tasks=generate_sql_tasks(8, databases=2))


@pytest.fixture
def task(tmp_path: Path) -> Task:
    paths = []
    for copy, sizes in enumerate(((5, 20, 30), (40, 1, 20))):
        paths.append(str(tmp_path / f"{copy}.sqlite"))
        with closing(sqlite3.connect(paths[-1])) as connection:
            connection.execute("CREATE TABLE city (name TEXT, size INTEGER)")
            connection.executemany("INSERT INTO city VALUES (?, ?)", zip("abc", sizes, strict=True))
            connection.commit()
    return Task("cities", "Large cities?", ("",), data={"databases": tuple(paths), "gold": GOLD})


def begun(task: Task, **options: Any) -> Sql:
    env = Sql(tasks=(task,), **options)
    env.reset(seed=0)
    return env


def test_the_opening_shows_the_schema_and_no_row(task: Task) -> None:
    (message,), info = begun(task).reset(seed=0)
    assert message.text.endswith(
        "Schema:\nCREATE TABLE city (name TEXT, size INTEGER);\nQuestion: Large cities?\n"
    )
    assert info == {"task_id": "cities"}


def test_a_wrong_query_in_the_right_form_is_paid_in_training_and_is_not_solved(task: Task) -> None:
    """Think2SQL pays .15 for the form, SQL-R1 more than 1 for a long reply; an evaluation counts right queries alone."""
    wrong, right = "<think>t</think><submit>SELECT 9</submit>", f"<think>t</think><submit>{GOLD}</submit>"
    step = begun(task, reward="think2sql").step(wrong)
    assert step.reward == pytest.approx(0.15)
    assert step.info["solved"] is False
    step = begun(task, reward="sql_r1_length").step(right)
    assert step.reward > 1
    assert step.info["solved"] is True
    assert Sql.scorers == ("solved", "reward")


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("SELECT * FROM city", "name | size\na | 5\nb | 20\n[there are more rows]"),
        ("```sql\nSELECT NULL AS n, x'01ff' AS b, 0.5;\n```", "n | b | 0.5\nNULL | x'01ff' | 0.5"),
        ("SELECT name FROM city WHERE size < 0", "name\n[no rows]"),
        ("SELECT nme FROM city", "OperationalError: no such column: nme"),
        ("DROP TABLE city", "NotAllowed: only SELECT over the tables of this database is allowed"),
    ],
)
def test_an_observation_to_the_byte(task: Task, query: str, text: str) -> None:
    step = begun(task, rows=2).step(f"<sql>{query}</sql>")
    assert step.observation[0].text == f"\n<result>\n{text}\n</result>\n"
    assert (step.reward, step.terminated, step.truncated) == (0.0, False, False)


def test_the_status_of_a_turn_is_typed(task: Task) -> None:
    env = begun(task)
    for query, status, kind in (
        ("SELECT 1", ToolStatus.OK, ""),
        ("SELECT", ToolStatus.ERROR, "OperationalError"),
        ("PRAGMA writable_schema = 1", ToolStatus.ERROR, "NotAllowed"),
    ):
        (result,) = env.step(f"<sql>{query}</sql>").info["tool_results"]
        assert (result.name, result.status, result.error_class) == ("sql", status, kind)


def test_observations_are_bounded(task: Task) -> None:
    env = begun(task, rows=1000, observation_chars=200)
    text = (
        env.step("<sql>SELECT a.name, b.size, c.size FROM city a, city b, city c</sql>").observation[0].text
    )
    assert len(text) < 270
    assert "characters left out" in text
    assert len(env.step("<sql>SELECT printf('%5000s', 1)</sql>").observation[0].text) < 270


@pytest.mark.parametrize(
    ("query", "reward", "passed", "kind"),
    [
        (GOLD, 1.0, 2, ""),
        ("```sql\nSELECT c.name AS x FROM city AS c WHERE size >= 11 ORDER BY -size;\n```", 1.0, 2, ""),
        ("SELECT name FROM city WHERE size > 10 ORDER BY size", 0.0, 0, "WrongResult"),
        ("VALUES ('c'), ('b')", 0.0, 1, "WrongResult"),
        ("SELECT name, size FROM city WHERE size > 10 ORDER BY size DESC", 0.0, 0, "WrongResult"),
        ("SELECT nme FROM city", 0.0, 0, "OperationalError"),
        ("", 0.0, 0, "NoQuery"),
    ],
)
def test_what_the_gold_query_gives_on_every_database_earns_one(
    task: Task, query: str, reward: float, passed: int, kind: str
) -> None:
    step = begun(task).step(f"<submit>{query}</submit>")
    assert (step.reward, step.terminated, step.info["end_reason"]) == (reward, True, EndReason.SUBMITTED)
    assert (step.info["passed"], step.info["tests"]) == (passed, 2)
    assert step.info["tool_results"][0].error_class == kind


@pytest.mark.parametrize("action", ["", "SELECT 1", "<sql>SELECT 1", "</submit>", "<answer>b</answer>"])
def test_h18_an_action_without_a_complete_block_is_corrected(task: Task, action: str) -> None:
    step = begun(task).step(action)
    assert step.observation[0].text == CORRECTION.format(probe="sql", final="submit")
    assert step.info["valid"] is False
    assert step.info["tool_results"][0].status is ToolStatus.FORMAT_ERROR


def test_the_last_turn_takes_only_a_final_query(task: Task) -> None:
    env = begun(task, max_turns=1)
    env.step("<sql>SELECT 1</sql>")
    assert env.fork()[0].step(f"<submit>{GOLD}</submit>").reward == 1.0
    step = env.step("<sql>SELECT 1</sql>")
    assert (step.truncated, step.info["end_reason"], step.reward) == (True, EndReason.TURN_LIMIT, 0.0)


def test_a_gold_query_that_fails_is_our_fault_and_never_scored(task: Task) -> None:
    broken = Task("broken", "?", ("",), data={**task.data, "gold": "SELECT absent FROM city"})
    with pytest.raises(SandboxFault, match="absent"):
        begun(broken).step("<submit>SELECT 1</submit>")


def test_a_slow_gold_query_gives_the_policy_as_long_or_what_is_set(task: Task) -> None:
    """The reader alone would end the query after .05 s, of which it needs several times as much."""
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000) SELECT max(i) FROM n"
    lasting = Task("slow", "?", ("",), data={**task.data, "gold": slow})
    with SqlReader(cpu_s=0.05, workers=1) as reader:
        env = begun(lasting, reader=reader)
        assert env.step(f"<sql>{slow}</sql>").observation[0].text == "\n<result>\nmax(i)\n400000\n</result>\n"
        assert env.step(f"<submit>{slow}</submit>").reward == 1.0
        env = begun(lasting, reader=reader, query_s=0.02)
        assert "Timeout" in env.step(f"<sql>{slow}</sql>").observation[0].text
        step = env.step(f"<submit>{slow}</submit>")
    assert (step.reward, step.info["tool_results"][0].status) == (0.0, ToolStatus.TIMEOUT)


def test_equal_results_give_one_key_however_they_were_reached(task: Task) -> None:
    env = begun(task)
    left, right = env.fork(2)
    for one, queries in ((left, ("1", "2")), (right, ("2", "1", "1"))):
        for value in queries:
            one.step(f"<sql>SELECT {value} AS x</sql>")
    assert left.anchor_key() == right.anchor_key() != env.anchor_key()


def test_bad_arguments_and_tasks_are_named(task: Task, tmp_path: Path) -> None:
    for options in (
        {"prompt": "x"},
        {"rows": 0},
        {"observation_chars": 0},
        {"max_turns": -1},
        {"query_s": 0.0},
        {"query_s": float("nan")},
        {"query_s": float("inf")},
    ):
        with pytest.raises(ConfigurationError):
            Sql(tasks=(task,), **options)
    for data in ({}, {"databases": task.data["databases"]}, {"databases": (), "gold": GOLD}):
        with pytest.raises(DatasetError, match="'bare'"):
            begun(Task("bare", "?", ("",), data=data))
    with pytest.raises(SandboxFault, match="gone"):
        begun(Task("gone", "?", ("",), data={"databases": (str(tmp_path / "gone"),), "gold": GOLD}))


@pytest.mark.parametrize("reward", REWARDS)
def test_the_expert_earns_all_that_a_reward_pays_but_for_looking(task: Task, reward: str) -> None:
    env = begun(task, reward=reward)
    earned = sum(env.step(action).reward for action in env.expert())
    # Its answer is the query alone.
    bonus = 1 + 0.5 * sum(len(action.split()) for action in env.expert()) / 2048
    most = {"reex": 8 / 9, "sql_r1_length": 1 + bonus / 6}  # it looks once, and reex asks for two looks
    assert earned == pytest.approx(most.get(reward, 1.0))


def test_a_reward_that_looks_at_the_form_says_so(task: Task) -> None:
    (plain,), _ = begun(task).reset(seed=0)
    (formed,), _ = begun(task, reward={"format": 1.0, "execution": 3.0}).reset(seed=0)
    assert formed.text == plain.text + FORM
    (own,), _ = begun(task, reward="arctic", prompt="{question}").reset(seed=0)
    assert own.text == "Large cities?"
