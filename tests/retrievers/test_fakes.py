"""The shipped fakes: word overlap by hand, and faults on the chosen calls only."""

import asyncio
from collections.abc import Callable
from typing import Literal
from unicodedata import normalize

import pytest

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document
from agentenv.errors import EnvFault, RetrieverFault
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever

Form = Literal["NFC", "NFD"]
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


@pytest.mark.parametrize("asked", ["NFC", "NFD"])
@pytest.mark.parametrize("written", ["NFC", "NFD"])
@pytest.mark.parametrize(
    "build",
    [
        InMemoryRetriever,
        BM25Retriever.build,
        lambda documents: FaissRetriever.build(documents, HashEncoder()),
    ],
    ids=["words", "bm25", "faiss"],
)
def test_an_accent_is_the_same_in_one_character_or_two(
    build: Callable[[list[Document]], Retriever], written: Form, asked: Form
) -> None:
    name, shown = normalize(asked, "Beyonc\u00e9"), normalize(written, "Beyonc\u00e9")
    (found,) = asyncio.run(
        build([Document("1", "b", "other text"), Document("2", shown, "sings")]).search([name], 1)
    )
    assert [(passage.id, passage.title) for passage in found] == [("2", shown)]


def test_words_are_found_in_scripts_without_blanks() -> None:
    documents = [Document("s", "上海", "最大的城市"), Document("b", "北京", "中华人民共和国的首都")]
    (found,) = asyncio.run(InMemoryRetriever(documents).search(["首都是哪里"], 2))
    assert [passage.id for passage in found] == ["b"]
