"""Spider and BIRD: hand-written files in the official layouts become tasks; whatever is malformed has its sentence."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentenv.data.sources import SourceConfig, check_source, open_source
from agentenv.data.sql_sets import NOTE_CHARS, column_notes, load_sql_set
from agentenv.envs.sql import Sql
from agentenv.errors import DatasetError, UnknownName
from agentenv.evaluation.benchmark import Benchmark


def database(path: Path, ages: tuple[int, int] = (20, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE singer (name TEXT, age INTEGER)")
        connection.executemany("INSERT INTO singer VALUES (?, ?)", zip(("Ann", "Bob"), ages, strict=True))
        connection.commit()


def spider_record(**changes: Any) -> dict[str, Any]:
    """As in the files of Spider, with the parse shortened."""
    return {
        "db_id": "concert_singer",
        "query": "SELECT count(*) FROM singer",
        "query_toks": ["SELECT", "count", "(", "*", ")", "FROM", "singer"],
        "query_toks_no_value": ["select", "count", "(", "*", ")", "from", "singer"],
        "question": "How many singers do we have?",
        "question_toks": ["How", "many", "singers", "do", "we", "have", "?"],
        "sql": {"from": {"table_units": [["table_unit", 1]], "conds": []}, "select": [False, []]},
    } | changes


def bird_record(**changes: Any) -> dict[str, Any]:
    return {
        "question_id": 7,
        "db_id": "concert_singer",
        "question": "Who is old?",
        "evidence": "old refers to age > 30",
        "SQL": "SELECT name FROM singer WHERE age > 30",
        "difficulty": "simple",
    } | changes


TABLES = [
    {
        "db_id": "concert_singer",
        "table_names": ["singer"],
        "table_names_original": ["singer"],
        "column_names": [[-1, "*"], [0, "name"], [0, "age"]],
        "column_names_original": [[-1, "*"], [0, "name"], [0, "age"]],
        "column_types": ["text", "text", "number"],
        "primary_keys": [1],
        "foreign_keys": [],
    }
]


@pytest.fixture
def spider(tmp_path: Path) -> Path:
    home = tmp_path / "spider"
    database(home / "database" / "concert_singer" / "concert_singer.sqlite")
    (home / "tables.json").write_text(json.dumps(TABLES))
    (home / "dev.json").write_text(json.dumps([spider_record(), spider_record(question="And again?")]))
    (home / "train_spider.json").write_text(json.dumps([spider_record()]))
    (home / "train_others.json").write_text(json.dumps([spider_record()]))
    return home


@pytest.fixture
def bird(tmp_path: Path) -> Path:
    home = tmp_path / "bird"
    folder = home / "dev_databases" / "concert_singer"
    database(folder / "concert_singer.sqlite")
    (folder / "database_description").mkdir()
    (folder / "database_description" / "singer.csv").write_bytes(
        "\ufefforiginal_column_name,column_name,column_description,data_format,value_description\r\n"
        'name,,full  name,text,\r\nage,age,"in\r\nyears",integer,never below 0\r\nnote,,,text,\r\n'.encode()
    )
    (home / "dev.json").write_text(json.dumps([bird_record()]))
    (home / "dev_tables.json").write_text(json.dumps(TABLES))
    return home


def test_a_record_of_spider(spider: Path) -> None:
    first, second = load_sql_set("spider", spider)
    assert (first.id, second.id) == ("spider/dev/0", "spider/dev/1")
    assert (first.question, first.answers, first.split) == ("How many singers do we have?", ("",), "dev")
    path = spider / "database" / "concert_singer" / "concert_singer.sqlite"
    assert first.data == {
        "databases": (str(path),),
        "db_id": "concert_singer",
        "cluster": "database concert_singer",
        "gold": "SELECT count(*) FROM singer",
    }


def test_both_files_of_training_and_the_folder_above(spider: Path) -> None:
    tasks = load_sql_set("spider", spider.parent, split="train")
    assert [task.id for task in tasks] == ["spider/train_spider/0", "spider/train_others/0"]


def test_the_test_suite_of_a_database_counts(spider: Path) -> None:
    folder = spider / "database" / "concert_singer"
    database(folder / "concert_singer_1.sqlite", (50, 60))
    database(folder / "a_twin.sqlite", (1, 2))
    task = load_sql_set("spider", spider)[0]
    names = [Path(path).name for path in task.data["databases"]]
    assert names == ["concert_singer.sqlite", "a_twin.sqlite", "concert_singer_1.sqlite"]
    env = Sql(tasks=(task,))
    env.reset(seed=0)
    step = env.step("<submit>SELECT count(*) FROM singer</submit>")
    assert (step.reward, step.info["tests"]) == (1.0, 3)


def test_a_record_of_bird(bird: Path) -> None:
    (task,) = load_sql_set("bird", bird)
    assert task.id == "bird/dev/7"
    assert task.question == "Who is old?\nEvidence: old refers to age > 30"
    assert (task.data["gold"], task.data["family"]) == ("SELECT name FROM singer WHERE age > 30", "simple")
    assert task.data["notes"] == "singer.name: full name\nsinger.age: in years; never below 0"


def test_a_training_record_of_bird_has_neither_id_nor_difficulty(bird: Path) -> None:
    (bird / "dev_databases").rename(bird / "train_databases")
    record = {
        key: value
        for key, value in bird_record(evidence="").items()
        if key not in ("question_id", "difficulty")
    }
    (bird / "train.json").write_text(json.dumps([record]))
    (task,) = load_sql_set("bird", bird, split="train")
    assert (task.id, task.question) == ("bird/train/0", "Who is old?")
    assert "family" not in task.data


def test_notes_are_bounded_and_read_in_either_encoding(tmp_path: Path) -> None:
    head = "original_column_name,column_description,value_description\n"
    (tmp_path / "a.csv").write_bytes((head + "size,größe,\n").encode("cp1252"))
    (tmp_path / "b.csv").write_text(head + "".join(f"c{n},{'x' * 90},\n" for n in range(200)))
    notes = column_notes(tmp_path)
    assert notes.startswith("a.size: größe\nb.c0: xxx")
    assert NOTE_CHARS - 100 < len(notes) <= NOTE_CHARS
    assert column_notes(tmp_path / "absent") == ""


@pytest.mark.parametrize(
    ("name", "record", "named"),
    [
        ("spider", spider_record(db_id="../concert_singer"), "../concert_singer"),
        ("spider", spider_record(db_id="absent"), "absent.sqlite"),
        ("spider", {"db_id": "concert_singer", "question": "?"}, "'query'"),
        ("spider", spider_record(question=" "), "question"),
        ("bird", bird_record(SQL=None), "SQL"),
        ("bird", bird_record(evidence=["a"]), "evidence"),
    ],
    ids=["outside", "absent", "no-query", "blank", "null", "list"],
)
def test_a_malformed_record_is_named(
    name: str, record: dict[str, Any], named: str, request: pytest.FixtureRequest
) -> None:
    home: Path = request.getfixturevalue(name)
    good = spider_record() if name == "spider" else bird_record()
    (home / "dev.json").write_text(json.dumps([record, good]))
    with pytest.raises(DatasetError, match=named.replace(".", r"\.")):
        load_sql_set(name, home)
    problems: list[str] = []
    assert len(load_sql_set(name, home, problems=problems)) == 1
    assert len(problems) == 1
    source = open_source(SourceConfig(dataset=name, data=home))
    assert len(source.tasks) == 1
    assert "left out: 1" in source.notes


def test_unknown_names_and_absent_files(spider: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="'spidre'"):
        load_sql_set("spidre", spider)
    with pytest.raises(UnknownName, match="'tran'"):
        load_sql_set("spider", spider, split="tran")
    with pytest.raises(UnknownName, match="'tran'"):
        check_source("bird", "tran", None)
    with pytest.raises(DatasetError, match=r"dev\.json"):
        load_sql_set("bird", tmp_path / "empty")


def test_a_command_takes_them_by_name(spider: Path) -> None:
    source = open_source(SourceConfig(dataset="spider", data=spider, limit=1))
    assert (source.split, len(source.tasks)) == ("dev", 1)
    benchmark = Benchmark("spider", "scripted", data=spider)
    assert (benchmark.env, benchmark.scorers) == ("agentenv/SQL-v0", ("solved", "reward"))
