"""Oracles: all gold passages at once, or one due on each real page."""

import asyncio
from typing import Any

import pytest

from agentenv.core.types import Document, Query, QueryContext, Task
from agentenv.errors import ConfigurationError, RetrieverFault
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever
from agentenv.retrievers.oracle import OracleRetriever, PagedOracleRetriever

DOCUMENTS = [
    Document(name, name, text)
    for name, text in (("a", "red"), ("b", "red blue"), ("c", "red"), ("g", "gold"))
]
TASK = Task("t", "Which?", ("x",), data={"supporting_ids": ["b", "g"]})
REAL = InMemoryRetriever(DOCUMENTS)
ORACLE = OracleRetriever([TASK], {document.id: document for document in DOCUMENTS})


def search(
    retriever: Any, *texts: str, step: int = 0, question: str = "Which?", k: int = 2
) -> list[list[str]]:
    context = QueryContext("e", question, step=step)
    found = asyncio.run(retriever.search([Query(text, context) for text in texts], k))
    return [[passage.id for passage in page] for page in found]


def test_all_gold_at_once_whatever_is_searched() -> None:
    assert search(ORACLE, "red", k=1) == [["b", "g"]]
    assert search(ORACLE, "red", question="Another?") == [[]]
    assert asyncio.run(ORACLE.search(["red"], 1)) == [[]]


def test_a_page_that_holds_the_document_due_stays_as_it_is() -> None:
    paged = PagedOracleRetriever(ORACLE, REAL)
    assert search(paged, "blue red") == search(REAL, "blue red")
    assert "b" in search(paged, "blue red")[0]


def test_the_document_due_takes_the_first_place_and_the_page_keeps_its_length() -> None:
    paged = PagedOracleRetriever(ORACLE, REAL)
    real = search(REAL, "red", step=1)[0]
    assert search(paged, "red", step=1) == [["g", real[0]]]
    assert search(paged, "red", step=7) == [["g", real[0]]]  # after the last hop the last document stays due
    assert search(paged, "nothing") == [["b"]]


def test_the_queries_of_one_turn_are_searches_of_their_own() -> None:
    paged = PagedOracleRetriever(ORACLE, REAL)
    first, second = search(paged, "nothing", "nothing")
    assert (first, second) == (["b"], ["g"])


def test_a_question_that_it_does_not_know_gets_the_real_page() -> None:
    paged = PagedOracleRetriever(ORACLE, REAL)
    assert search(paged, "red", question="Another?") == search(REAL, "red")
    assert paged.info().contextual


def test_a_fault_of_the_real_search_stays_a_fault() -> None:
    with pytest.raises(RetrieverFault):
        search(PagedOracleRetriever(ORACLE, FaultyRetriever(REAL, {0})), "red")


def test_a_question_without_documents_of_the_corpus_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'t'"):
        OracleRetriever([TASK], {})
