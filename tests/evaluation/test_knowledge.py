"""Questions divided by what a policy knows: the rule by hand, the command, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.data.datasets import load_dataset
from agentenv.errors import ConfigurationError
from agentenv.evaluation.knowledge import knowledge_halves
from agentenv.evaluation.records import EpisodeRecord

Make = Callable[..., EpisodeRecord]
Write = Callable[..., None]


def probe(folder: Path, record: Make, write: Write, *rows: str, **changes: object) -> Path:
    """One sample a column: of each question, ``1`` where the sample is right, ``x`` where it met a failure of ours."""
    for number in range(len(rows[0])):
        records = [
            record(
                f"q{n}",
                "Paris" if row[number] == "1" else "Rome",
                question=f"Where is {n}?",
                valid=row[number] != "x",
                **{"searches": 0, **changes},
            )
            for n, row in enumerate(rows)
        ]
        write(folder / f"sample-{number}", records)
    return folder


def test_one_right_sample_makes_a_question_known(tmp_path: Path, record: Make, write_run: Write) -> None:
    """q0 and q4 are known, q1, q3 and q5 are not, q2 met a failure: two of each half, with their shares of right samples."""
    folder = probe(tmp_path, record, write_run, "1010", "0000", "1x11", "0000", "0001", "0000")
    tasks = knowledge_halves(folder)
    families = [(task.data["family"], task.data["pass_rate"]) for task in tasks]
    assert sorted(families) == [("easy", 0.25), ("easy", 0.5), ("hard", 0.0), ("hard", 0.0)]
    names = [task.id for task in tasks]
    assert names == sorted(names)  # in the order of the probe
    assert {"q0", "q4"} < set(names) <= {"q0", "q1", "q3", "q4", "q5"}
    assert len(knowledge_halves(folder, each=1)) == 2
    drawn = {frozenset(task.id for task in knowledge_halves(folder, each=1, seed=seed)) for seed in range(20)}
    assert len(drawn) == 6


def test_the_command_writes_a_question_set_whose_families_are_the_halves(
    tmp_path: Path, record: Make, write_run: Write
) -> None:
    folder = probe(tmp_path / "probe", record, write_run, "10", "00")
    assert main(["synthesize", "ikea", "--probe", str(folder), "--out", str(tmp_path / "out")]) == 0
    loaded = load_dataset("jsonl", tmp_path / "out" / "questions.jsonl")
    assert [(t.question, t.answers, t.data["family"]) for t in loaded.tasks] == [
        ("Where is 0?", ("Paris",), "easy"),
        ("Where is 1?", ("Paris",), "hard"),
    ]
    card = json.loads((tmp_path / "out" / "synthesis.json").read_text())
    assert (card["families"], card["samples"]) == ({"easy": 1, "hard": 1}, 2)


def test_what_is_no_probe_is_refused(tmp_path: Path, record: Make, write_run: Write) -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        knowledge_halves(tmp_path / "empty")
    searched = probe(tmp_path / "searched", record, write_run, "10", "00", searches=2)
    with pytest.raises(ConfigurationError, match="'q0'"):
        knowledge_halves(searched)
    folder = probe(tmp_path / "probe", record, write_run, "10", "00")
    with pytest.raises(ConfigurationError, match=r"\b5\b"):
        knowledge_halves(folder, each=5)
    with pytest.raises(ConfigurationError, match="'f1_squad'"):
        knowledge_halves(folder, scorer="f1_squad")
    ignorant = probe(tmp_path / "ignorant", record, write_run, "00", "00")
    with pytest.raises(ConfigurationError, match=r"\b2\b"):
        knowledge_halves(ignorant)
