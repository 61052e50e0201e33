"""Questions made by rules of real passages: what is read of a passage, what is left out, and that answers follow."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from agentenv.core.types import Document, Task
from agentenv.data.datasets import limit_yes_or_no
from agentenv.data.overlap import FAMILY, refuse_overlap
from agentenv.data.sources import SourceConfig
from agentenv.data.synthesis.passage_facts import facts_of
from agentenv.data.synthesis.passage_questions import Dated, dated_things, passage_questions
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, open_tasks

STONE = Document("s", "Ada Stone", "Ada Stone (5 May 1901 \u2013 June 3, 1980) was a film director.")
REED = Document("r", "Bo Reed (director)", "Bo Reed (born in Ulm on March 12, 1920) is a director.")
TRAIN = Document(
    "t", "Night Train (film)", "Night Train is a 1940 crime film directed by Ada Stone. It won nothing."
)
MOON = Document("m", "Moon", 'Moon is a 1961 film, directed by Bo Reed and starring Ada Stone."')
PAGES = (STONE, REED, TRAIN, MOON)


def dated(pages: Iterable[Document], excluded: Sequence[str] = ()) -> Mapping[str, list[Dated]]:
    return dated_things(facts_of(pages, excluded))


def test_what_passages_say() -> None:
    found = {
        kind: [(one.name, one.date[0], one.supports) for one in things]
        for kind, things in dated(PAGES).items()
    }
    assert found == {
        "birth": [("Ada Stone", 1901, ("s",)), ("Bo Reed", 1920, ("r",))],
        "death": [("Ada Stone", 1980, ("s",))],
        "release": [("Night Train", 1940, ("t",)), ("Moon", 1961, ("m",))],
        "director": [("Night Train", 1901, ("t", "s")), ("Moon", 1920, ("m", "r"))],
        "director_death": [("Night Train", 1980, ("t", "s"))],
    }


def test_a_name_of_two_dates_and_a_page_that_is_excluded_are_left_out() -> None:
    other = Document("o", "Bo Reed (chemist)", "Bo Reed (1 May 1850 \u2013 2 June 1900) was a chemist.")
    found = dated((*PAGES, other), excluded=["Night Train"])
    assert [one.name for one in found["birth"]] == ["Ada Stone"]
    assert [one.name for one in found["release"]] == ["Moon"]
    assert found["director"] == []  # Moon's director is one of two Bo Reeds


def test_a_page_that_stands_twice_is_taken_once() -> None:
    again = Document("again", STONE.title, STONE.text)
    assert dated((*PAGES, again))["birth"] == dated(PAGES)["birth"]


def test_answers_follow_from_the_passages() -> None:
    """Every question that the four pages give, of comparisons, of directors and of persons, once."""
    tasks = passage_questions(PAGES, 48, seed=3)
    answers = {task.question: task.answers for task in tasks}
    assert len(answers) == len({task.id for task in tasks}) == 48
    birth = {
        "Ada Stone": "5 May 1901",
        "Night Train": "5 May 1901",
        "Bo Reed": "March 12, 1920",
        "Moon": "March 12, 1920",
    }
    for question, (answer, *others) in answers.items():
        named = [name for name in birth if name in question]
        if len(named) == 2:
            early = any(word in question for word in ("first", "earlier", "older"))
            assert answer == named[0 if early else 1]
        elif "birthday" in question or "date of birth" in question or question.startswith("When was"):
            assert answer == birth[named[0]]
        elif "die" in question or "date of death" in question:
            assert (answer, named[0] in ("Ada Stone", "Night Train")) == ("June 3, 1980", True)
        else:
            assert (answer, named[0] in ("Bo Reed", "Moon")) == ("Ulm", True)
        assert not others
    chain = next(
        task
        for task in tasks
        if "director of film Night Train" in task.question and task.answers == ("5 May 1901",)
    )
    assert chain.data == {"family": FAMILY, "hops": 2, "supporting_ids": ("t", "s")}


def test_whether_two_are_of_one_country() -> None:
    """Half of the questions are answered with yes; England and Scotland are one country, and a genre is none."""
    countries = {"French": "France", "English": "UK", "Scottish": "UK", "Western": "none"}
    named = [f"{word} Nobody {chr(97 + i)}" for word in countries for i in range(3)]
    pages = [
        Document(name, name, f"{name} (born 5 May 1901) is a {name.partition(' ')[0]} actor.")
        for name in named
    ]
    tasks = [task for task in passage_questions(pages, 60, 0) if task.answers[0] in ("yes", "no")]
    assert len(tasks) > 20
    for task in tasks:
        one, other = (countries[page.partition(" ")[0]] for page in task.data["supporting_ids"])
        assert task.answers == ("yes" if one == other else "no",)
        assert "Western" not in task.question
    assert 0.3 < sum(task.answers == ("yes",) for task in tasks) / len(tasks) < 0.7


def test_the_same_seed_makes_the_same_questions() -> None:
    assert passage_questions(PAGES, 9, seed=1) == passage_questions(PAGES, 9, seed=1)
    assert passage_questions(PAGES, 9, seed=1) != passage_questions(PAGES, 9, seed=2)


def test_passages_without_dates_give_none() -> None:
    with pytest.raises(
        ConfigurationError, match="the passages give 0 questions by rules, and 1 are asked for"
    ):
        passage_questions([Document("x", "Ulm", "Ulm is a city.")], 1, 0)


def test_there_are_only_so_many() -> None:
    """Wordings with both orders of two persons, of two films and of their directors, and what pages say of single ones."""
    with pytest.raises(ConfigurationError, match=r"the passages give \d\d questions by rules, and 999 are"):
        passage_questions(PAGES, 999, 0)


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


@pytest.mark.parametrize(
    ("opening", "birth", "death"),
    [
        ("(5 May 1901 \u2013 June 3, 1980)", "5 May 1901", "June 3, 1980"),
        ("(5 May 1901 - 3 June 1980)", "5 May 1901", "3 June 1980"),
        ("(May 5, 1901\u20131980)", "May 5, 1901", ""),
        ("(born Ada Reed; 5 May 1901 \u2014 in Ulm, 3 June 1980)", "5 May 1901", "3 June 1980"),
        ("(born 5 May 1901)", "5 May 1901", ""),
        ("(1850 \u2013 5 May 1901)", "", ""),  # the one date is that of the death
        ("(c. 1400 \u2013 5 May 1450)", "", ""),
        ("(died 5 May 1901)", "", ""),
        ("(5 May 1901)", "", ""),  # of what is not said
        ("(5 May 1901 \u2013 8 May 1903)", "", ""),  # a war or a term of office
        ("(1 May 1850 \u2013 2 May 1852, 3 May 1853 \u2013 4 May 1910)", "", ""),
    ],
)
def test_which_date_is_that_of_a_birth(opening: str, birth: str, death: str) -> None:
    page = Document("s", "Ada Stone", f"Ada Stone {opening} was a director.")
    found = dated([page])
    assert [one.text for one in found["birth"]] == ([birth] if birth else [])
    assert [one.text for one in found["death"]] == ([death] if death else [])


@pytest.mark.parametrize(
    "text",
    [
        "Moon is a 1961 novel about a film.",
        "Moon is a 1961 book by the film critic Ada Stone, made into a film.",
        "Moon is a 1961 crime film director.",
        "Moon is a 1961 film directed by Ada Stone and Bo Reed.",
        "Moon is a 1961 film, a remake of Sun, which was directed by Ada Stone, and is directed by Bo Reed.",
    ],
)
def test_what_is_no_film_of_one_director_is_left_out(text: str) -> None:
    found = dated((STONE, REED, Document("m", "Moon", text)))
    assert found["director"] == []
    assert bool(found["release"]) == ("film directed" in text or "remake" in text)


def test_names_within_each_other_end_the_search_for_pairs() -> None:
    pages = [
        Document(str(year), f"Rocky{part}", f"Rocky{part} is a {year} film.")
        for part, year in (("", 1976), (" II", 1979))
    ]
    with pytest.raises(ConfigurationError, match="the passages give 0 questions"):
        passage_questions(pages, 1, 0)


def test_a_long_opening_takes_no_time() -> None:
    """It is read in steps whose number does not grow with the square of its length."""
    page = Document("a", "Abcd", "Abcd (" + "5 May 1901-" * 100_000 + ")")
    assert dated([page])["birth"] == []


def test_ids_that_are_taken_are_not_given_again() -> None:
    made = passage_questions(PAGES, 3, 0, taken=["passages:0", "passages:2"])
    assert [task.id for task in made] == ["passages:1", "passages:3", "passages:4"]


def test_topics_and_a_single_file_are_refused(tmp_path: Path) -> None:
    hotpotqa(tmp_path / "hotpotqa", ("train", "dev"))
    for given, said in (
        ({"topics": True, "data": tmp_path}, "topics"),
        ({"data": tmp_path / "hotpotqa" / "hotpot_train_v1.json"}, "give the folder"),
    ):
        source = SourceConfig(dataset="hotpotqa", split="train", passage_questions=2, **given)
        with pytest.raises(ConfigurationError, match=said):
            open_tasks(source, SearchConfig(), EnvConfig())


def test_two_files_of_another_split_are_refused(tmp_path: Path) -> None:
    hotpotqa(tmp_path / "hotpotqa", ("train", "dev"))
    second = tmp_path / "hotpotqa" / "hotpot_dev_fullwiki_v1.json"
    second.write_text("[]", encoding="utf-8")
    source = SourceConfig(dataset="hotpotqa", split="train", passage_questions=2, data=tmp_path)
    with pytest.raises(DatasetError, match="hotpot_dev_fullwiki_v1"):
        open_tasks(source, SearchConfig(), EnvConfig())


def test_a_run_is_refused_whose_test_rests_on_their_passages(tmp_path: Path) -> None:
    """Two files of one's own over one corpus: nothing says that they are splits."""
    train = open_tasks(
        SourceConfig(dataset=str(sets(tmp_path)), passage_questions=20), SearchConfig(), EnvConfig()
    ).tasks
    test = [Task("t", "When was Ada born?", ("1901",), data={"supporting_ids": ("s",)})]
    with pytest.raises(ConfigurationError, match="passages that support 1 of 1 tasks of test"):
        refuse_overlap(train, {"test": test})
    refuse_overlap([task for task in train if task.data.get("family") != FAMILY], {"test": test})


@pytest.mark.parametrize(("share", "kept"), [(None, 6), (1.0, 6), (0.5, 6), (0.2, 2), (0.19, 1), (0.0, 0)])
def test_questions_of_yes_or_no_are_at_most_a_share(share: float | None, kept: int) -> None:
    """Beside 8 others: 2 are .2 of 10, and 1 is .11 of 9; 6 of 14 are .43, within a half. The order stays."""
    asked = [("Yes",), ("no",), ("yes", "Yes"), ("no",), ("yes",), ("no",)]
    others = [("yes", "no"), *[(f"answer {n}",) for n in range(6)], ()]
    tasks = tuple(Task(f"t{n}", "Q?", answers) for n, answers in enumerate([*asked, *others]))
    found = limit_yes_or_no(tasks, share, seed=1)
    assert len(found) == 8 + kept
    assert found[kept:] == tasks[6:]
    assert [*found] == sorted(found, key=tasks.index)


def test_a_share_that_is_just_met_leaves_all_in() -> None:
    """6 of 10 are .6, though .6 * 4 / .4 is 5.999999999999999."""
    tasks = tuple(Task(f"t{n}", "Q?", ("yes",) if n < 6 else ("Ada",)) for n in range(10))
    assert limit_yes_or_no(tasks, 0.6, seed=0) == tasks


def test_a_share_that_leaves_no_question_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"yes_or_no=0\.5 leaves none of 2"):
        limit_yes_or_no((Task("a", "Q?", ("yes",)), Task("b", "Q?", ("no",))), 0.5, seed=0)


def test_the_share_holds_over_drawn_and_made_questions_together(tmp_path: Path) -> None:
    """Three drawn questions of yes or no beside one other and 16 made ones: .15 of 20 are 3, and .1 of 18 is 1."""
    path = sets(tmp_path)
    asked = [f'{{"id": "y{n}", "question": "Is it {n}?", "answers": ["yes"]}}\n' for n in range(3)]
    path.write_text(path.read_text() + "".join(asked))
    given = SourceConfig(dataset=str(path), passage_questions=16, yes_or_no=0.15)
    assert len(open_tasks(given, SearchConfig(), EnvConfig()).tasks) == 20
    fewer = open_tasks(given.model_copy(update={"yes_or_no": 0.1}), SearchConfig(), EnvConfig()).tasks
    assert sum(task.answers == ("yes",) for task in fewer) == 1
    assert len(fewer) == 18
