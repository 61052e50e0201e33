"""Tasks that could not be recorded or scored are refused before the first is posed, whoever made them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.task_checks import checked_tasks, flaw_of
from agentenv.core.types import Task
from agentenv.data.sources import SourceConfig, open_source
from agentenv.envs.calculator import Calculator
from agentenv.errors import AgentEnvError, ConfigurationError, DatasetError
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, open_tasks

GOOD = Task(
    "a", "What is 2 + 3?", ("5",), data={"family": "sum", "hops": 1, "cluster": 7, "supporting_ids": ["d"]}
)


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


BAD: dict[str, Any] = {
    "no task": "a",
    "number as id": Task(5, "q", ("a",)),  # type: ignore[arg-type]
    "blank id": Task(" ", "q", ("a",)),
    "half a pair in the id": Task("\ud800", "q", ("a",)),
    "half a pair in the question": Task("a", "\udfff", ("a",)),
    "number as answer": Task("a", "q", (5,)),  # type: ignore[arg-type]
    "text as answers": Task("a", "q", "five"),  # type: ignore[arg-type]
    "list as data": Task("a", "q", ("a",), data=[]),  # type: ignore[arg-type]
    "list as family": Task("a", "q", ("a",), data={"family": ["x"]}),
    "list as cluster": Task("a", "q", ("a",), data={"cluster": ["x"]}),
    "words as hops": Task("a", "q", ("a",), data={"hops": "two"}),
    "no hop": Task("a", "q", ("a",), data={"hops": 0}),
    "truth as hops": Task("a", "q", ("a",), data={"hops": True}),
    "one text as supporting ids": Task("a", "q", ("a",), data={"supporting_ids": "doc"}),
    "numbers as supporting ids": Task("a", "q", ("a",), data={"supporting_ids": [5]}),
    "number as canary": Task("a", "q", ("a",), data={"canary": 5}),
    "data that nests for ever": Task("a", "q", ("a",), data={"x": deep(5000)}),
    "keys of two kinds": Task("a", "q", ("a",), data={("a", 1): 1, "b": 2}),  # type: ignore[dict-item]
}


def test_a_task_with_every_entry_passes() -> None:
    assert checked_tasks([GOOD], "mine") == (GOOD,)
    assert flaw_of(GOOD) is None


@pytest.mark.parametrize("name", BAD)
def test_what_could_not_be_recorded_is_refused(name: str) -> None:
    with pytest.raises(DatasetError, match="mine: task 2"):
        checked_tasks([GOOD, BAD[name]], "mine")


def test_two_tasks_of_one_id_would_be_scored_as_one() -> None:
    with pytest.raises(DatasetError, match="'a' occurs twice"):
        checked_tasks([GOOD, GOOD], "mine")


def test_no_tasks_are_refused() -> None:
    with pytest.raises(DatasetError, match="mine holds no tasks"):
        checked_tasks([], "mine")


class Failing(Calculator):
    """Its tasks cannot be made."""

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
        raise {"train": ValueError, "test": SystemExit}[split]("boom")


class Twins(Calculator):
    """Its tasks share an id."""

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
        return [Task("t", f"What is {i} + 1?", (str(i + 1),), split) for i in range(n)]


def own(cls: type, split: str) -> Any:
    config = SourceConfig(dataset="env", split=split)
    return open_tasks(config, SearchConfig(), EnvConfig(id=f"{__name__}:{cls.__name__}"))


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_environment_that_fails_at_its_tasks_is_named(split: str) -> None:
    with pytest.raises(ConfigurationError, match=r"make_tasks of .*Failing failed: .*boom"):
        own(Failing, split)


def test_twins_of_an_environment_are_refused_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"Twins.*'t'"):
        own(Twins, "test")
    words = ["eval", "--env", f"{__name__}:Twins", "--policy", "scripted", "--out", str(tmp_path / "out")]
    assert main(words) == 1
    assert not (tmp_path / "out").exists()


TABLE = "id,question,answer,hops,family,cluster\na,Who?,Rome,2,bridge,7\nb,When?,Oslo,,,7\n"


def test_a_table_s_fields_by_which_scores_are_listed_are_read_as_what_they_are(tmp_path: Path) -> None:
    """In a table every field is text: the hops of its questions were, too, and comparing them ended the evaluation."""
    (tmp_path / "q.csv").write_text(TABLE)
    first, second = open_source(SourceConfig(dataset=str(tmp_path / "q.csv"))).tasks
    assert first.data == {"hops": 2, "family": "bridge", "cluster": "7"}
    assert second.data == {"cluster": "7"}


@pytest.mark.parametrize(
    "row",
    [
        {"hops": "two"},
        {"hops": 1.5},
        {"family": ["x"]},
        {"cluster": {"x": 1}},
        {"supporting_ids": 5},
        {"answers": [1e400]},
    ],
    ids=str,
)
def test_a_record_that_could_not_be_scored_is_named_by_its_line(row: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [
        {"id": "a", "question": "Who?", "answers": ["x"]},
        {"id": "b", "question": "Who?", "answers": ["x"]} | row,
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    with pytest.raises(AgentEnvError, match="line 2"):
        open_source(SourceConfig(dataset=str(path)))


def test_a_number_of_any_size_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(
        '{"id": "a", "question": "How many?", "answers": [' + "9" * 400 + "]}\n"
    )
    assert open_source(SourceConfig(dataset=str(tmp_path / "q.jsonl"))).tasks[0].answers == ("9" * 400,)


def test_columns_of_supporting_facts_have_one_length(tmp_path: Path) -> None:
    facts = '{"title": ["a", "b"], "sent_id": [0]}'
    (tmp_path / "hotpot_dev.json").write_text(
        '[{"_id": "1", "question": "q", "answer": "a", "supporting_facts": ' + facts + "}]"
    )
    with pytest.raises(DatasetError, match="supporting_facts"):
        open_source(SourceConfig(dataset="hotpotqa", data=tmp_path / "hotpot_dev.json"))
