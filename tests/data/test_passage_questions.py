"""Questions made by rules of real passages: what is read of a passage, what is left out, and that answers follow."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentenv.core.types import Document
from agentenv.data.sources import SourceConfig
from agentenv.data.synthesis.passage_questions import FAMILY, dated_things, day_of, passage_questions
from agentenv.errors import ConfigurationError
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, open_tasks

STONE = Document("s", "Ada Stone", "Ada Stone (5 May 1901 \u2013 June 3, 1980) was a film director.")
REED = Document("r", "Bo Reed (director)", "Bo Reed (born in Ulm on March 12, 1920) is a director.")
TRAIN = Document(
    "t", "Night Train (film)", "Night Train is a 1940 crime film directed by Ada Stone. It won nothing."
)
MOON = Document("m", "Moon", 'Moon is a 1961 film, directed by Bo Reed and starring Ada Stone."')
PAGES = (STONE, REED, TRAIN, MOON)


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("5 May 1901", (1901, 5, 5)),
        ("May 5, 1901", (1901, 5, 5)),
        ("31 December 2010", (2010, 12, 31)),
        ("1940", (1940, 0, 0)),
    ],
)
def test_a_date_is_year_month_and_day(text: str, day: tuple[int, int, int]) -> None:
    assert day_of(text) == day


def test_what_passages_say() -> None:
    found = {
        kind: [(one.name, one.date[0], one.supports) for one in things]
        for kind, things in dated_things(PAGES).items()
    }
    assert found == {
        "birth": [("Ada Stone", 1901, ("s",)), ("Bo Reed", 1920, ("r",))],
        "death": [("Ada Stone", 1980, ("s",))],
        "release": [("Night Train", 1940, ("t",)), ("Moon", 1961, ("m",))],
        "director": [("Night Train", 1901, ("t", "s")), ("Moon", 1920, ("m", "r"))],
    }


def test_a_name_of_two_dates_and_a_page_that_is_excluded_are_left_out() -> None:
    other = Document("o", "Bo Reed (chemist)", "Bo Reed (1 May 1850 \u2013 2 June 1900) was a chemist.")
    found = dated_things((*PAGES, other), excluded=["Night Train"])
    assert [one.name for one in found["birth"]] == ["Ada Stone"]
    assert [one.name for one in found["release"]] == ["Moon"]
    assert found["director"] == []  # Moon's director is one of two Bo Reeds


def test_a_page_that_stands_twice_is_taken_once() -> None:
    again = Document("again", STONE.title, STONE.text)
    assert dated_things((*PAGES, again))["birth"] == dated_things(PAGES)["birth"]


def test_answers_follow_from_the_passages() -> None:
    tasks = passage_questions(PAGES, 15, seed=3)
    answers = {task.question: task.answers for task in tasks}
    assert len(answers) == 15
    assert len({task.id for task in tasks}) == 15
    first = {"Who was born first", "Who was born earlier", "Who is older"}
    for question, (answer,) in answers.items():
        kind = question.partition(",")[0]
        if kind in first:
            assert answer == "Ada Stone"
        elif kind in {"Who was born later", "Who is younger"}:
            assert answer == "Bo Reed"
        elif kind.startswith("Which film"):
            early = any(word in kind for word in ("first", "earlier", "older"))
            assert answer == ("Night Train" if early else "Moon")
        else:
            assert answer == ("5 May 1901" if "Night Train" in question else "March 12, 1920")
    chain = next(
        task for task in tasks if "Night Train" in task.question and "date of birth" in task.question
    )
    assert chain.data == {"family": FAMILY, "hops": 2, "supporting_ids": ("t", "s")}


def test_the_same_seed_makes_the_same_questions() -> None:
    assert passage_questions(PAGES, 9, seed=1) == passage_questions(PAGES, 9, seed=1)
    assert passage_questions(PAGES, 9, seed=1) != passage_questions(PAGES, 9, seed=2)


def test_passages_without_dates_give_none() -> None:
    with pytest.raises(
        ConfigurationError, match="the passages give 0 questions by rules, and 1 are asked for"
    ):
        passage_questions([Document("x", "Ulm", "Ulm is a city.")], 1, 0)


def test_there_are_only_so_many() -> None:
    """Ten wordings with both orders of two persons, of two films and of their directors, and a date of each director."""
    with pytest.raises(ConfigurationError, match=r"the passages give \d\d questions by rules, and 99 are"):
        passage_questions(PAGES, 99, 0)


def sets(folder: Path) -> Path:
    """A set with its corpus, as files of one's own."""
    rows = "\n".join(f'{{"id": "{p.id}", "title": "{p.title}", "text": "{p.text[:90]}"}}' for p in PAGES)
    (folder / "corpus.jsonl").write_text(rows.replace('Stone.""', 'Stone."') + "\n", encoding="utf-8")
    path = folder / "mine.jsonl"
    path.write_text('{"id": "q", "question": "Who?", "answers": ["Ada"], "supporting_ids": ["s"]}\n')
    return path


def test_a_source_adds_them_to_the_questions_that_are_drawn(tmp_path: Path) -> None:
    given = SourceConfig(dataset=str(sets(tmp_path)), limit=1, passage_questions=4)
    opened = open_tasks(given, SearchConfig(), EnvConfig())
    assert [task.data.get("family") for task in opened.tasks] == [None, *[FAMILY] * 4]


def test_a_world_has_no_such_passages() -> None:
    with pytest.raises(ConfigurationError, match="passage_questions needs a named set"):
        open_tasks(SourceConfig(passage_questions=4), SearchConfig(), EnvConfig())


def hotpotqa(folder: Path, splits: Sequence[str]) -> None:
    """The set with one question for each split: that of dev is supported by the page of Bo Reed."""
    folder.mkdir()
    question = {"_id": "q", "question": "Who?", "answer": "Ada", "type": "bridge", "level": "easy"}
    for split in splits:
        title = "Bo Reed (director)" if split == "dev" else "Ada Stone"
        facts = {"supporting_facts": [[title, 0]], "context": [[title, ["A page."]]]}
        (folder / f"hotpot_{split}_v1.json").write_text(json.dumps([question | facts]), encoding="utf-8")
        (folder / f"hotpot_{split}_v1.qrels.tsv").write_text(f"q\t{'r' if split == 'dev' else 's'}\t1\n")
    rows = (json.dumps({"id": p.id, "title": p.title, "text": p.text}) for p in PAGES)
    (folder / "corpus.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.mark.parametrize("sets", ["hotpotqa", "hotpotqa,mine.jsonl"])
@pytest.mark.parametrize("splits", [("train", "dev"), ("train",)])
def test_pages_of_another_split_are_left_out(
    sets: str, splits: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file of the other split is not there, nothing can be tested on it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTENV_DATA", str(tmp_path))
    hotpotqa(tmp_path / "hotpotqa", splits)
    Path("mine.jsonl").write_text('{"id": "q", "question": "Who else?", "answers": ["Ada"]}\n')
    given = SourceConfig(dataset=sets, split="train", passage_questions=8)
    tasks = open_tasks(given, SearchConfig(), EnvConfig()).tasks
    made = [task for task in tasks if task.data.get("family") == FAMILY]
    assert len(made) == 8
    assert any("Bo Reed" in task.question for task in made) == (splits == ("train",))
    supports = {one.rpartition(":")[2] for task in made for one in task.data["supporting_ids"]}
    assert ("r" in supports) == (splits == ("train",))
