"""Sets whose text may not lie on disk: records, report and scores of an evaluation over them; and clusters."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Message, Task
from agentenv.errors import DatasetError
from agentenv.evaluation.compare import rescore
from agentenv.evaluation.records import EpisodeRecord, as_line, read_evaluation, read_records, redacted
from agentenv.evaluation.report.report import write_report
from agentenv.evaluation.results import clusters_of, summarize
from agentenv.evaluation.runner import to_record

SECRET = "Velandra"


def sealed(record: Callable[..., EpisodeRecord]) -> EpisodeRecord:
    turns = [{"action": f"<answer>{SECRET}</answer>", "observation": SECRET, "valid": True, "reward": 1.0}]
    return record(
        "b",
        SECRET,
        answers=(SECRET,),
        question=f"Where is {SECRET}?",
        prompt=SECRET,
        turns=turns,
        canary="c-1",
    )


def test_the_text_of_a_sealed_set_reaches_no_file(
    tmp_path: Path, record: Callable[..., EpisodeRecord], write_run: Callable[..., None]
) -> None:
    write_run(tmp_path, [sealed(record), record("open")])
    write_report(tmp_path)
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert {"episodes.jsonl", "results.json", "report.html"} <= set(written)
    assert [name for name, text in written.items() if SECRET in text] == []
    assert "Where?" in written["report.html"]  # the other set's text is shown
    (read, _) = read_evaluation(tmp_path).records
    assert read == {**sealed(record), "answers": [SECRET]}
    assert json.loads(written["results.json"])["scores"]["em_squad"]["mean"] == 1.0
    assert rescore(tmp_path, ["f1_squad"])["scores"]["f1_squad"]["mean"] == 1.0


def test_whatever_a_record_holds_beside_numbers_and_ids_is_encrypted(
    record: Callable[..., EpisodeRecord],
) -> None:
    """Also what is added to records later: nobody has to think of it."""
    held = {"opening": [SECRET], "roles": [["system"]], "tools": [{"name": SECRET}], "later": SECRET}
    full = EpisodeRecord(**{**sealed(record), **held})  # type: ignore[typeddict-item]
    assert SECRET not in as_line(full)
    assert SECRET not in json.dumps(redacted(full))
    assert {"id", "reward", "canary", "end_reason"} <= set(json.loads(as_line(full)))


def test_a_line_that_its_canary_does_not_open_is_refused(
    tmp_path: Path, record: Callable[..., EpisodeRecord]
) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text(as_line(sealed(record)).replace('"c-1"', '"c-2"'))
    with pytest.raises(DatasetError, match=r"episodes\.jsonl.*\b1\b"):
        read_records(path)


def test_an_open_record_is_written_and_shown_as_it_is(record: Callable[..., EpisodeRecord]) -> None:
    plain = record("a")
    assert redacted(plain) is plain
    assert json.loads(as_line(plain)) == {**plain, "answers": ["Paris"]}
    assert redacted(sealed(record))["prediction"] != SECRET
    assert redacted({**sealed(record), "prediction": None})["prediction"] is None
    assert SECRET not in str(redacted({**sealed(record), "error": f"refused: {SECRET}"}))
    assert "error" not in redacted(sealed(record))


def test_the_runner_hands_canary_and_cluster_on() -> None:
    task = Task("t", "Q?", ("A",), data={"canary": "c", "cluster": "0"})
    record = to_record(Trajectory(task, (), (), 0.0, EndReason.ANSWERED, prompt=(Message("user", "Q?"),)))
    assert (record["canary"], record["cluster"]) == ("c", "0")


def test_questions_on_one_passage_are_a_cluster_in_the_results(record: Callable[..., EpisodeRecord]) -> None:
    rows = [
        record(f"{passage}-{i}", "Paris" if passage % 2 else "Rome", cluster=str(passage))
        for passage in range(20)
        for i in range(5)
    ]
    assert clusters_of([record("0"), rows[0]]) == ["question 0", "cluster 0"]
    about = {"dataset": "squad", "split": "dev", "policy": "scripted", "retriever": "bm25:x", "k": 3}
    score = summarize(rows, ["em_squad"], **about)["scores"]["em_squad"]  # type: ignore[arg-type]
    assert (score["interval"], score["n"], score["normaliser"], score["version"]) == (
        "wilson clustered",
        100,
        "squad",
        1,
    )
    free = [{key: value for key, value in row.items() if key != "cluster"} for row in rows]
    loose = summarize(free, ["em_squad"], **about)["scores"]["em_squad"]  # type: ignore[arg-type]
    assert score["ci95"][1] - score["ci95"][0] > 1.5 * (loose["ci95"][1] - loose["ci95"][0])
