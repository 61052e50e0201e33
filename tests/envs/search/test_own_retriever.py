"""A retriever of somebody's own: what is wrong with it is said in one sentence, and never by the code that uses it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import RetrieverFault
from agentenv.retrievers.bulk import search_all
from agentenv.retrievers.cassette import CassetteRetriever
from agentenv.retrievers.prefixes import PrefixRetriever
from agentenv.retrievers.rerank import OverlapReranker, RerankRetriever


class Own:
    """Gives what it was made with."""

    def __init__(self, found: Any) -> None:
        self.found = found

    async def search(self, queries: Sequence[Query | str], k: int) -> Any:
        return self.found

    def info(self) -> RetrieverInfo:
        return RetrieverInfo("own", 1, "f")


class Plain(Own):
    def search(self, queries: Sequence[Query | str], k: int) -> Any:
        return self.found


PASSAGE = Passage("1", "Mill", "Built by Ada.", 1.0)


@pytest.mark.parametrize(
    ("retriever", "words"),
    [
        (Plain([[PASSAGE]]), "Plain.search is a plain function: write `async def search"),
        (
            Own([[{"title": "Mill"}]]),
            "Own.search must give agentenv.Passage objects, and gave {'title': 'Mill'}",
        ),
        (Own([]), "one list of passages for each of 1 queries"),
        (Own(None), "one list of passages for each of 1 queries"),
        (Own([[PASSAGE], []]), "one list of passages for each of 1 queries"),
        (Own([None]), "one list of passages for each of 1 queries"),
    ],
)
def test_what_a_retriever_of_ones_own_gives_is_checked(retriever: Any, words: str) -> None:
    env = LocalSearch(retriever=retriever)
    env.reset(seed=1)
    with pytest.raises(RetrieverFault) as caught:
        env.step("<search>mill</search>")
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["cassette", "rerank", "prefix", "bulk"])
def test_it_is_checked_where_another_retriever_or_a_measurement_asks_it(kind: str, tmp_path: Path) -> None:
    plain: Any = Plain([[PASSAGE]])
    asks = {
        "cassette": lambda: CassetteRetriever(tmp_path / "tape", plain).search(["mill"], 1),
        "rerank": lambda: RerankRetriever(plain, OverlapReranker()).search(["mill"], 1),
        "prefix": lambda: PrefixRetriever(plain).search([Query("mill")], 1),
    }
    with pytest.raises(RetrieverFault, match=r"Plain\.search is a plain function"):
        list(search_all(plain, ["mill"], 1)) if kind == "bulk" else run_to_completion(asks[kind]())


def test_a_good_one_is_searched() -> None:
    env = LocalSearch(retriever=Own([[PASSAGE]]))
    env.reset(seed=1)
    assert "Built by Ada." in env.step("<search>mill</search>").observation[0].text
