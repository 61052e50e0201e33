"""What failures lack beside successes, counted by hand; and that a report shows it."""

from typing import Any

import pytest

from agentenv.evaluation.capabilities import SEARCH_SKILLS, capability_report
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.report.tables import tables


def record(
    prediction: str | None, *, searches: int, page: str, hops: int | None = 2, **more: Any
) -> EpisodeRecord:
    turns = [{"action": "a", "observation": page, "valid": True}] * searches
    return {
        "id": "q", "question": "q?", "answers": ["Bay"], "prediction": prediction, "valid": True,
        "end_reason": "answered", "searches": searches, "hops": hops, "turns": turns,
    } | more  # type: ignore[return-value]  # fmt: skip


PLAYED = [
    record("Bay", searches=2, page="in Bay"),
    record("Bay", searches=2, page="in Bay"),
    record("Moor", searches=1, page="Moor, Bay"),
    record("Fen", searches=1, page="in Moor"),
    record(None, searches=0, page="", valid=False, end_reason="env_fault"),
]
VALUES = [1.0, 1.0, 0.0, 0.0, 0.0]


def report(played: list[EpisodeRecord], values: list[float]) -> dict[str, Any]:
    return {row["skill"]: row for row in capability_report(played, values, SEARCH_SKILLS)}


def test_the_report_names_what_failures_lack() -> None:
    """Two hops: both successes search twice, both failures once, so chaining is missing by a gap of 1.

    Every episode searches: no gap. Failures that did not chain their searches are not asked whether they found the answer.
    The three that were shown it all answer with something that they were shown. The fault says nothing.
    """
    found = report(PLAYED, VALUES)
    chain = found["chains searches"]
    assert chain == {
        "skill": "chains searches", "episodes": 4, "shown_in_successes": 1.0, "shown_in_failures": 0.0,
        "missing": True, "slice": "questions of two hops and more: agentenv world --hops 2-4",
    }  # fmt: skip
    assert not found["searches"]["missing"]
    assert (found["finds the answer"]["episodes"], found["finds the answer"]["missing"]) == (2, False)
    assert found["finds the answer"]["shown_in_failures"] is None
    assert found["answers with what it was shown"]["episodes"] == 3
    assert not found["answers with what it was shown"]["missing"]
    assert next(iter(found)) == "chains searches"


def searched(*queries: str) -> EpisodeRecord:
    turns = [
        {"action": query, "tool_results": [{"name": "search", "text": query, "ids": [["a"]]}]}
        for query in queries
    ]
    return record("Fen", searches=len(queries), page="in Moor", turns=turns)


def test_a_query_that_is_repeated_is_no_chain_of_searches() -> None:
    """Of the failures the first asks the same twice, in other letters; the second asks two things, and shows the skill."""
    played = [searched("who made the Kov?", "Who made Kov"), searched("who made the Kov?", "where is Zed?")]
    found = report(played, [0.0, 0.0])["chains searches"]
    assert (found["episodes"], found["shown_in_failures"]) == (2, 0.5)


def test_a_skill_is_asked_for_where_what_it_builds_on_was_shown() -> None:
    """Who does not search is asked for nothing that follows; who ends in no action not whether it read or was in time."""
    broken = {"action": "blub", "observation": "", "valid": False}
    late = {"action": "<search>Kov</search>", "observation": "", "valid": False}
    shown = {"action": "<search>Kov</search>", "observation": "in Bay", "valid": True}
    idle = record("Fen", searches=0, page="")
    silent = record(None, searches=1, page="", hops=1, turns=[shown, broken], end_reason="turn_limit")
    slow = record(None, searches=1, page="", hops=1, turns=[shown, late], end_reason="turn_limit")
    asked = {
        name: [skill.name for skill in SEARCH_SKILLS if skill.exercises(episode)]
        for name, episode in (("idle", idle), ("silent", silent), ("slow", slow))
    }
    assert asked["idle"] == ["searches", "writes valid actions", "answers in time"]
    assert asked["silent"] == ["searches", "finds the answer", "writes valid actions"]
    assert asked["slow"] == ["searches", "finds the answer", "writes valid actions", "answers in time"]
    (form,) = (skill for skill in SEARCH_SKILLS if skill.name == "writes valid actions")
    assert [form.demonstrated(one) for one in (silent, slow)] == [False, True]


def test_a_skill_that_no_success_shows_is_missing_where_failures_hardly_show_it() -> None:
    """No success to compare with counts as one that shows it: failures that never search lack searching."""
    found = report([record(None, searches=0, page="", hops=1, end_reason="turn_limit")], [0.0])
    assert found["searches"]["missing"]
    assert found["searches"]["shown_in_successes"] is None
    assert found["answers in time"]["missing"]
    assert not found["chains searches"]["missing"]  # no question of two hops


def test_questions_of_unknown_hops_count_as_those_of_one() -> None:
    """Sets without hops leave them out of a record, or write null."""
    found = report([record("Bay", searches=1, page="in Bay", hops=None)], [1.0])
    assert found["chains searches"]["episodes"] == 0


@pytest.mark.parametrize(
    ("turn", "shown"),
    [
        ({"valid": False}, 0.0),
        ({"tool_results": [{"name": "search", "status": "format_error"}]}, 0.0),
        ({}, 1.0),
    ],
)
def test_an_action_that_could_not_be_read_is_no_valid_one(turn: dict[str, Any], shown: float) -> None:
    broken = record("Fen", searches=1, page="", turns=[{"action": "a", "observation": ""} | turn])
    assert report([broken], [0.0])["writes valid actions"]["shown_in_failures"] == shown


def test_the_report_page_says_what_is_missing_and_what_exercises_it() -> None:
    results = {"capabilities": capability_report(PLAYED, VALUES, SEARCH_SKILLS)}
    (table,) = tables([("", results)], "em_squad")
    rows = {row[0]: row[1:] for row in table["rows"]}
    assert table["title"] == "What failures lack"
    chain = "chains searches (exercised by questions of two hops and more: agentenv world --hops 2-4)"
    assert rows[chain] == ["4", "1.000", "0.000", "yes"]
    assert rows["searches (exercised by any question)"] == ["4", "1.000", "1.000", ""]
