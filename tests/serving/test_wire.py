"""What is sent and what comes out at the other end: every registered environment's steps, and what cannot travel."""

import contextlib
import json
import re
import sqlite3
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentenv
from agentenv.core.types import EndReason, Message, MessagePart, Step, Task, ToolResult, ToolStatus
from agentenv.errors import (
    AgentEnvError,
    ConfigurationError,
    EnvFault,
    EpisodeOver,
    MissingExtra,
    RetrieverFault,
    SandboxFault,
    SnapshotRefused,
)
from agentenv.serving.rows import DatasetRow, Episodes, rows
from agentenv.serving.wire import (
    error_in,
    error_out,
    info_in,
    observation_in,
    opening_out,
    options_in,
    options_out,
    plain,
    read_json,
    step_in,
    step_out,
)


def sent(data: dict[str, Any]) -> Any:
    return read_json(json.dumps(data, allow_nan=False))


def as_sent(value: Any) -> Any:
    """What tuples within ``info`` become; its typed entries stay what they are."""
    return info_in(sent(plain(value)))


@pytest.mark.parametrize("id", [id for id in agentenv.registered() if id.startswith("agentenv/")])
def test_steps_of_every_registered_environment_travel(id: str) -> None:
    elsewhere = ("Code-v0", "Browser-v0", "MCP-v0", "AgentProgram-v0", "Terminal-v0")
    if id.removeprefix("agentenv/") in elsewhere:
        pytest.skip("needs a sandbox, a browser, a server or an agent; its records are those of the others")
    try:
        env = agentenv.make(id)
    except MissingExtra as error:
        pytest.skip(str(error))
    try:
        observation, info = env.reset(seed=0)
        opening = sent(opening_out(observation, info, env.anchor_key()))
        assert observation_in(opening["observation"]) == observation
        assert (opening["reward"], opening["metadata"]["info"]) == (None, sent(plain(info)))
        for action in env.expert() or ("no action",):
            step = env.step(action)
            back = step_in(sent(step_out(step, env.anchor_key())))
            assert back[:4] == step[:4]
            assert back.info == as_sent(step.info)
            assert [type(r) for r in back.info["tool_results"]] == [
                type(r) for r in step.info["tool_results"]
            ]
    finally:
        env.close()


def test_a_step_with_everything_travels() -> None:
    observation = (
        Message("system", "\ud83d and \x00"),
        Message("user", (MessagePart("text", "see"), MessagePart("image", image=b"\x89PNG\xff"))),
        Message("tool", "42", name="find", call_id="call_1"),
    )
    result = ToolResult("find", ToolStatus.TIMEOUT, "late", "TimeoutError", {"ids": ["a"]})
    info = {"turn": 1, "valid": True, "tool_results": (result,), "end_reason": EndReason.TURN_LIMIT}
    step = Step(observation, 0.1 + 0.2, False, True, info)
    assert step_in(sent(step_out(step, "key"))) == step
    assert sent(step_out(step, "key"))["observation"]["text"] == "\ud83d and \x00see42"


class Level(IntEnum):
    LOW = 1


@dataclass
class Point:
    x: int
    y: tuple[int, ...]


@pytest.mark.parametrize(
    ("value", "sends"),
    [
        (Level.LOW, 1),
        (EndReason.ANSWERED, "answered"),
        (Point(1, (2, 3)), {"x": 1, "y": [2, 3]}),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        ({1: (None, True)}, {"1": [None, True]}),
        (Path("/a/b"), "/a/b"),
    ],
)
def test_plain(value: Any, sends: Any) -> None:
    assert plain(value) == sends
    assert json.dumps(plain(value)) == json.dumps(sends)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), np.float64("nan"), object(), b"x", {"a": [{1}]}]
)
def test_what_has_no_form_in_json_is_a_fault(value: Any) -> None:
    with pytest.raises(EnvFault, match=r"of type \w+"):
        plain(value)
    with pytest.raises(ConfigurationError, match=r"\breset\b.*of type \w+"):
        options_out({"value": value})


def test_a_reward_that_is_no_number_is_a_fault() -> None:
    info = {"turn": 1, "valid": True, "tool_results": ()}
    with pytest.raises(EnvFault, match=r"\bnan\b"):
        step_out(Step((), float("nan"), True, False, info), None)


@pytest.mark.parametrize(
    "error",
    [
        RetrieverFault("gone"),
        SandboxFault("no jail"),
        EpisodeOver("over"),
        SnapshotRefused("threads"),
        ConfigurationError("no answers"),
        AgentEnvError("any"),
    ],
)
def test_our_errors_arrive_as_what_they_were(error: AgentEnvError) -> None:
    back = error_in(sent(error_out(error)), "http://server")
    assert (type(back), str(back)) == (type(error), str(error))


def test_other_peoples_errors_arrive_as_faults() -> None:
    told = error_out(ZeroDivisionError("division by zero"))
    assert (told["fault"], type(error_in(told, "http://server"))) == (True, EnvFault)
    for strange in (
        {},
        {"kind": "BaseException", "code": "EXECUTION_ERROR"},
        {"kind": "difflib", "message": 3},
    ):
        assert type(error_in(strange, "http://server")) is EnvFault


def test_a_token_that_a_server_repeats_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_SERVE_TOKEN", "s3cret-of-mine")
    said = error_in(error_out(EnvFault("s3cret-of-mine is no token")), "http://x")
    assert str(said) == "*** is no token"


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_a_number_that_is_none_is_no_json(number: str) -> None:
    assert read_json("[1e300, 2]") == [1e300, 2]
    with pytest.raises(ValueError, match=re.escape(number)):
        read_json(f'{{"reward": {number}}}')


def test_a_task_travels() -> None:
    task = Task("t", "What?", ("a", "b"), "dev", {"hops": 2})
    assert options_in(sent({"o": options_out({"task": task, "k": 1})})["o"]) == {"task": task, "k": 1}
    assert options_in({"task": {"question": "What?", "answers": "a"}}) == {
        "task": Task("What?", "What?", ("a",))
    }
    assert (options_in(None), options_in({})) == (None, {})
    with pytest.raises(ConfigurationError, match="question"):
        options_in({"task": {"colour": "red"}})


def test_rows_are_read_as_they_were_written() -> None:
    task = Task("t", "What?", ("a",), data={"hops": 2})
    (posed,) = rows(tasks=[task])
    read = DatasetRow.read(posed | {"prompt": [], "another column": 1})
    assert (read.seed, read.task) == (None, plain(task))
    assert [DatasetRow.read(row).seed for row in rows(seeds=[1, 2])] == [1, 2]
    with pytest.raises(ConfigurationError, match=r"agentenv/Calculator-v0.*'k'"):
        Episodes("agentenv/Calculator-v0", {"k": 3}).make()
    with pytest.raises(ConfigurationError, match="-1"):
        DatasetRow.read({"seed": -1})


STRANGE: dict[str, list[Any]] = {
    "env": ["agentenv/SQL-v0", "remote:http://127.0.0.1:9", ""],
    "arguments": [{"executor": "unsafe-local"}, '{"retriever": "http://127.0.0.1:9"}', "{}", {}],
}


@pytest.mark.parametrize(
    ("column", "value"), [(column, value) for column, values in STRANGE.items() for value in values]
)
def test_a_row_chooses_neither_environment_nor_arguments(column: str, value: Any) -> None:
    for row in (*rows(seeds=[1]), *rows(tasks=[Task("t", "20 * 3", ("60",))])):
        with pytest.raises(ConfigurationError, match=column):
            DatasetRow.read(row | {column: value})


def test_a_row_shows_an_environment_only_what_that_declares() -> None:
    played = Episodes("agentenv/LocalSearch-v0")
    env = played.make()
    strange = {"executor": "unsafe-local", "retriever": "http://127.0.0.1:9", "databases": ["/etc/passwd"]}
    (row,) = rows(tasks=[Task("t", "Who?", ("a",), data=strange)])
    assert played.options(env, DatasetRow.read(row)) == {"task": Task("t", "Who?", ("a",))}
    held = env.held_tasks()[0]
    for posed in ({"id": held.id}, plain(held)):
        assert played.options(env, DatasetRow(task=posed)) == {"task": held}
    with pytest.raises(ConfigurationError, match="nobody"):
        played.options(env, DatasetRow(task={"id": "nobody"}))
    env.close()


def test_a_row_makes_no_sql_environment_open_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE salaries (salary INT)")
    task = Task("s", "How much?", ("1",), data={"databases": [str(path)], "gold": "SELECT 1", "level": 1})
    (row,) = rows(tasks=[task])
    played = Episodes("agentenv/SQL-v0")
    env = played.make()
    with pytest.raises(ConfigurationError):
        env.reset(seed=0, options=played.options(env, DatasetRow.read(row)))
    env.close()
    own = Episodes("agentenv/SQL-v0", tasks=[task])  # whoever trains may name files
    assert own.options(env, DatasetRow.read(row)) == {"task": task}
    # As paths, as generated databases are named, they travel as the same texts.
    named = replace(task, data={**task.data, "databases": (path,)})
    assert rows(tasks=[named]) == [row]
    held = Episodes("agentenv/SQL-v0", tasks=[named])
    assert held.options(env, DatasetRow.read(row)) == {"task": named}
    (changed,) = rows(tasks=[Task("s", "How much?", ("2",), data=task.data)])
    assert own.options(env, DatasetRow.read(changed)) == {"task": Task("s", "How much?", ("2",))}
