"""TopiOCQA and QReCC in their own formats: turns, histories, gold passages, what is left out, and splits."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.types import Document
from agentenv.data.datasets import load_dataset
from agentenv.envs.search.rewrite import Rewrite
from agentenv.errors import DatasetError
from agentenv.retrievers.fakes import InMemoryRetriever

TOPIOCQA: list[dict[str, Any]] = [
    {
        "Conversation_no": 1,
        "Turn_no": 1,
        "Question": "who built the tower",
        "Answer": "Ada Stone",
        "Topic": "The Tower",
        "Topic_section": "History",
        "Rationale": "The tower was built by Ada Stone.",
        "Context": [],
        "is_nq": True,
        "Additional_answers": [],
        "Gold_passage": {
            "id": "wiki:7",
            "title": "The Tower [SEP] History",
            "text": "The tower was built by Ada Stone.",
        },
    },
    {
        "Conversation_no": 1,
        "Turn_no": 2,
        "Question": "where was she born?",
        "Answer": "in Ulm",
        "Topic": "Ada Stone",
        "Topic_section": "Life",
        "Rationale": "She was born in Ulm.",
        "Context": ["who built the tower", "Ada Stone"],
        "is_nq": False,
        "Additional_answers": [{"Answer": "Ulm", "Topic": "Ada Stone"}, {"Answer": "UNANSWERABLE"}],
        "Gold_passage": {"id": "wiki:9", "title": "Ada Stone [SEP] Life", "text": "She was born in Ulm."},
    },
    {
        "Conversation_no": 1,
        "Turn_no": 3,
        "Question": "did she like it?",
        "Answer": "UNANSWERABLE",
        "Topic": "Ada Stone",
        "Topic_section": "",
        "Rationale": "",
        "Context": ["who built the tower", "Ada Stone", "where was she born?", "in Ulm"],
        "is_nq": False,
        "Additional_answers": [],
    },
]


def qrecc_turn(conversation: int, turn: int, **changes: Any) -> dict[str, Any]:
    history = ["What is the tower?", "A building."] * (turn - 1)
    return {
        "Context": history,
        "Question": "Who built it?",
        "Rewrite": "Who built the tower?",
        "Answer": "Ada Stone built it.",
        "Answer_URL": "http://web.archive.org/web/1/http://tower.example/",
        "Conversation_no": conversation,
        "Turn_no": turn,
        "Conversation_source": "quac",
    } | changes


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(rows))
    return path


def test_turns_of_topiocqa_have_their_history_their_answers_and_their_passage(tmp_path: Path) -> None:
    write(tmp_path / "topiocqa", "topiocqa_dev.json", TOPIOCQA)
    first, second = load_dataset("topiocqa", tmp_path).tasks  # the third turn cannot be answered
    assert (first.id, first.data["history"], first.data["supporting_ids"]) == ("1_1", [], ("wiki:7",))
    assert (second.id, second.question, second.answers) == ("1_2", "where was she born?", ("in Ulm", "Ulm"))
    assert second.data["history"] == [("who built the tower", "Ada Stone")]
    assert (second.data["topic"], second.data["cluster"]) == ("Ada Stone", "conversation 1")


def dpr_turn(question: str, **changes: Any) -> dict[str, Any]:
    return {
        "conv_id": 1,
        "turn_id": question.count("[SEP]") // 2 + 1,
        "question": question,
        "answers": ["in Ulm", "Ulm"],
        "positive_ctxs": [
            {"title": "Ada Stone [SEP] Life", "text": "She was born in Ulm.", "passage_id": "wiki:9"}
        ],
        "negative_ctxs": [],
        "hard_negative_ctxs": [],
    } | changes


def test_the_files_of_topiocqas_own_program_are_read_in_three_forms(tmp_path: Path) -> None:
    """Five turns in the form AllHistory, of which one cannot be answered, and one of each other form."""
    history = "who built the tower [SEP] Ada Stone [SEP] where was she born"
    turns = [
        dpr_turn("who built the tower", answers=["Ada Stone"], positive_ctxs=[]),
        dpr_turn(history),
        dpr_turn(f"{history} [SEP] in Ulm [SEP] when", answers=["1850"]),
        dpr_turn(f"{history} [SEP] in Ulm [SEP] when [SEP] 1850 [SEP] why", answers=["UNANSWERABLE"]),
        dpr_turn(f"{history} [SEP] in Ulm [SEP] when [SEP] 1850 [SEP] why [SEP] UNANSWERABLE [SEP] so?"),
    ]
    write(tmp_path / "topiocqa", "topiocqa_all_history_retriever_dev.json", turns)
    found = load_dataset("topiocqa_dpr", tmp_path).tasks
    assert [task.id for task in found] == ["1_1", "1_2", "1_3", "1_5"]
    second = found[1]
    assert (second.question, second.answers) == ("where was she born", ("in Ulm", "Ulm"))
    assert second.data["history"] == [("who built the tower", "Ada Stone")]
    assert (second.data["supporting_ids"], second.data["topic"]) == (("wiki:9",), "Ada Stone")
    assert {task.data["cluster"] for task in found} == {"conversation 1"}
    numbered = dpr_turn(history, positive_ctxs=[{"title": "A", "text": "She was.", "passage_id": "9"}])
    (task,) = load_dataset("topiocqa_dpr", write(tmp_path, "numbers.json", [numbered])).tasks
    assert task.data["supporting_ids"] == ("wiki:9",)  # as the documents of their table are called
    for name, question in (("original", "where was she born"), ("rewrites", "where was Ada Stone born")):
        path = write(tmp_path, f"topiocqa_{name}_retriever_dev.json", [dpr_turn(question)])
        (task,) = load_dataset("topiocqa_dpr", path).tasks
        assert (task.question, task.data["history"]) == (question, [])


def test_turns_of_qrecc_have_the_rewriting_of_a_person_and_passages_from_elsewhere(tmp_path: Path) -> None:
    rows = [qrecc_turn(3, 1), qrecc_turn(3, 2, Answer=""), qrecc_turn(3, 3)]
    write(tmp_path / "qrecc", "qrecc_test.json", rows)
    (tmp_path / "qrecc" / "qrecc_test.qrels.tsv").write_text("3_1\tp4\t1\n3_1\tp5\t1\n3_3\tp6\t1\n")
    first, third = load_dataset("qrecc", tmp_path).tasks  # the second has no answer
    assert (first.id, first.answers, first.data["rewrite"]) == (
        "3_1",
        ("Ada Stone built it.",),
        "Who built the tower?",
    )
    assert first.data["supporting_ids"] == ("p4", "p5")
    assert len(third.data["history"]) == 2


def test_a_copy_of_qrecc_with_other_names_is_read(tmp_path: Path) -> None:
    row = qrecc_turn(3, 1, Truth_passages=["p4"])
    row["Truth_answer"], row["Truth_rewrite"] = row.pop("Answer"), row.pop("Rewrite")
    path = write(tmp_path, "turns.json", [row])
    (task,) = load_dataset("qrecc", path).tasks
    assert (task.data["rewrite"], task.data["supporting_ids"]) == ("Who built the tower?", ("p4",))


def test_no_conversation_is_in_two_splits(tmp_path: Path) -> None:
    rows = [qrecc_turn(conversation, turn) for conversation in range(60) for turn in (1, 2)]
    write(tmp_path / "qrecc", "qrecc_train.json", rows)
    train = load_dataset("qrecc", tmp_path, split="train").tasks
    dev = load_dataset("qrecc", tmp_path, split="dev").tasks
    assert len(train) + len(dev) == 120
    assert 0 < len(dev) < 30
    clusters = [{task.data["cluster"] for task in tasks} for tasks in (train, dev)]
    assert clusters[0].isdisjoint(clusters[1])
    assert all(len(tasks) == 2 * len(found) for tasks, found in zip((train, dev), clusters, strict=True))


@pytest.mark.parametrize(
    ("name", "row", "named"),
    [
        ("topiocqa", TOPIOCQA[1] | {"Context": ["alone"]}, "alone"),
        ("topiocqa", TOPIOCQA[1] | {"Additional_answers": [7]}, "7"),
        ("topiocqa", TOPIOCQA[1] | {"Gold_passage": "wiki:9"}, "wiki:9"),
        ("topiocqa_dpr", dpr_turn("a [SEP] b"), "1 parts"),
        ("topiocqa_dpr", dpr_turn("a", answers="b"), "'b'"),
        ("qrecc", qrecc_turn(1, 1, Answer=None), "None"),
        ("qrecc", qrecc_turn(1, 1, Question=" "), "Question"),
        ("qrecc", {k: v for k, v in qrecc_turn(1, 1).items() if k != "Conversation_no"}, "Conversation_no"),
    ],
    ids=[
        "odd history",
        "additional answer",
        "passage",
        "no question",
        "one answer",
        "no answer",
        "blank question",
        "no conversation",
    ],
)
def test_a_malformed_turn_is_named(tmp_path: Path, name: str, row: dict[str, Any], named: str) -> None:
    path = write(tmp_path, "one.json", [row])
    with pytest.raises(DatasetError, match=named):
        load_dataset(name, path)


def test_the_best_rank_of_the_passages_is_the_reward_of_a_rewriting(tmp_path: Path) -> None:
    """The gold passages stand at ranks 2 and 3, and the first of them pays 19/9 - 2/9."""
    path = write(tmp_path, "turns.json", [qrecc_turn(3, 2, Truth_passages=["p3", "p2"])])
    (task,) = load_dataset("qrecc", path).tasks
    documents = [Document(f"p{n}", "tower", "built " * (5 - n)) for n in (1, 2, 3)]
    env = Rewrite(tasks=[task], retriever=InMemoryRetriever(documents))
    opening, _ = env.reset(seed=0)
    assert "Q: What is the tower?\nA: A building.\nQ: Who built it?" in opening[0].text
    (action,) = env.expert() or ()
    assert "<rewrite> Who built the tower? </rewrite>" in action
    step = env.step(action)
    assert step.info["rank"] == 2
    assert step.reward == pytest.approx(17 / 9)
