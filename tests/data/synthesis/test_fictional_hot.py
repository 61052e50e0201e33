"""FictionalHot: which words are names, that every name gives way everywhere, what cannot be hidden, and the command."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.env import run_sync
from agentenv.core.types import Document, Task
from agentenv.data.datasets import load_dataset
from agentenv.data.synthesis.fictional_hot import (
    FictionalItem,
    FoundNames,
    NameMap,
    RealItem,
    Replacer,
    RuleReplacer,
    WordStatistics,
    invented_words,
    items_of,
    left_out,
    name_words,
    native_words,
    replace_names,
    surviving_name,
    wording_flaw,
)
from agentenv.data.synthesis.fictional_hot_model import ModelReplacer
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.pages import LinkedPages
from agentenv.errors import DatasetError
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.model_chat import ChatModels

CORPUS = [
    Document("1", "Mary Plant", "Mary Plant was born in Leeds. Plant wrote The Dark Year in 1950."),
    Document("2", "Leeds", "Leeds is a town in England. Its mayor met Mary Plant."),
    Document(
        "3", "Botany", "The plant grows in the dark. A plant of the year is a plant. In Rome it is late."
    ),
]
STATISTICS = WordStatistics(CORPUS)
TASK = Task(
    "q",
    "Which country is the birthplace of Mary Plant in?",
    ("England",),
    data={"supporting_ids": ("1", "2")},
)
(ITEM,) = items_of([TASK], CORPUS)


def fictional(item: RealItem = ITEM) -> FictionalItem:
    own = name_words(item, LinkedPages(CORPUS))
    return made_of(item, own, NameMap.of([item], STATISTICS, 0), RuleReplacer())


def made_of(item: RealItem, own: frozenset[str], names: NameMap, replacer: Replacer) -> FictionalItem:
    """The item with the names that the replacer finds."""
    found = run_sync(replacer.names(item))
    return run_sync(replace_names(item, own, names, found, replacer))


@pytest.mark.parametrize(
    ("word", "is_name"),
    [
        ("Leeds", True),
        ("Mary", True),
        ("Plant", False),
        ("Dark", False),
        ("The", False),
        ("May", False),
        ("Oslo", True),
    ],
)
def test_a_name_is_what_a_corpus_writes_with_a_capital(word: str, is_name: bool) -> None:
    """Three times with a capital within sentences or in titles, and three times without: "plant" is a common word."""
    assert STATISTICS.is_name(word) is is_name


def test_every_name_gives_way_everywhere_to_the_same_invention() -> None:
    made = fictional()
    mary, plant, leeds, england = (made.names[word] for word in ("Mary", "Plant", "Leeds", "England"))
    assert made.question == f"Which country is the birthplace of {mary} {plant} in?"
    assert made.answers == (england,)
    first, second = made.documents
    assert first.title == f"{mary} {plant}"
    # "Dark" and "Year" are common words and no part of a name that this question knows; the surname alone is one
    assert first.text == f"{mary} {plant} was born in {leeds}. {plant} wrote The Dark Year in 1950."
    assert second.text == f"{leeds} is a town in {england}. Its mayor met {mary} {plant}."
    assert len({mary, plant, leeds, england}) == 4
    assert surviving_name(made) is None


def test_a_name_of_common_words_gives_way_where_the_question_writes_it_with_capitals() -> None:
    """No title is "The Dark Year", and both words are common; "Which" begins the question and names nothing."""
    asked = 'Which country is the author of "The Dark Year" from?'
    item = RealItem(Task("q", asked, ("England",)), ITEM.documents)
    made = fictional(item)
    dark, year = made.names["Dark"], made.names["Year"]
    assert made.question == f'Which country is the author of "The {dark} {year}" from?'
    assert f"wrote The {dark} {year} in 1950." in made.documents[0].text
    assert fictional(replace(item, task=Task("q", "Dark stars, whose are they?", ("England",)))).question == (
        "Dark stars, whose are they?"
    )


def test_inventions_are_unknown_to_the_corpus_and_do_not_depend_on_the_order() -> None:
    known = WordStatistics([Document("1", next(invented_words(0, STATISTICS)), "x")])
    words = list(invented_words(0, known))
    assert len(set(words)) == len(words) > 50_000
    assert not any(word in known for word in words)
    other = RealItem(Task("r", "Who is Ann?", ("Bob",)), ())
    assert NameMap.of([ITEM, other], STATISTICS, 0) == NameMap.of([other, ITEM], STATISTICS, 0)


def test_capitals_stay_capitals() -> None:
    item = RealItem(
        Task("r", "Who leads NASA?", ("Ann O'Neill",)),
        (Document("9", "NASA", "NASA is led by Ann O'Neill."),),
    )
    made = fictional(item)
    assert made.names["NASA"].isupper()
    assert made.answers == (f"{made.names['Ann']} O'{made.names['Neill']}",)


@pytest.mark.parametrize(
    ("question", "answers", "titles", "reason"),
    [
        ("Is Leeds a town?", ("Yes",), ("Leeds",), "the answer is yes or no"),
        ("Who is older, Ann or Bob?", ("Bob",), ("Ann", "Bob"), "the answer stands in the question"),
        ("Who leads it?", ("Ann",), (), "no supporting document is known"),
        ("Who leads it?", ("Ann",), ("1984",), "a title holds no name"),
        ("Who leads it?", ("Ann",), ("Leeds",), ""),
    ],
    ids=["yes", "comparison", "no document", "a number", "fine"],
)
def test_what_no_replacement_can_hide_is_left_out(
    question: str, answers: tuple[str, ...], titles: tuple[str, ...], reason: str
) -> None:
    documents = tuple(Document(str(n), title, "x") for n, title in enumerate(titles))
    assert left_out(RealItem(Task("q", question, answers), documents)) == reason


def test_a_name_that_survives_is_refused() -> None:
    item = RealItem(
        Task("q", "Who sold it?", ("Ann",)), (Document("1", "Bazaar", "Ann sold at the bazaar."),)
    )
    with pytest.raises(DatasetError, match="'Bazaar'"):
        fictional(item)


class Editor(RuleReplacer):
    """Lists names with inventions, and rewrites every document as is said."""

    def __init__(self, *listed: str, wording: str | None = None, **invented: str) -> None:
        self.found = FoundNames((*listed, *invented), invented)
        self.wording = wording

    async def names(self, item: RealItem) -> FoundNames:
        return self.found

    async def rewrite(self, document: Document, needed: Sequence[str]) -> str | None:
        return self.wording


def edited(editor: Editor) -> FictionalItem:
    own = name_words(ITEM, LinkedPages(CORPUS))
    return made_of(ITEM, own, NameMap.of([ITEM], STATISTICS, 0), editor)


def test_a_listed_name_without_an_invention_is_replaced_word_by_word() -> None:
    """By rules "The Dark Year" is no name, because the corpus knows both words without a capital."""
    made = edited(Editor("The Dark Year"))
    assert made.documents[0].text.endswith(f"wrote The {made.names['Dark']} {made.names['Year']} in 1950.")


def test_a_name_in_a_script_without_capitals_is_replaced_beside_its_translation() -> None:
    """Whoever reads Arabic or Chinese would know Leeds by it. In a text that is written so, nothing tells a name."""
    text = "Leeds (Arabic: \u0644\u064a\u062f\u0632, Chinese: \u5229\u5179) is a town in England."
    made = fictional(replace(ITEM, documents=(Document("1", "Leeds", text), ITEM.documents[1])))
    assert not any(letter >= "\u0600" for letter in made.documents[0].text)
    assert made.names["\u5229\u5179"] in made.documents[0].text
    assert native_words("\u5229\u5179 \u57ce\u5e02") == native_words("Leeds is a town") == frozenset()


@pytest.mark.parametrize("name", ["MARY met", "A Town", "eBay"])
def test_a_listed_name_that_survives_in_whatever_case_is_refused(name: str) -> None:
    """None of them is written so in the text, and nothing is replaced, but the text holds it all the same."""
    item = replace(ITEM, documents=(Document("1", "Leeds", "A town where mary met me at eBay."),))
    with pytest.raises(DatasetError, match=name):
        made_of(item, frozenset(), NameMap.of([item], STATISTICS, 0), Editor(name))


def test_a_number_or_a_common_word_among_the_names_is_none() -> None:
    assert (
        edited(Editor("1950", "town", "The")).documents == edited(Editor()).documents == fictional().documents
    )


def test_a_rewriting_that_brings_back_a_word_of_a_real_name_is_refused() -> None:
    """The corpus knows "Plant" as a common word, so that no statistics refuse it."""
    names = edited(Editor()).names
    back = f"Plant wrote of {names['Leeds']} and {names['England']}."
    made = edited(Editor(wording=back))
    assert made.kept_texts == 2
    assert not any("Plant" in document.text for document in made.documents)


@pytest.mark.parametrize(
    ("wording", "flawed"),
    [
        ("In Vopa there is a town of Kulo.", False),
        ("In Vopa there is a town of Kulo, near Rome.", True),
        ("In Vopa there is a town.", True),
    ],
    ids=["fine", "a real name", "the answer is lost"],
)
def test_a_rewriting_brings_no_real_name_and_keeps_the_answer(wording: str, flawed: bool) -> None:
    document = Document("1", "Vopa", "Vopa is a town in Kulo.")
    assert bool(wording_flaw(wording, document, ["Kulo"], STATISTICS)) is flawed


HOTPOT = [
    {
        "_id": "a",
        "question": TASK.question,
        "answer": "England",
        "supporting_facts": [["Mary Plant", 0], ["Leeds", 0]],
    },
    {"_id": "b", "question": "Is Leeds a town?", "answer": "yes", "supporting_facts": [["Leeds", 0]]},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A miniature of HotpotQA, in its own format."""
    folder = tmp_path / "hotpotqa"
    folder.mkdir()
    (folder / "hotpot_dev_2.json").write_text(json.dumps(HOTPOT))
    (folder / "hotpot_dev_2.qrels.tsv").write_text("a\t1\t1\na\t2\t1\nb\t2\t1\n")
    rows = ({"id": d.id, "title": d.title, "text": d.text} for d in CORPUS)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_the_command_by_rules_gives_a_set_that_can_be_loaded(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["synthesize", "fictional-hot", "--dataset", "hotpotqa", "--data", str(data), "--json"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["questions"], card["left_out"]) == (1, {"the answer is yes or no": 1})
    dataset = load_dataset("jsonl", tmp_path / "a" / "questions.jsonl")
    (task,) = dataset.tasks
    assert task.data["supporting_ids"] == ("a-1", "a-2")
    assert (task.data["seed_id"], task.data["dataset"]) == ("a", "hotpotqa")
    ids = [json.loads(line)["id"] for line in (tmp_path / "a" / "corpus.jsonl").read_text().splitlines()]
    assert ids == ["a-1", "a-2", "1", "2", "3"]  # 1 and 2 are the originals of a-1 and a-2
    assert main([*words, "--haystack", "none", "--out", str(tmp_path / "b")]) == 0
    assert len((tmp_path / "b" / "corpus.jsonl").read_text().splitlines()) == 2


def test_a_set_that_names_no_supporting_document_says_so(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "hotpotqa" / "hotpot_dev_2.qrels.tsv").unlink()
    rows = [{key: value for key, value in row.items() if key != "supporting_facts"} for row in HOTPOT[:1]]
    (data / "hotpotqa" / "hotpot_dev_2.json").write_text(json.dumps(rows))
    words = ["synthesize", "fictional-hot", "--dataset", "hotpotqa", "--data", str(data)]
    assert main([*words, "--out", str(tmp_path / "a")]) == 1
    assert "no supporting document is known (1)" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "a").exists()


def model(body: Any) -> Answer:
    """Names entities, rewrites the first document well and the second badly, and knows the real answer only."""
    asked = body["messages"][0]["content"]
    if "both lists" in asked:
        said: dict[str, Any] = {
            "real": ["Mary Plant", "Plant", "Leeds", "England"],
            "invented": ["Sona Drel", "Drel", "Kavo", "Rome"],  # the last is real and is not used
        }
    elif "in other words" in asked:
        said = {"text": "In Kavo, Sona Drel came to the world; Drel is the author of a book of 1950."}
        if "Title: Kavo" in asked:
            said = {"text": "It is a town near Rome."}
    else:
        said = {"answer": "England" if "Mary Plant" in asked else "France"}
    return Answer(json.dumps(said))


def test_an_invention_that_is_given_twice_is_used_for_nobody() -> None:
    """Both would become one person. The other pair stays, and the names without inventions are listed all the same."""
    said = {"real": ["Mary", "Ann", "Leeds"], "invented": ["Sona Drel", "Sona Drel", "Kavo"]}
    with FakeEndpoint(lambda body: Answer(json.dumps(said))) as server:
        writer = ModelWriter(ChatModels().open(f"openai:m@{server.url}"))
        found = run_sync(ModelReplacer(writer, STATISTICS).names(ITEM))
    assert found == FoundNames(("Mary", "Ann", "Leeds"), {"Leeds": "Kavo"})


@pytest.mark.parametrize(
    ("invention", "surname"),
    [
        ("Zor Vex", "Vex"),
        ("Zor", "Zor"),
    ],  # of one word nobody knows what the surname is, and the person is the same
)
def test_a_surname_alone_is_that_of_the_invention(invention: str, surname: str) -> None:
    """So that "Mary Plant was born in Leeds. Plant wrote ..." stays about one person."""

    class OneName(RuleReplacer):
        async def names(self, item: RealItem) -> FoundNames:
            return FoundNames(("Mary Plant",), {"Mary Plant": invention})

    own, names = name_words(ITEM, LinkedPages(CORPUS)), NameMap.of([ITEM], STATISTICS, 0)
    made = made_of(ITEM, own, names, OneName())
    text = made.documents[0].text
    assert text.startswith(f"{invention} was born in ")
    assert text.partition(". ")[2].startswith(f"{surname} wrote ")


ALIASES = "Beyoncé Plant is known as BEYONCE, as Beyoncé and as MS PLANT."


def test_a_name_in_capitals_or_without_accents_is_the_same_name() -> None:
    item = RealItem(Task("q", "Who is Beyoncé Plant?", ("Ann",)), (Document("1", "Beyoncé Plant", ALIASES),))
    made = fictional(item)
    first, last = made.names["Beyoncé"], made.names["Plant"]
    assert made.documents[0].text.startswith(
        f"{first} {last} is known as {first.upper()}, as {first} and as "
    )
    assert made.documents[0].text.endswith(f" {last.upper()}.")


def test_a_listed_name_in_capitals_is_the_same_name() -> None:
    class OneName(RuleReplacer):
        async def names(self, item: RealItem) -> FoundNames:
            return FoundNames(("Mary Plant",), {"Mary Plant": "Zor Vex"})

    text = "MARY PLANT is Mary Plant, and PLANT is Plant. A plant grows."
    item = RealItem(TASK, (Document("1", "Mary Plant", text),))
    names = NameMap.of([item], STATISTICS, 0)
    (document,) = made_of(item, name_words(item, LinkedPages(CORPUS)), names, OneName()).documents
    assert document.text == "ZOR VEX is Zor Vex, and VEX is Vex. A plant grows."


def test_a_name_of_one_letter_and_a_digit_is_no_number() -> None:
    """Nothing replaces the letter of "U2", so that the name stands in the question as it was; "1987" is no name."""
    seed = RealItem(Task("q", "Who?", ("U2", "1987")), (Document("1", "Ann", "x"),))
    made = FictionalItem(seed, "Who sang in 1987?", ("U2", "1987"), (Document("1", "Vopa", "x"),), {})
    assert surviving_name(made) == "U2"
    assert surviving_name(replace(made, answers=("Kulo", "1987"))) is None


@pytest.mark.parametrize("text", ["She is called Beyonce.", "She is called BEYONCÉ."])
def test_a_name_that_survives_without_its_accents_is_refused(text: str) -> None:
    seed = RealItem(Task("q", "Who?", ("Ann",)), (Document("1", "Beyoncé", "x"),))
    made = FictionalItem(seed, "Who?", ("Kulo",), (Document("1", "Vopa", text),), {})
    assert surviving_name(made) == "Beyoncé"


def test_the_command_with_a_model_rewrites_and_has_a_closed_book_control(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeEndpoint(model) as server:
        spec = f"openai:m@{server.url}"
        words = ["synthesize", "fictional-hot", "--dataset", "hotpotqa", "--data", str(data), "--json"]
        assert main([*words, "--editor", spec, "--solver", spec, "--out", str(tmp_path / "a")]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["closed_book"] == {"n": 1, "real": 1, "fictional": 0}
    assert card["kept_texts"] == 1
    (row,) = map(json.loads, (tmp_path / "a" / "questions.jsonl").read_text().splitlines())
    assert row["question"] == "Which country is the birthplace of Sona Drel in?"
    assert row["known"] is True
    assert row["answers"] == [row["map"]["England"]] != ["Rome"]
    first, second = [json.loads(line) for line in (tmp_path / "a" / "corpus.jsonl").read_text().splitlines()][
        :2
    ]
    assert first["text"].startswith("In Kavo, Sona Drel came")
    assert second["text"] == f"Kavo is a town in {row['answers'][0]}. Its mayor met Sona Drel."


def test_a_solver_that_cannot_be_read_is_no_proof_that_a_question_needs_a_search(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["synthesize", "fictional-hot", "--dataset", "hotpotqa", "--data", str(data)]
    with FakeEndpoint(lambda body: Answer("England")) as server:
        assert main([*words, "--solver", f"openai:m@{server.url}", "--out", str(tmp_path / "a")]) == 1
    assert "1 failed" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_a_question_that_is_answered_without_a_search_is_left_out(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "synthesize",
        "fictional-hot",
        "--dataset",
        "hotpotqa",
        "--data",
        str(data),
        "--haystack",
        "none",
    ]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    (row,) = map(json.loads, (tmp_path / "a" / "questions.jsonl").read_text().splitlines())
    with FakeEndpoint(lambda body: Answer(json.dumps({"answer": row["answers"][0]}))) as server:
        assert main([*words, "--solver", f"openai:m@{server.url}", "--out", str(tmp_path / "b")]) == 1
    assert "no question" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
