"""Parts of a corpus: every document is in one of them, and the order is that of the whole."""

import asyncio
from collections.abc import Sequence

import pytest

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document
from agentenv.errors import ConfigurationError
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.part import PartRetriever
from agentenv.retrievers.retriever_contract import RetrieverContract

DOCUMENTS = [Document(f"d{n}", f"Halvik {n}", f"herring number {n}") for n in range(40)]
WHOLE = InMemoryRetriever(DOCUMENTS)


class TestPart(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        return PartRetriever(InMemoryRetriever(documents), 1, 1)


def found(retriever: Retriever, k: int) -> list[str]:
    return [passage.id for passage in asyncio.run(retriever.search(["herring"], k))[0]]


def test_the_parts_share_no_document_and_have_all_of_them() -> None:
    whole = found(WHOLE, 40)
    parts = [found(PartRetriever(WHOLE, number, 3), 40) for number in (1, 2, 3)]
    assert sorted(one for part in parts for one in part) == sorted(whole)
    assert all(part and part == [one for one in whole if one in part] for part in parts)
    assert found(PartRetriever(WHOLE, 2, 3), 4) == parts[1][:4]


def test_a_part_is_named_as_such() -> None:
    infos = [PartRetriever(WHOLE, number, 2).info() for number in (1, 2)]
    assert infos[0].name == f"part 1 of 2 of {WHOLE.info().name}"
    assert len({WHOLE.info().fingerprint, *(info.fingerprint for info in infos)}) == 3


@pytest.mark.parametrize(("number", "count"), [(0, 2), (3, 2), (1, 0)])
def test_a_part_that_does_not_exist_is_refused(number: int, count: int) -> None:
    with pytest.raises(ConfigurationError, match=f"part {number} of {count}"):
        PartRetriever(WHOLE, number, count)
