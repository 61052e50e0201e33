"""Scores of predicted queries: EX, the stricter accuracy and VES, by hand; what cannot be graded is no wrong answer."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.data.dataset_files import RawRow
from agentenv.errors import DatasetError, SandboxFault
from agentenv.evaluation.sql_scores import BIRD_MARK, score_queries, valid_efficiency

GOLDS = (
    "SELECT name FROM singer WHERE age > 30 ORDER BY age",
    "SELECT count(*) FROM singer",
    "SELECT max(age) FROM singer",
)


@pytest.fixture
def bird(tmp_path: Path) -> Path:
    path = tmp_path / "dev_databases" / "pop" / "pop.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE singer (name TEXT, age INTEGER)")
        connection.executemany("INSERT INTO singer VALUES (?, ?)", [("Ann", 20), ("Bob", 40), ("Cid", 50)])
        connection.commit()
    write(tmp_path, GOLDS)
    return tmp_path


def write(home: Path, golds: tuple[str, ...]) -> None:
    records = [
        {"question_id": n, "db_id": "pop", "question": f"{n}?", "evidence": "", "SQL": gold}
        for n, gold in enumerate(golds)
    ]
    (home / "dev.json").write_text(json.dumps(records))


def scored(home: Path, answers: dict[str, Any]) -> dict[str, Any]:
    return score_queries("bird", home, [RawRow(answers, "predictions")], runs=1)


def test_the_term_of_a_question_in_ves() -> None:
    assert valid_efficiency(True, 4.0, 1.0) == 2.0
    assert valid_efficiency(True, 1.0, 4.0) == 0.5
    assert valid_efficiency(False, 4.0, 1.0) == 0.0
    assert valid_efficiency(True, 4.0, 0.0) == 1.0  # too short for the clock


def test_order_and_duplicates_are_what_ex_forgives(bird: Path) -> None:
    unordered = "SELECT name FROM singer WHERE age > 30 ORDER BY age DESC"
    found = scored(bird, {"bird/dev/0": unordered, "bird/dev/1": "SELECT 3", "bird/dev/2": "SELECT 4"})
    assert (found["n"], found["missing"], found["unknown"]) == (3, {"answer": 0}, 0)
    assert found["scores"]["ex"] == pytest.approx(2 / 3)
    assert found["scores"]["execution"] == pytest.approx(1 / 3)
    assert found["scores"]["ves"] > 0


def test_files_of_bird_itself_are_read(bird: Path) -> None:
    answers = {"1": f"SELECT count(*) FROM singer{BIRD_MARK}pop", "2": None, "99": "SELECT 1"}
    found = scored(bird, answers)
    assert (found["missing"], found["unknown"]) == ({"answer": 2}, 1)
    assert found["scores"]["ex"] == pytest.approx(1 / 3)
    with pytest.raises(DatasetError, match="'bird/dev/0'"):
        scored(bird, {"x": "SELECT 1"})


def test_a_number_of_two_questions_is_refused(tmp_path: Path) -> None:
    """Spider's training split is two files, and each counts its questions from 0."""
    path = tmp_path / "database" / "pop" / "pop.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE singer (name TEXT, age INTEGER)")
        connection.commit()
    for name, gold in (("train_spider", "SELECT 1"), ("train_others", "SELECT 2")):
        record = {"db_id": "pop", "question": f"{name}?", "query": gold}
        (tmp_path / f"{name}.json").write_text(json.dumps([record]))
    whole = {"spider/train_spider/0": "SELECT 1", "spider/train_others/0": "SELECT 2"}
    assert (
        score_queries("spider", tmp_path, [RawRow(whole, "p")], split="train", runs=1)["scores"]["ex"] == 1.0
    )
    with pytest.raises(DatasetError, match=r"'0'.*'spider/train_spider/0'"):
        score_queries("spider", tmp_path, [RawRow({"0": "SELECT 1"}, "p")], split="train", runs=1)


def test_questions_over_one_database_are_not_independent(tmp_path: Path) -> None:
    """Two databases with eight questions each, one all right and the other all wrong: of two values nothing is known."""
    records = []
    for name in ("pop", "rock"):
        path = tmp_path / "dev_databases" / name / f"{name}.sqlite"
        path.parent.mkdir(parents=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE singer (name TEXT, age INTEGER)")
            connection.commit()
        records += [{"db_id": name, "question": f"{n}?", "evidence": "", "SQL": "SELECT 1"} for n in range(8)]
    (tmp_path / "dev.json").write_text(json.dumps(records))
    found = scored(tmp_path, {f"bird/dev/{n}": "SELECT 1" if n < 8 else "SELECT 2" for n in range(16)})
    low, high = found["ci95"]["ex"]
    assert found["scores"]["ex"] == 0.5
    assert low < 0.1
    assert high > 0.9


def test_two_predictions_of_one_question_are_refused(bird: Path) -> None:
    with pytest.raises(DatasetError, match=r"'bird/dev/0'.*'0'"):
        scored(bird, {"bird/dev/0": GOLDS[0], "0": GOLDS[1]})


def test_a_question_whose_gold_query_fails_is_left_out_and_counted(bird: Path) -> None:
    write(bird, (*GOLDS[:2], "SELECT absent FROM singer"))
    found = scored(bird, {str(n): GOLDS[1] for n in range(3)})
    assert (found["n"], found["ungraded"]) == (2, 1)
    assert found["scores"]["ex"] == 0.5
    write(bird, ("SELECT absent FROM singer",))
    with pytest.raises(SandboxFault, match="absent"):
        scored(bird, {"0": GOLDS[1]})


def test_the_command(bird: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "predicted.json"
    path.write_text(json.dumps(dict(zip("012", GOLDS, strict=True))))
    assert main(["score", "bird", str(path), "--data", str(bird), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"]["execution"] == 1.0
    assert main(["score", "bird", str(path), "--data", str(bird), "--scorer", "em_squad"]) != 0
    assert main(["score", "bird", str(path), "--data", str(bird)]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    assert shown["ex"].startswith("1.0000  [0.")
    assert shown["ves"].endswith("(no interval)")  # of one database, and a ratio of times has no bound
