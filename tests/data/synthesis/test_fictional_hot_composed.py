"""FictionalHot for questions without documents: a model writes them, and what is refused of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.env import run_sync
from agentenv.core.types import Task
from agentenv.data.datasets import load_dataset
from agentenv.data.synthesis.fictional_hot import (
    FictionalItem,
    FoundNames,
    NameMap,
    RealItem,
    RuleReplacer,
    WordStatistics,
    left_out,
    name_words,
    replace_names,
)
from agentenv.data.synthesis.fictional_hot_model import ModelReplacer
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.pages import LinkedPages
from agentenv.errors import DatasetError, SynthesisFault
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.model_chat import ChatModels

QUESTION = "who was the mother of mary plant"
ITEM = RealItem(Task("q", QUESTION, ("Ann Reed",)), ())
REPLY = {
    "real": ["mary plant", "Ann Reed"],
    "invented": ["Sona Drel", "Zor Vex"],
    "titles": ["Sona Drel"],
    "texts": ["Sona Drel was a daughter of Zor Vex."],
}


def test_a_question_without_documents_needs_somebody_who_writes_them() -> None:
    assert left_out(ITEM) == "no supporting document is known"
    assert left_out(ITEM, composes=True) == ""


def made_by(reply: dict[str, Any]) -> FictionalItem:
    """The item where a model replies so to whatever it is asked."""
    statistics = WordStatistics([])
    with FakeEndpoint(lambda body: Answer(json.dumps(reply))) as server:
        editor = ModelReplacer(ModelWriter(ChatModels().open(f"openai:m@{server.url}")), statistics)
        found = run_sync(editor.names(ITEM))
        own = name_words(ITEM, LinkedPages([]))
        return run_sync(replace_names(ITEM, own, NameMap.of([ITEM], statistics, 0), found, editor))


def test_a_question_without_capitals_is_asked_about_invented_names_with_a_document_of_its_own() -> None:
    """NQ writes "mary plant"; the names that the editor lists give way there although they begin small."""
    made = made_by(REPLY)
    assert (made.question, made.answers) == ("who was the mother of Sona Drel", ("Zor Vex",))
    (document,) = made.documents
    assert (document.id, document.title) == ("q-1", "Sona Drel")
    assert made.names == {"mary plant": "Sona Drel", "Ann Reed": "Zor Vex"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"real": ["Ann Reed"], "invented": ["Zor Vex"]}, "no name in the question"),
        ({"texts": ["Sona Drel had a mother."]}, "holds the answer"),
        ({"texts": ["Sona Drel was a daughter of Zor Vex, as was Mary."]}, "names 'Mary'"),
        ({"texts": ["Zor Vex was called Reed before."]}, "names 'Reed'"),
        (
            {"real": ["mary plant", "mother", "Ann Reed"], "invented": ["Sona Drel", "x", "Zor Vex"]},
            "'mother'",
        ),
    ],
    ids=[
        "the question stays",
        "no answer",
        "a name of the question",
        "a name of the answer",
        "a listed name stays",
    ],
)
def test_what_would_tell_the_real_question_or_not_the_answer_is_refused(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(DatasetError, match=why):
        made_by({**REPLY, **changes})


@pytest.mark.parametrize("titles", [[], ["Sona Drel", "Zor Vex"]], ids=["none", "one text is missing"])
def test_lists_that_do_not_fit_are_no_documents(titles: list[str]) -> None:
    with pytest.raises(SynthesisFault, match=f"{len(titles)} titles"):
        made_by({**REPLY, "titles": titles, "texts": ["Zor Vex."] if titles else []})


def test_in_a_question_with_capitals_no_name_begins_small() -> None:
    """The common word "plant" stays, so that the listed name "Plant" would survive, and the question is refused."""

    class Lists(RuleReplacer):
        async def names(self, item: RealItem) -> FoundNames:
            return FoundNames(("Plant",), {"Plant": "Drel"})

        async def compose(self, question: str, answers: Sequence[str]) -> Sequence[tuple[str, str]]:
            assert question == "Which plant is named after Drel?"
            return [("Drel", f"Drel is {answers[0]}.")]

    item = RealItem(Task("q", "Which plant is named after Plant?", ("Ann",)), ())
    names = NameMap.of([item], WordStatistics([]), 0)
    found = run_sync(Lists().names(item))
    with pytest.raises(DatasetError, match="'Plant' survives"):
        run_sync(replace_names(item, name_words(item, LinkedPages([])), names, found, Lists()))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A miniature of NQ, which has no corpus."""
    folder = tmp_path / "data" / "nq_open"
    folder.mkdir(parents=True)
    (folder / "NQ-open.dev.jsonl").write_text(
        json.dumps({"question": QUESTION, "answer": ["Ann Reed"]}) + "\n"
    )
    return tmp_path / "data"


def test_the_command_writes_documents_for_a_set_without_a_corpus(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["synthesize", "fictional-hot", "--dataset", "nq", "--data", str(data), "--json"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 1
    assert "no corpus beside nq" in capsys.readouterr().err
    with FakeEndpoint(lambda body: Answer(json.dumps(REPLY))) as server:
        assert main([*words, "--editor", f"openai:m@{server.url}", "--out", str(tmp_path / "b")]) == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["questions"], card["composed"]) == (1, 1)
    (task,) = load_dataset("jsonl", tmp_path / "b" / "questions.jsonl").tasks
    rows = [json.loads(line) for line in (tmp_path / "b" / "corpus.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == list(task.data["supporting_ids"])
    assert "Zor Vex" in rows[0]["text"]
