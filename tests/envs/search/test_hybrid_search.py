"""HybridDeepSearcher's form: its queries and boxes by hand, and answers that are forced."""

from typing import Any

import pytest

from agentenv.core.types import Document, EndReason, Step, Task
from agentenv.envs.search.hybrid_search import (
    BEGIN_QUERIES,
    END_QUERIES,
    FINAL,
    HybridSearch,
    boxed_answer,
    completed,
    queries_in,
)
from agentenv.evaluation.benchmark import Benchmark
from agentenv.retrievers.fakes import InMemoryRetriever

DOCUMENTS = [
    Document("a", "Halvik", "Halvik is in Norland ."),
    Document("b", "Ketterby", "Ketterby has a port ."),
]
TASK = Task(
    "q", "Where is Halvik?", ("Norland",), data={"path": [{"query": "Halvik"}, {"query": "Ketterby"}]}
)


def asked(*queries: str) -> str:
    return BEGIN_QUERIES + "\n" + ";\n".join(queries) + "\n" + END_QUERIES


def played(*actions: str, **options: Any) -> list[Step]:
    env = HybridSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), **{"k": 1, **options})
    env.reset(seed=0)
    return [env.step(action) for action in actions]


@pytest.mark.parametrize(
    ("text", "queries"),
    [
        (asked("a", "b"), ["a", "b"]),
        (f"I need two.{BEGIN_QUERIES}a\nb;\n\n c {END_QUERIES}", ["a", "b", "c"]),
        (f"{BEGIN_QUERIES}a; b;{END_QUERIES}", ["a", "b"]),
        (f"{BEGIN_QUERIES}a; b;\nc{END_QUERIES}", ["a; b", "c"]),  # of several lines each is a query
        (f"{BEGIN_QUERIES} ; {END_QUERIES}", []),
        (BEGIN_QUERIES + asked("a"), None),  # two tokens that begin queries
        (asked("a") + asked("b"), None),
        (f"{BEGIN_QUERIES}a", None),
        ("<search>a</search>", None),
    ],
)
def test_queries_stand_on_lines_or_between_semicolons(text: str, queries: list[str] | None) -> None:
    assert queries_in(text) == queries


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{Norland}.", "Norland"),
        ("\\boxed{Rome} or \\boxed{ Ulm }", "Ulm"),
        ("\\boxed{\\text{the far} {north}}", "the far {north}"),
        ("\\boxed{Rome} or \\boxed{Ulm", "Rome"),
        ("\\boxed{}", ""),
        ("Norland", None),
    ],
)
def test_the_last_closed_box_is_the_answer(text: str, answer: str | None) -> None:
    assert boxed_answer(text) == answer


def test_an_open_box_is_completed() -> None:
    assert completed("Norland} and more") == "Norland"
    assert completed("Norland") is None


def test_queries_run_side_by_side_and_a_repeated_one_gets_a_notice() -> None:
    first, second, last = played(asked("Halvik", "Ketterby port"), asked("Halvik"), "so \\boxed{Norland}")
    text = first.observation[0].text
    assert text.startswith(
        "\n\n<|begin_search_results|>\nDoc 1(Title: Halvik) Halvik is in Norland .\nDoc 2(Title: Ketterby)"
    )
    assert text.endswith("\n<|end_search_results|>\n\n<think>\n")
    assert "Query 1(repeated)" in second.observation[0].text
    assert (last.terminated, last.reward, last.info["answer"]) == (True, 1.0, "Norland")


def test_an_end_without_a_box_is_forced_and_completed() -> None:
    two = asked("Halvik") + asked("Ketterby")
    for end in ("It is Norland.", two):
        opened, last = played(end, "Norland}")
        assert opened.observation[0].text == FINAL
        assert not opened.terminated
        assert (last.terminated, last.reward) == (True, 1.0)
    assert played("It is Norland.", "Norland")[1].info["answer"] == "Norland"  # the box may stay open


def test_after_the_last_search_the_answer_is_due() -> None:
    searches = [asked(f"Halvik {n}") for n in range(2)]
    steps = played(*searches, asked("Ketterby"), "Norland}", max_turns=2)
    assert ["begin_search_results" in step.observation[0].text for step in steps[:3]] == [True, True, False]
    assert steps[2].observation[0].text == FINAL
    assert (steps[3].terminated, steps[3].reward) == (True, 1.0)
    refused = played(*searches, asked("Ketterby"), asked("Halvik"), max_turns=2)[3]
    assert (refused.truncated, refused.reward, refused.info["end_reason"]) == (
        True,
        0.0,
        EndReason.TURN_LIMIT,
    )


def test_the_expert_asks_at_once_what_does_not_wait() -> None:
    env = HybridSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1)
    env.reset(seed=0)
    assert env.expert() == (asked("Halvik", "Ketterby"), "\\boxed{Norland}")
    assert env.expert_gives_up() == "\\boxed{}"


def test_an_evaluation_has_the_measures_of_the_paper() -> None:
    """F1, EM and acc over words that keep their punctuation and articles."""
    assert {"f1_plain", "em_plain", "em_cover_plain"} <= {
        *Benchmark("", "tiny", env="agentenv/HybridSearch-v0").scorers
    }
