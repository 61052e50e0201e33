"""FictionalHot over several sets: one draw, one map of names, counts and closed-book control by set, and over real sets."""

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.types import Document, Task
from agentenv.data.datasets import load_dataset
from agentenv.data.synthesis.fictional_hot import FoundNames, NameMap, RealItem, WordStatistics
from agentenv.data.synthesis.fictional_names import names_for_all, shared_inventions, shared_words
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint

CORPUS = [
    Document("1", "Mary Plant", "Mary Plant was born in Leeds."),
    Document("2", "Leeds", "Leeds is a town in England."),
    Document("3", "Jack Stone", "Jack Stone of Leeds met Mary Plant in York."),
]
STATISTICS = WordStatistics(CORPUS)
ITEMS = [
    RealItem(Task("a", "Where was Mary Plant born?", ("Leeds",)), (CORPUS[0],)),
    RealItem(Task("b", "Where did Jack Stone meet Mary Plant?", ("York",)), (CORPUS[2],)),
]
NAMES = NameMap.of(ITEMS, STATISTICS, 0)


def found(**invented: str) -> FoundNames:
    names = {name.replace("_", " "): invention for name, invention in invented.items()}
    return FoundNames(tuple(names), names)


def test_the_first_question_that_names_an_entity_decides_for_all() -> None:
    """Both questions name Leeds; the second one invents another town for it, and one for York that is taken already."""
    chosen = shared_inventions(
        [found(Leeds="Kavo"), found(LEEDS="Brun", York="KAVO", Jack_Stone="Zor Vex")], NAMES
    )
    assert chosen == {"Leeds": "Kavo", "Jack Stone": "Zor Vex"}
    word = next(iter(NAMES.inventions))  # the rules put it in the place of a word
    assert shared_inventions([found(Leeds=word)], NAMES) == {}


def test_a_word_of_a_listed_name_is_replaced_alike_where_nobody_listed_the_name() -> None:
    """Mary Plant has her words. "Jack" has two inventions, "Hill" would stand for two words, and the corpus knows Leeds."""
    chosen = {"Mary Plant": "Sona Drel", "Jack Wood": "Zor Hill", "Jack Moor": "Vex Hill", "Ann": "Leeds"}
    assert shared_words(chosen, NAMES) == {"mary": "Sona", "plant": "Drel"}


def test_a_name_that_another_question_listed_is_replaced_here_as_well() -> None:
    """The first question lists Mary Plant. The second names her too, and lists nobody."""
    shared, names = names_for_all(ITEMS, [found(Mary_Plant="Sona Drel"), FoundNames()], NAMES)
    assert [one.invented for one in shared] == [{"Mary Plant": "Sona Drel"}] * 2
    assert [one.listed for one in shared] == [("Mary Plant",), ()]
    assert (names.invented["mary"], names.invented["jack"]) == ("Sona", NAMES.invented["jack"])
    assert {"sona", "drel"} <= names.inventions


HOTPOT = [
    {
        "_id": "a",
        "question": "Which country is the birthplace of Mary Plant in?",
        "answer": "England",
        "supporting_facts": [["Mary Plant", 0], ["Leeds", 0]],
    },
    {"_id": "b", "question": "Is Leeds a town?", "answer": "yes", "supporting_facts": [["Leeds", 0]]},
]
WIKI = [
    {
        "_id": "a",
        "question": "In which town was the one born whom Jack Stone met?",
        "answer": "Leeds",
        "supporting_facts": [["Mary Plant", 0], ["Jack Stone", 0]],
    }
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Miniatures of HotpotQA and of 2WikiMultihopQA, which give the same ids to other questions and documents."""
    for name, file, rows, pages, qrels in (
        ("hotpotqa", "hotpot_dev_2.json", HOTPOT, CORPUS[:2], "a\t1\t1\na\t2\t1\nb\t2\t1\n"),
        ("2wiki", "2wiki_dev_1.json", WIKI, [CORPUS[0], CORPUS[2]], "a\t1\t1\na\t2\t1\n"),
    ):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        (folder / file).write_text(json.dumps(rows))
        (folder / file.replace(".json", ".qrels.tsv")).write_text(qrels)
        lines = [
            json.dumps({"id": str(n), "title": page.title, "text": page.text})
            for n, page in enumerate(pages, 1)
        ]
        (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "data"


def command(data: Path, out: Path, *further: str) -> list[str]:
    words = ["synthesize", "fictional-hot", "--dataset", "hotpotqa,2wiki", "--data", str(data), "--json"]
    return [*words, "--out", str(out), *further]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_two_sets_share_a_folder_and_one_map(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(data, tmp_path / "a")) == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["drawn"], card["questions"], card["left_out"]) == (3, 2, {"the answer is yes or no": 1})
    assert card["sets"] == {
        "hotpotqa": {
            "drawn": 2,
            "questions": 1,
            "left_out": {"the answer is yes or no": 1},
            "failures": {},
            "closed_book": None,
        },
        "2wiki": {"drawn": 1, "questions": 1, "left_out": {}, "failures": {}, "closed_book": None},
    }
    first, second = read(tmp_path / "a" / "questions.jsonl")
    assert [(row["dataset"], row["seed_id"]) for row in (first, second)] == [
        ("hotpotqa", "hotpotqa:a"),
        ("2wiki", "2wiki:a"),
    ]
    shared = set(first["map"]) & set(second["map"])
    assert {"Mary", "Plant", "Leeds"} <= shared
    assert all(first["map"][word] == second["map"][word] for word in shared)
    assert second["answers"] == [first["map"]["Leeds"]]
    ids = {row["id"] for row in read(tmp_path / "a" / "corpus.jsonl")}
    assert {"hotpotqa:1", "2wiki:1"} < ids
    assert {*first["supporting_ids"], *second["supporting_ids"]} < ids
    assert len(load_dataset("jsonl", tmp_path / "a" / "questions.jsonl").tasks) == 2


def test_the_card_says_what_became_of_every_question_and_by_which_options(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model reads nothing of the question of 2WikiMultihopQA; of the others one is left out."""

    def names(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        if "Jack Stone" in asked:
            return Answer("I cannot say.")
        return Answer(json.dumps({"real": ["Mary Plant"], "invented": ["Sona Drel"]}))

    with FakeEndpoint(names) as server:
        editor = ("--editor", f"openai:m@{server.url}", "--no-rewrite", "--limit", "3", "--seed", "4")
        assert main(command(data, tmp_path / "a", *editor)) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["sets"]["2wiki"]["failures"] == card["failures"] == {"SynthesisFault": 1}
    for counts in (card, *card["sets"].values()):
        came = [counts["questions"], *counts["left_out"].values(), *counts["failures"].values()]
        assert sum(came) == counts["drawn"] > 0
    asked = {"limit": 3, "seed": 4, "rewrite": False, "data": str(data), "editor": card["editor"]}
    assert asked.items() <= card["options"].items()
    assert not {"out", "replies", "at_once"} & card["options"].keys()


def test_there_is_one_draw_over_all_sets(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three questions a share of 2/3 is two, whatever set they are of; the limit cuts further."""
    assert main(command(data, tmp_path / "a", "--share", "0.67")) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["drawn"] == sum(counts["drawn"] for counts in card["sets"].values()) == 2
    assert main(command(data, tmp_path / "b", "--share", "0.67", "--limit", "1", "--seed", "1")) == 0
    assert json.loads(capsys.readouterr().out)["drawn"] == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [(["--share", "0"], "0.0"), (["--share", "1.5"], "1.5"), (["--limit", "0"], "0")],
    ids=["no share", "more than all", "no limit"],
)
def test_a_draw_out_of_range_is_refused(
    words: list[str], named: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(data, tmp_path / "a", *words)) == 1
    assert named in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["env", "world", "humaneval"])
def test_what_asks_about_no_real_names_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["synthesize", "fictional-hot", "--dataset", name, "--out", str(tmp_path / "a")]
    assert main(words) == 1
    assert f"--dataset {name}" in " ".join(capsys.readouterr().err.split())


def test_the_closed_book_control_stands_for_each_set_and_for_all(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The solver knows the real answer of HotpotQA's question and, of the other set, no answer at all."""

    def knows(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        return Answer(json.dumps({"answer": "England" if "Mary Plant" in asked else "Rome"}))

    with FakeEndpoint(knows) as server:
        assert main(command(data, tmp_path / "a", "--solver", f"openai:m@{server.url}")) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["closed_book"] == {"n": 2, "real": 1, "fictional": 0}
    assert {name: counts["closed_book"] for name, counts in card["sets"].items()} == {
        "hotpotqa": {"n": 1, "real": 1, "fictional": 0},
        "2wiki": {"n": 1, "real": 0, "fictional": 0},
    }


def test_an_editor_invents_for_all_sets_together(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It invents another Leeds for each question; the one of the first question stands in both."""

    def invents(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        town = "Kavo" if "country" in asked else "Brun"
        return Answer(json.dumps({"real": ["Leeds"], "invented": [town]}))

    with FakeEndpoint(invents) as server:
        words = command(data, tmp_path / "a", "--editor", f"openai:m@{server.url}", "--no-rewrite")
        assert main(words) == 0
    first, second = read(tmp_path / "a" / "questions.jsonl")
    assert (first["map"]["Leeds"], second["answers"]) == ("Kavo", ["Kavo"])
    assert not any("Brun" in row["text"] for row in read(tmp_path / "a" / "corpus.jsonl"))


@pytest.mark.skipif(not os.environ.get("AGENTENV_DATA"), reason="AGENTENV_DATA is not set")
def test_over_three_real_sets_no_word_has_two_inventions(tmp_path: Path) -> None:
    out = tmp_path / "real"
    words = ["synthesize", "fictional-hot", "--dataset", "hotpotqa,2wiki,musique", "--share", "0.3"]
    assert main([*words, "--out", str(out)]) == 0
    rows = read(out / "questions.jsonl")
    inventions: dict[str, set[str]] = defaultdict(set)
    sets: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for word, invention in row["map"].items():
            inventions[word.casefold()].add(invention.casefold())
            sets[word].add(row["dataset"])
    assert all(len(some) == 1 for some in inventions.values())
    assert sum(len(some) > 1 for some in sets.values()) > 50
    assert {row["dataset"] for row in rows} == {"hotpotqa", "2wiki", "musique"}
