"""Covers ``agentenv score`` of prediction files over any set: every layout, what is missing, and what is refused."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main

GOLDS = [("a", "Rome"), ("b", "Paris"), ("c", "Lima"), ("d", "Oslo")]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    rows = [{"id": key, "question": f"Where is {key}?", "answers": [gold]} for key, gold in GOLDS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def score(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["score", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# Right, covered, silent, of no question.
PREDICTED = {"a": "rome", "b": "the city of Paris", "c": None, "z": "x"}


def _write(path: Path, field: str) -> Path:
    rows = [{"id": key, field: answer} for key, answer in PREDICTED.items()]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(PREDICTED if field == "map" else rows))
    else:
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["id", field])
            table.writerows((row["id"], row[field]) for row in rows if row[field] is not None)
    return path


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("p.jsonl", "answer"),
        ("p.jsonl", "prediction"),
        ("p.json", "predicted_answer"),
        ("p.json", "map"),
        ("p.csv", "answer"),
    ],
)
def test_answers_are_scored_over_all_questions(
    name: str, field: str, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of four questions one is right, one holds the answer, one says nothing, one was never answered."""
    found = score(capsys, str(questions), str(_write(tmp_path / name, field)))
    assert (found["n"], found["missing"], found["unknown"]) == (4, {"answer": 2}, 1)
    assert found["scores"]["em_squad"] == 0.25
    assert found["scores"]["em_cover"] == 0.5
    assert found["scores"]["f1_squad"] == pytest.approx((1 + 2 * (1 / 3) / (1 + 1 / 3)) / 4)
    low, high = found["ci95"]["em_squad"]
    assert 0 < low < 0.25 < high < 1


def test_a_scorer_is_chosen_and_people_see_what_is_missing(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions = str(_write(tmp_path / "p.jsonl", "answer"))
    assert main(["score", str(questions), predictions, "--scorer", "f1_hotpot"]) == 0
    shown = capsys.readouterr().out
    assert "4 questions" in " ".join(shown.split())
    assert "2 without answer" in shown
    assert "f1_hotpot" in shown
    assert "em_squad" not in shown


def test_several_sets_have_their_scores_each(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more.jsonl").write_text('{"id": "a", "question": "Where?", "answers": ["Kyiv"]}\n')
    predictions = tmp_path / "predictions.json"
    predictions.write_text(json.dumps({"questions:a": "Rome", "questions:b": "Rome", "more:a": "Kyiv"}))
    both = f"{questions},{tmp_path / 'more.jsonl'}"
    found = score(capsys, both, str(predictions), "--scorer", "em_squad")
    assert (found["n"], found["scores"], found["missing"]) == (5, {"em_squad": 0.4}, {"answer": 2})
    parts = {name: (p["n"], p["scores"]["em_squad"], p["missing"]) for name, p in found["by_set"].items()}
    assert parts == {"questions": (4, 0.25, {"answer": 2}), "more": (1, 1.0, {"answer": 0})}
    assert main(["score", both, str(predictions)]) == 0
    assert re.search(r"\n    more +1\.0000 .* n 1\n", capsys.readouterr().out)


def test_a_set_with_official_measures_takes_plain_answers_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = tmp_path / "hotpot_dev_distractor_v1.json"
    rows = [
        {"_id": key, "question": "Where?", "answer": answer, "supporting_facts": []} for key, answer in GOLDS
    ]
    gold.write_text(json.dumps(rows))
    plain = tmp_path / "plain.csv"
    plain.write_text("id,answer\na,Rome\nb,Lima\n")
    found = score(capsys, "hotpotqa", str(plain), "--data", str(gold))
    assert (found["n"], found["scores"]["em_squad"]) == (4, 0.25)
    official = tmp_path / "official.json"
    official.write_text(json.dumps({"answer": {"a": "Rome"}, "sp": {}}))
    found = score(capsys, "hotpotqa", str(official), "--data", str(gold))
    assert (found["scores"]["em"], "joint_f1" in found["scores"]) == (0.25, True)
    assert main(["score", "hotpotqa", str(official), "--data", str(gold), "--scorer", "em_squad"]) == 1


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"id": "a", "answer": "Rome"}\n{"id": "a", "answer": "Oslo"}\n', "'a'"),
        ('{"id": "y", "answer": "Rome"}\n{"id": "z", "answer": "Oslo"}\n', "'a'"),
        ('{"id": "a", "answer": ["Rome"]}\n{"id": "b", "answer": "x"}\n', "'a'"),
        ('{"id": "a", "reply": "Rome"}\n{"id": "b", "reply": "x"}\n', "line 1"),
        ("", "p.jsonl"),
        ("{}", "no predictions"),
        ('{"a": "Rome", "b": "x", "a": "Oslo"}', "'a'"),
        ('{"id": "a", "answer": "Rome", "answer": "Oslo"}', "'answer'"),
        ("no json\n", "line 1"),
    ],
)
def test_predictions_that_cannot_be_scored_are_one_sentence(
    content: str, named: str, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions = tmp_path / "p.jsonl"
    predictions.write_text(content)
    capsys.readouterr()
    assert main(["score", str(questions), str(predictions)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert named in line


@pytest.mark.parametrize("dataset", ["humaneval", "env", "world", "hotpot"])
def test_a_set_without_written_answers_is_refused(
    dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.jsonl").write_text('{"id": "a", "answer": "x"}\n')
    assert main(["score", dataset, str(tmp_path / "p.jsonl")]) == 1
    assert dataset in capsys.readouterr().err


def test_accepted_answers_beside_the_predictions_are_not_scored_against_themselves(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of other tools often hold the accepted answer as ``answer`` and what was predicted as ``prediction``."""
    file = tmp_path / "predictions.jsonl"
    rows = [{"id": key, "answer": gold, "prediction": "no idea"} for key, gold in GOLDS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["score", str(questions), str(file)]) == 1
    said = capsys.readouterr().err
    assert "line 1" in said
    assert "'answer' and 'prediction'" in said
    file.write_text(json.dumps({"id": "a", "answer": "Rome", "prediction": "Rome"}) + "\n")
    assert score(capsys, str(questions), str(file))["missing"] == {"answer": 3}


@pytest.mark.parametrize(("gold", "predicted"), [("1990.0", '"1990"'), ("1990", "1990.0"), ("2.5", "2.50")])
def test_numbers_are_compared_as_somebody_would_write_them(
    gold: str, predicted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.jsonl").write_text(f'{{"id": "a", "question": "When?", "answer": {gold}}}\n')
    (tmp_path / "p.jsonl").write_text(f'{{"id": "a", "prediction": {predicted}}}\n')
    found = score(capsys, str(tmp_path / "q.jsonl"), str(tmp_path / "p.jsonl"))
    assert found["scores"]["em_squad"] == 1.0
