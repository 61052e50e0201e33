"""What a killed evaluation leaves behind: whole lines, a configuration that is kept to, seconds in a file of their own."""

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.types import Task
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.evaluation.journal import (
    CONFIG,
    CONTENTS,
    Journal,
    evaluating,
    is_of,
    lock_folder,
    log_seconds,
    read_seconds,
    release,
)
from agentenv.evaluation.records import EPISODES, EpisodeRecord, write_results

Maker = Callable[..., EpisodeRecord]
TASKS = [Task(name, "Where?", ("Paris",)) for name in ("a", "b", "c")]
ASKED = {"benchmark": {"policy": "tiny", "limit": None, "scorers": ("em_squad",), "data": Path("x")}}


def test_a_torn_last_line_is_cut_off_and_the_next_one_does_not_grow_onto_it(
    record: Maker, tmp_path: Path
) -> None:
    path = tmp_path / "episodes.jsonl"
    Journal(path).append([record("a"), record("b")])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": "c", "question": "Wh')
    journal = Journal(path)
    assert [task in journal for task in TASKS] == [True, True, False]
    assert path.read_bytes() == whole
    journal.append([record("c")])
    assert [row["id"] for row in Journal(path).finish(TASKS)] == ["a", "b", "c"]


@pytest.mark.parametrize("cut", [1, 2, 30, 200])
def test_wherever_the_file_is_cut_the_finished_file_is_the_same(
    record: Maker, tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "episodes.jsonl"
    records = [record(task.id, "\u00c9v\u00e9\u2028e") for task in TASKS]
    Journal(path).append(records)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    journal = Journal(path)
    journal.append(records)
    journal.finish(TASKS)
    assert path.read_bytes() == whole


def test_finishing_brings_the_questions_into_their_order(record: Maker, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "episodes.jsonl")
    journal.append([record("c"), record("a")])
    journal.append([record("b"), record("a", "Rome")])  # a is there: the first stays
    assert [(row["id"], row["prediction"]) for row in journal.finish(TASKS)] == [
        ("a", "Paris"),
        ("b", "Paris"),
        ("c", "Paris"),
    ]
    assert [row["id"] for row in Journal(tmp_path / "episodes.jsonl").finish(TASKS)] == ["a", "b", "c"]


def test_faults_may_be_forgotten(record: Maker, tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    Journal(path).append([record("a"), record("b", None, valid=False, end_reason="env_fault")])
    assert len(Journal(path)) == 2
    assert [task in Journal(path, lambda row: not row["valid"]) for task in TASKS] == [True, False, False]


def test_a_broken_line_within_the_file_is_named(record: Maker, tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    for broken in (b'{"id": "a"', json.dumps(record("a")).encode().replace(b'"a"', b'"\xff"', 1)):
        path.write_bytes(broken + b"\n" + json.dumps(record("b")).encode() + b"\n")
        with pytest.raises(DatasetError, match=r"line 1\b"):
            Journal(path)


def test_the_same_configuration_goes_on(tmp_path: Path) -> None:
    lock_folder(tmp_path / "run", ASKED)
    assert not (tmp_path / "run").exists()  # only looked at
    lock_folder(tmp_path / "run", {**ASKED, CONTENTS: {"questions": "1"}}, write=True)
    lock_folder(tmp_path / "run", ASKED)
    lock_folder(tmp_path / "run", {**ASKED, CONTENTS: {"questions": "1"}}, write=True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"policy": "hf:x"}, r"'tiny'.*'hf:x'"),
        ({"limit": 5}, r"limit.*\b5\b"),
        ({"scorers": ("cem",)}, r"\['em_squad'\].*\['cem'\].*rescore"),
        ({"seed": 1}, r"seed.*\b1\b"),
    ],
)
def test_another_configuration_is_refused(tmp_path: Path, change: dict[str, object], named: str) -> None:
    lock_folder(tmp_path, ASKED, write=True)
    before = (tmp_path / CONFIG).read_bytes()
    with pytest.raises(ConfigurationError, match=named):
        lock_folder(tmp_path, {"benchmark": ASKED["benchmark"] | change}, write=True)
    assert (tmp_path / CONFIG).read_bytes() == before


def test_other_questions_under_the_same_name_are_refused(tmp_path: Path) -> None:
    lock_folder(tmp_path, {**ASKED, CONTENTS: {"questions": "1"}}, write=True)
    with pytest.raises(ConfigurationError, match="questions"):
        lock_folder(tmp_path, {**ASKED, CONTENTS: {"questions": "2"}})


@pytest.mark.parametrize("name", ["results.json", "usage.json", "timings.jsonl", "report.html"])
def test_a_folder_of_unknown_origin_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigurationError, match="test_a_folder_of_unknown_origi"):
        lock_folder(tmp_path, ASKED, write=True)
    (tmp_path / CONFIG).write_text('preset = "laptop-search"\n')
    with pytest.raises(ConfigurationError, match="test_a_folder_of_unknown_origi"):
        lock_folder(tmp_path, ASKED, write=True)


def test_a_run_without_an_episode_gives_its_folder_back(record: Maker, tmp_path: Path) -> None:
    empty, begun = tmp_path / "empty", tmp_path / "begun"
    for folder in (empty, begun):
        lock_folder(folder, ASKED, write=True)
    Journal(begun / "episodes.jsonl").append([record("a")])
    release(empty)
    release(begun)
    assert not empty.exists()
    assert (begun / CONFIG).is_file()


def test_an_evaluation_may_go_into_a_folder_whose_parents_are_not_there(tmp_path: Path) -> None:
    lock_folder(tmp_path / "some" / "where", ASKED, write=True)
    assert (tmp_path / "some" / "where").is_dir()


def test_seconds_are_of_the_run_proper(tmp_path: Path) -> None:
    """6 s for 3 episodes, 2 of them right: 2 s a question, 3 s a right answer; the middle one waited 1.5 s."""
    assert read_seconds(tmp_path) == {}
    log_seconds(tmp_path, "run", 4.5, [3.0, 1.5])
    log_seconds(tmp_path, "oracle", 100.0, [100.0])
    log_seconds(tmp_path, "run", 2.25, [0.5])
    with (tmp_path / "timings.jsonl").open("a") as file:
        file.write('{"phase": "run", "sec')  # the writer was killed
    assert read_seconds(tmp_path, 2) == {
        "seconds": 6.75,
        "seconds_per_question": 2.25,
        "median_seconds_of_an_episode": 1.5,
        "seconds_per_correct": 3.375,
    }
    assert "seconds_per_correct" not in read_seconds(tmp_path, 0)


def test_a_configuration_is_written_in_plain_values_and_read_back(tmp_path: Path) -> None:
    config: dict[str, dict[str, Any]] = {
        "benchmark": {"a": None, "b": ("x", "y"), "c": Path("d/e"), "n": 3},
        "opened": {"retriever": "r"},
    }
    lock_folder(tmp_path / "run", config, write=True)
    assert tomllib.loads((tmp_path / "run" / CONFIG).read_text()) == {
        "benchmark": {"b": ["x", "y"], "c": "d/e", "n": 3},
        "opened": {"retriever": "r"},
    }
    assert is_of(tmp_path / "run", config)
    assert not is_of(tmp_path / "run", {"benchmark": config["benchmark"]})
    assert not is_of(tmp_path / "nothing", config)
    (tmp_path / "run" / CONFIG).write_text("[")
    assert not is_of(tmp_path / "run", config)
    with pytest.raises(ConfigurationError, match=r"config\.toml"):
        lock_folder(tmp_path / "run", config)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"benchmark": {"two_words": 2}}, r"run.*two words 1, not 2"),
        ({"benchmark": {}}, "two words 1, not None"),
        ({"benchmark": {"two_words": 1, "more": "x"}}, "more None, not 'x'"),
        ({"benchmark": {"two_words": 1}, CONTENTS: {"corpus": "b"}}, "corpus that have changed"),
        ({"benchmark": {"two_words": 1}, CONTENTS: {"corpus": "a", "index": "c"}}, "index of which"),
    ],
)
def test_what_differs_is_named_with_both_values(tmp_path: Path, config: Any, named: str) -> None:
    folder = tmp_path / "run"
    lock_folder(folder, {"benchmark": {"two_words": 1}, CONTENTS: {"corpus": "a"}}, write=True)
    lock_folder(folder, {"benchmark": {"two_words": 1}})
    lock_folder(folder, {CONTENTS: {"corpus": "a"}})
    with pytest.raises(ConfigurationError, match=named) as refused:
        lock_folder(folder, config)
    assert "rescore" not in str(refused.value)


def test_a_folder_is_given_back_with_all_that_was_written_but_files_of_others(tmp_path: Path) -> None:
    lock_folder(tmp_path / "run", ASKED, write=True)
    for name in ("episodes.jsonl", "timings.jsonl", "episodes.sha256", "mine.txt"):
        (tmp_path / "run" / name).touch()
    release(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]
    release(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_journal_that_was_changed_or_repeats_an_episode(record: Maker, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "episodes.jsonl"
    Journal(path).append([record("a"), record("a", "Rome")])
    assert len(Journal(path)) == 1
    assert Journal(path).finish(TASKS[:1])[0]["prediction"] == "Paris"
    path.write_text(path.read_text().replace("Paris", "Rome"))
    with pytest.raises(ConfigurationError, match="line 1"):
        Journal(path)


def test_what_a_batch_took_is_a_line_with_rounded_seconds(tmp_path: Path) -> None:
    log_seconds(tmp_path, "run", 1.23456789, [0.00004, 2.0])
    assert json.loads((tmp_path / "timings.jsonl").read_text()) == {
        "phase": "run",
        "episodes": 2,
        "seconds": 1.2346,
        "waits": [0.0, 2.0],
    }


@pytest.mark.parametrize(
    "damage", ['{"phase": "run"}', '{"phase": "run", "seconds": 1e13, "waits": [1]}', "[]", "{",
               '{"phase": "run", "seconds": 1, "waits": ["x"]}', '{"phase": "run", "seconds": NaN, "waits": [1]}',
               '{"phase": "run", "seconds": 1, "waits": 1}'],
)  # fmt: skip
def test_a_damaged_line_of_seconds_is_left_out(tmp_path: Path, damage: str) -> None:
    (tmp_path / "timings.jsonl").write_text(damage + "\n")
    assert read_seconds(tmp_path) == {}
    log_seconds(tmp_path, "run", 2.0, [1.0, 3.0, 2.0, 5.0])
    assert read_seconds(tmp_path) == {
        "seconds": 2.0,
        "seconds_per_question": 0.5,
        "median_seconds_of_an_episode": 3.0,
    }


@pytest.mark.parametrize("again", [False, True], ids=["removed", "replaced"])
def test_an_evaluation_whose_folder_was_removed_writes_nothing_more(
    record: Maker, tmp_path: Path, again: bool
) -> None:
    """Another evaluation may have begun under the name, and the episodes of both would be mixed."""
    out = tmp_path / "out"
    with evaluating(out):
        lock_folder(out, ASKED, write=True)
        journal = Journal(out / EPISODES)
        journal.append([record("a")])
        shutil.rmtree(out)
        if again:
            out.mkdir()
            (out / CONFIG).write_text("another one")
        writes: list[Callable[[], object]] = [
            lambda: journal.append([record("b")]),
            lambda: journal.finish(TASKS[:1]),
            lambda: write_results(out, {}),
        ]
        for write in writes:
            with pytest.raises(FileNotFoundError, match="removed"):
                write()
        release(out)
    assert [path.name for path in out.iterdir()] == [CONFIG] if again else not out.exists()
