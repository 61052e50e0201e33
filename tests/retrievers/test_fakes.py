"""The shipped fakes: word overlap by hand, and faults on the chosen calls only."""

import asyncio

import pytest

from agentenv.core.types import Document
from agentenv.errors import EnvFault, RetrieverFault
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever

DOCUMENTS = [Document("a", "Halvik", "harbour town"), Document("b", "Herring", "harbour fish, fish, fish")]


def test_score_is_the_number_of_distinct_shared_words() -> None:
    (found,) = asyncio.run(InMemoryRetriever(DOCUMENTS).search(["Fish of the HARBOUR"], 5))
    assert [(passage.id, passage.score) for passage in found] == [("b", 2.0), ("a", 1.0)]


def test_faults_come_on_the_chosen_calls() -> None:
    faulty = FaultyRetriever(InMemoryRetriever(DOCUMENTS), fail_on={1})

    async def main() -> None:
        assert (await faulty.search(["town"], 1))[0][0].id == "a"
        with pytest.raises(RetrieverFault, match=r"\b1\b") as caught:
            await faulty.search(["town"], 1)
        assert isinstance(caught.value, EnvFault)
        assert (await faulty.search(["fish"], 1))[0][0].id == "b"

    asyncio.run(main())
    assert faulty.calls == 3


def test_a_query_of_decomposed_characters_finds_composed_ones() -> None:
    documents = [Document("1", "Beyonc\u00e9", "Beyonc\u00e9 sings."), Document("2", "b", "other text")]
    (found,) = asyncio.run(InMemoryRetriever(documents).search(["Beyonce\u0301"], 1))
    assert [passage.id for passage in found] == ["1"]
