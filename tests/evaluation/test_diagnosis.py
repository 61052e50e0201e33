"""Causes of errors, evidence, coverage of a corpus and costs, each worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from agentenv.core.types import Task
from agentenv.evaluation.diagnosis import answer_shown, cause_of, costs, coverage, error_table, support
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.results import mark_low_ceilings, summarize

Maker = Callable[..., EpisodeRecord]

SAW = {
    "action": "<search>x</search>",
    "observation": "<information>Doc 1(Title: t) It is Paris.</information>",
}
MISSED = {
    "action": "<search>x</search>",
    "observation": "<information>Doc 1(Title: t) Parisian.</information>",
}


@pytest.mark.parametrize(
    ("prediction", "changes", "cause"),
    [
        ("Paris", {}, "correct"),
        ("Rome", {"turns": [SAW]}, "read_miss"),
        ("Rome", {"turns": [MISSED]}, "retrieval_miss"),  # a part of a word is not the answer
        ("Rome", {"turns": []}, "retrieval_miss"),
        ("Rome", {"supporting_ids": ["s"], "retrieved_ids": [["x"], ["s"]], "turns": [MISSED]}, "read_miss"),
        ("Rome", {"supporting_ids": ["s", "t"], "retrieved_ids": [["s"]], "turns": [SAW]}, "retrieval_miss"),
        ("no", {"answers": ["yes"], "retrieved_ids": [["x"]], "turns": [MISSED]}, "read_miss"),
        ("no", {"answers": ["yes"]}, "retrieval_miss"),
        ("", {"turns": [SAW]}, "gave_up"),
        ("the", {"turns": [SAW]}, "gave_up"),
        (None, {"turns": [SAW]}, "gave_up"),
        # Searched once more.
        (None, {"turns": [SAW, SAW | {"valid": False}], "end_reason": "turn_limit"}, "gave_up"),
        (None, {"turns": [{"action": "<answer>Paris", "valid": False}]}, "format"),
        # A turn counts as valid where it says nothing.
        (None, {"turns": [{"action": "<answer>Paris"}]}, "gave_up"),
        (None, {"turns": []}, "gave_up"),
        ("Paris", {"valid": False}, "fault"),
    ],
)
def test_every_episode_has_one_cause(
    record: Maker, prediction: str | None, changes: dict[str, Any], cause: str
) -> None:
    row = record("q", prediction, **changes)
    assert cause_of(row, float(prediction == "Paris")) == cause
    table = error_table([row], [float(prediction == "Paris")], "em_squad")
    assert {name: n for name, n in table.items() if n == 1 and name != "correct_without_evidence"} == {
        cause: 1
    }


def test_a_right_answer_without_evidence_is_counted_apart(record: Maker) -> None:
    table = error_table([record("a", turns=[SAW]), record("b", turns=[MISSED])], [1.0, 1.0], "em_squad")
    assert (table["correct"], table["correct_without_evidence"]) == (2, 1)


def test_a_graded_score_counts_from_one_half(record: Maker) -> None:
    assert cause_of(record("a"), 0.5) == "correct"
    assert cause_of(record("a", turns=[SAW]), 0.49) == "read_miss"


def test_support_over_the_whole_episode(record: Maker) -> None:
    """One question with 1 of 2 documents, one with both over two searches, one that names none: 3/4, all of them 1/2."""
    rows = [
        record("a", supporting_ids=["s", "t"], retrieved_ids=[["s", "x"]], turns=[MISSED]),
        record("b", supporting_ids=["s", "t"], retrieved_ids=[["x", "y", "s"], ["t"]], turns=[SAW]),
        record("c", answers=["yes"], turns=[SAW]),  # cannot be looked up
    ]
    assert support(rows) == {
        "support_recall": 0.75,
        "all_support": 0.5,
        "answer_shown": 0.5,
        "answer_shown_n": 2,
    }
    assert support([record("d", answers=["no"])]) == {
        "support_recall": None,
        "all_support": None,
        "answer_shown": None,
        "answer_shown_n": 0,
    }


def test_an_answer_is_looked_for_in_one_observation_as_whole_words(record: Maker) -> None:
    assert answer_shown(record("a", answers=["the New York"], turns=[{"observation": "in NEW  York, 1950"}]))
    assert not answer_shown(record("a", answers=["New Yorker"], turns=[{"observation": "New York"}]))
    assert not answer_shown(record("a", answers=["New York"], turns=[{"action": "New York"}]))


def test_coverage_of_a_corpus() -> None:
    """Found: "United States" (by an alias), "Paris". Not: "1950" inside 19501. Yes and "the" are not looked up."""
    tasks = [
        Task("1", "q", ("USA", "the United States")),
        Task("2", "q", ("Paris",)),
        Task("3", "q", ("1950",)),
        Task("4", "q", ("yes",)),
        Task("5", "q", ("The",)),
        Task("6", "q", ("yes", "of Paris")),
    ]
    texts = ["He left the United\nStates.", "PARIS! No. 19501", "of"]
    assert coverage(tasks, texts) == {"share": 0.5, "n": 4}
    assert coverage(tasks[3:5], texts) == {"share": None, "n": 0}


def test_costs_are_for_each_question_and_each_right_answer(record: Maker) -> None:
    rows = [record(str(i), tokens={"policy": 10 * i, "total": 100}) for i in (1, 2)]
    assert costs(rows, 1, "tokens") == {
        "unit": "tokens",
        "policy_per_question": 15.0,
        "policy_per_correct": 30.0,
        "total_per_question": 100.0,
        "total_per_correct": 200.0,
    }
    assert costs(rows, 0, "tokens")["policy_per_correct"] is None
    assert costs([], 0, "tokens")["policy_per_question"] is None


def test_a_ceiling_below_the_run_says_so(record: Maker) -> None:
    bounds: dict[str, dict[str, Any]] = {
        "closed_book": {"mean": 0.0},
        "oracle": {"mean": 0.4},
        "oracle_paged": {"mean": 0.6},
        "x": {"note": "n"},
    }
    marked = mark_low_ceilings(bounds, 0.5)
    assert [name for name, bound in marked.items() if "below the run" in bound.get("note", "")] == ["oracle"]
    assert bounds["oracle"] == {"mean": 0.4}
    assert mark_low_ceilings(bounds, None) == bounds
    result = summarize(
        [record("a")], ["em_squad"], dataset="d", split="", policy="p", retriever="r", k=1, bounds=bounds
    )
    assert {"note", "mean"} == set(result["bounds"]["oracle_paged"])  # 0.6 is below 1
    assert result["errors"]["correct"] == 1


def test_what_repeats_a_malformed_action_is_no_evidence(record: Callable[..., EpisodeRecord]) -> None:
    echoed = {"observation": "No document titled 'New York' was found so far.", "valid": False}
    assert not answer_shown(record("a", answers=["New York"], turns=[echoed]))
    assert answer_shown(record("a", answers=["New York"], turns=[{**echoed, "valid": True}]))


def test_chinese_answers_are_found_within_clauses(record: Callable[..., EpisodeRecord]) -> None:
    assert answer_shown(record("a", answers=["北京"], turns=[{"observation": "首都是北京。"}]))
    assert coverage([Task("a", "?", ("北京",)), Task("b", "?", ("南京",))], ["首都是北京。"]) == {
        "share": 0.5, "n": 2,
    }  # fmt: skip
