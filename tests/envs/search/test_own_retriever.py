"""A retriever of somebody's own: what is wrong with it is said in one sentence, and never by the code that uses it."""

from collections.abc import Sequence
from typing import Any

import pytest

from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import RetrieverFault


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
    ],
)
def test_what_a_retriever_of_ones_own_gives_is_checked(retriever: Any, words: str) -> None:
    env = LocalSearch(retriever=retriever)
    env.reset(seed=1)
    with pytest.raises(RetrieverFault) as caught:
        env.step("<search>mill</search>")
    assert words in str(caught.value)


def test_a_good_one_is_searched() -> None:
    env = LocalSearch(retriever=Own([[PASSAGE]]))
    env.reset(seed=1)
    assert "Built by Ada." in env.step("<search>mill</search>").observation[0].text
