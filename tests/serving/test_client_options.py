"""What a hostile client may choose for an episode: no environment opens a file, an address or a class that it names.

A monitor of the interpreter's audit events sees every file, database and address that is opened in this process.
"""

import contextlib
import json
import logging
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

import agentenv
from agentenv.core.env import run_sync
from agentenv.core.registry import registered
from agentenv.core.types import Task
from agentenv.envs.calculator import Calculator
from agentenv.envs.sql import Sql
from agentenv.errors import ConfigurationError, Fault, MissingExtra
from agentenv.serving import client_options
from agentenv.serving.client_options import ClientOptions
from agentenv.serving.remote import RemoteEnv

ENVS = [name for name in registered() if name.startswith("agentenv/")]
_watched: list[tuple[str, list[str]]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _watched and event in (
        "open",
        "os.listdir",
        "os.scandir",
        "sqlite3.connect",
        "socket.connect",
        "import",
    ):
        mark, seen = _watched[-1]
        if any(mark in str(argument) for argument in arguments):
            seen.append(event)


sys.addaudithook(_audit)


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """An SQLite file that nobody is to open, and a list of the times when somebody does."""
    path = tmp_path / "zzsecret.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE salaries (name TEXT, salary INT)")
    connection.commit()
    connection.close()
    seen: list[str] = []
    _watched.append(("zzsecret", seen))
    yield path, seen
    _watched.pop()


def made(name: str) -> Any:
    """The environment, or a skip where this machine lacks what it needs."""
    try:
        return agentenv.make(name)
    except (MissingExtra, ConfigurationError, Fault) as error:
        pytest.skip(f"{name} cannot be made here: {error}")


def attacks(place: str) -> Iterator[dict[str, Any]]:
    """Options that name ``place`` wherever an environment might look for a file, an address, an executor or a class."""
    names = (
        "databases",
        "page",
        "recording",
        "retriever",
        "executor",
        "prelude",
        "tests",
        "image",
        "file",
        "url",
    )
    for value in (place, [place], {"path": place}, f"file://{place}", f"../../../../{place}"):
        for name in names:
            yield {
                "task": {
                    "id": "a",
                    "question": "b",
                    "answers": ["c"],
                    "data": {"gold": "SELECT 1", name: value},
                }
            }
            yield {name: value}
    yield {"task": place}
    yield {"task": {"id": place}}
    yield {"task": {"id": "x", "data": {"databases": [place], "gold": "SELECT 1"}, "question": "q"}}


@pytest.mark.parametrize("whole_tasks", [False, True])
@pytest.mark.parametrize("name", ENVS)
def test_no_environment_opens_what_a_client_names(
    name: str, whole_tasks: bool, secret: tuple[Path, list[str]]
) -> None:
    path, seen = secret
    env = made(name)
    options = ClientOptions(env, whole_tasks=whole_tasks)
    answers = []
    for place in (str(path), str(path.with_name("zzsecret-missing"))):
        said = []
        for attack in attacks(place):
            with pytest.raises(ConfigurationError) as error:
                options.read(attack)
            said.append(str(error.value).replace(place, "PLACE"))
        answers.append(said)
    assert answers[0] == answers[1]  # nothing tells whether a file exists
    assert seen == []
    env.close()


@pytest.mark.parametrize("name", ENVS)
def test_what_clients_may_set_is_plain_and_is_played_without_opening_it(
    name: str, secret: tuple[Path, list[str]]
) -> None:
    env = made(name)
    for declared in (env.client_data, env.client_options):
        kinds = leaves(tuple[tuple(declared.values())])  # type: ignore[misc]
        assert {kind if isinstance(kind, type) else type(kind) for kind in kinds} <= {str, int}
    place = str(secret[0])
    data = {key: filled(kind, place) for key, kind in env.client_data.items()}
    task = {"id": place, "question": place, "answers": [place], "split": place, "data": data}
    given = ClientOptions(env, whole_tasks=True).read({"task": task})
    assert given is not None
    # No such template or passage, which it says without looking there.
    with contextlib.suppress(ConfigurationError):
        run_sync(env.areset(seed=0, options=given))
    assert secret[1] == []
    env.close()


def leaves(kind: Any) -> Iterator[Any]:
    """The plain types that a declared type is made of."""
    if hasattr(kind, "__annotations__") and kind not in (str, int):
        parts = tuple(kind.__annotations__.values())
    else:
        parts = tuple(part for part in get_args(kind) if part is not Ellipsis)
    if not parts and get_origin(kind) is None and kind != ():
        yield kind
    for part in parts:
        yield from leaves(part)


def filled(kind: Any, text: str) -> Any:
    """A value of ``kind`` with ``text`` in it wherever a text stands."""
    if hasattr(kind, "__annotations__") and kind not in (str, int):
        return dict.fromkeys(kind.__annotations__, text)
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        return [filled(part, text) for part in parts if part is not Ellipsis]
    return text if kind is str or str in parts else 1


@pytest.mark.parametrize("named", ["exists", "missing"])
def test_a_served_database_cannot_be_named_by_a_client(
    serving: Any, secret: tuple[Path, list[str]], named: str
) -> None:
    place = secret[0] if named == "exists" else secret[0].with_name("zzsecret-missing")
    data = {"databases": [str(place)], "gold": "SELECT 1"}
    held = Sql.make_tasks(2)
    for whole in (False, True):
        with serving(lambda: Sql(tasks=held), client_tasks=whole) as served, served.call() as line:
            for task in (
                {"id": "mine", "question": "?", "answers": ["1"], "data": data},
                {"id": held[0].id, "question": held[0].question, "data": data},
                {"id": held[0].id, "data": {"databases": [str(place)]}},
            ):
                answer = line.ask("reset", options={"task": task})
                assert (answer["type"], answer["data"]["kind"]) == ("error", "ConfigurationError")
                assert "salaries" not in json.dumps(answer)
                assert str(place) not in json.dumps(answer)
            posed = line.ask("reset", options={"task": {"id": held[1].id}})
            assert posed["data"]["metadata"]["info"]["task_id"] == held[1].id


@pytest.mark.parametrize(
    "task",
    [
        {"question": 1},
        {"answers": ["a"]},
        {"question": "q", "answers": [1]},
        {"question": "q", "answers": {"a": 1}},
        {"question": "q", "answers": None},
        {"question": "q", "data": []},
        {"question": "q", "split": 7},
        {"question": "q", "colour": "red"},
        {"question": "q", "data": {"path": 1}},
        {"question": "q", "data": {"path": [{"entity": "e"}]}},
        {"question": "\ud800"},
        {"question": "q", "answers": ["\udfff"]},
        {"id": ["x"]},
        {},
        [],
        7,
        True,
    ],
)
def test_a_malformed_task_is_one_sentence_and_no_traceback(
    serving: Any, task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.DEBUG, "agentenv"),
        serving(lambda: agentenv.make("agentenv/LocalSearch-v0"), client_tasks=True, expert=True) as served,
        served.call() as line,
    ):
        answer = line.ask("reset", options={"task": task})
        assert answer["type"] == "error", answer
        assert answer["data"]["kind"] in ("ConfigurationError", "UnknownName")
        assert not answer["data"]["fault"]
        assert line.ask("reset", seed=1)["type"] == "observation"
    assert not [record for record in caplog.records if record.exc_info]


def test_a_remote_client_plays_held_tasks_and_is_told_of_others(serving: Any) -> None:
    held = Task("one", "1 + 1", ("2",), data={"hops": 1})

    class Holding(Calculator):
        def held_tasks(self) -> list[Task]:
            return [held]

    with serving(Holding) as served:
        env = RemoteEnv(served.url)
        assert env.reset(options={"task": held})[1]["task_id"] == "one"
        assert env.step("2").reward == 1.0
        for other in (Task("one", "2 + 2", ("2",)), Task("two", "1 + 1", ("2",))):
            with pytest.raises(ConfigurationError, match=other.id):
                env.reset(options={"task": other})
        with pytest.raises(ConfigurationError, match="colour"):
            env.reset(options={"colour": "red"})
        env.close()


def test_an_environment_says_which_options_clients_may_set() -> None:
    class Coloured(Calculator):
        client_options = {"colour": str}  # noqa: RUF012

    options = ClientOptions(Coloured(), whole_tasks=False)
    assert options.read({"colour": "red"}) == {"colour": "red"}
    assert (options.read(None), options.read({}), options.read({"task": None})) == (None, {}, {})
    with pytest.raises(ConfigurationError, match="colour"):
        options.read({"colour": ["red"]})


def test_a_client_that_asks_for_tasks_without_end_leaves_room_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_options, "_MOST_TASKS", 10)
    options = ClientOptions(Calculator(), whole_tasks=False)

    def some(start: int, count: int) -> list[Task]:
        return [Task(f"q{place}", f"q{place}") for place in range(start, start + count)]

    options.hold(some(0, 5), "greedy")
    with pytest.raises(ConfigurationError, match=r"\b5\b.*one client"):
        options.hold(some(5, 1), "greedy")
    options.hold(some(0, 5), "greedy")  # these are held already
    options.hold(some(5, 5), "other")
    with pytest.raises(ConfigurationError, match=r"\b10\b"):
        options.hold(some(10, 1), "third")
