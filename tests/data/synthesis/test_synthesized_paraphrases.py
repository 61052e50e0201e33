"""Wordings that a model writes: which of them are kept, and the command."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.types import Task
from agentenv.data.datasets import load_dataset
from agentenv.data.paraphrases import paraphrases_of
from agentenv.data.synthesis.paraphrases import wording_flaw
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint

TASK = Task("q", "Who led Halvik in 1950?", ("Ada",))


@pytest.mark.parametrize(
    ("other", "flawed"),
    [
        ("Who was the leader of Halvik in 1950?", False),
        ("who  led halvik in 1950?", True),
        ("Was Ada the leader of Halvik in 1950?", True),
        ("Who was the leader of Halvik in 1951?", True),
        ("Who was the leader of Halvik?", True),
        ("Who in Adana led Halvik in 1950?", False),
    ],
    ids=["fine", "the same", "the answer", "another number", "no number", "a longer word"],
)
def test_a_wording_says_the_same_in_other_words(other: str, flawed: bool) -> None:
    assert bool(wording_flaw(TASK, other)) is flawed


def test_an_answer_that_the_question_offers_may_stand_in_a_wording() -> None:
    assert wording_flaw(Task("q", "Is Ada or Bob older?", ("Ada",)), "Who is older, Ada or Bob?") == ""


def model(body: Any) -> Answer:
    """Writes three wordings of which a program refuses one and the judge another; knows nothing else to say of Ulm."""
    asked = body["messages"][0]["content"]
    if "other ways" in asked:
        said: dict[str, Any] = {
            "questions": ["Who headed Halvik in 1950?", "Was it Ada in 1950?", "Who left it in 1950?"]
        }
        if "Ulm" in asked:
            said = {"questions": ["Where is Ulm?"]}
    else:
        said = {"same": "no" if "left" in asked else "yes"}
    return Answer(json.dumps(said))


def test_the_command_keeps_what_passes_and_leaves_out_questions_without_a_wording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"id": "q", "question": TASK.question, "answers": ["Ada"]},
        {"id": "u", "question": "Where is Ulm?", "answers": ["here"]},
    ]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "corpus.jsonl").write_text(
        json.dumps({"id": "1", "title": "Halvik", "text": "Ada led it."}) + "\n"
    )
    with FakeEndpoint(model) as server:
        words = ["synthesize", "paraphrases", "--dataset", str(tmp_path / "questions.jsonl"), "--json"]
        words += ["--editor", f"openai:m@{server.url}", "--out", str(tmp_path / "out")]
        assert main(words) == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["questions"], card["wordings"], card["failures"]) == (1, 1, {"DatasetError": 1})
    dataset = load_dataset("jsonl", tmp_path / "out" / "questions.jsonl")
    assert paraphrases_of(dataset.tasks[0]) == (TASK.question, "Who headed Halvik in 1950?")
    assert dataset.corpus == tmp_path / "out" / "corpus.jsonl"
