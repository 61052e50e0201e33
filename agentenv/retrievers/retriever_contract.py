"""Tests that every retriever must pass. Define `RetrieverContract.make`; pytest runs the tests.

class TestMine(RetrieverContract):
    def make(self, documents):
        return MyRetriever(documents)
"""

import asyncio
from collections.abc import Sequence

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.protocols import Retriever
from agentenv.core.types import Document, Passage, Query, QueryContext

DOCUMENTS = (
    Document("d0", "Ketterby Lighthouse", "The lighthouse of Ketterby was built by the engineer Orla Venn."),
    Document("d1", "Orla Venn", "Orla Venn was an engineer. She was born in Halvik and studied bridges."),
    Document("z-twin", "Mossgate Fair", "The Mossgate Fair sells apples, wool and clocks in autumn."),
    Document("a-twin", "Mossgate Fair", "The Mossgate Fair sells apples, wool and clocks in autumn."),
    Document("d4", "Halvik", "Halvik is a harbour town famous for herring."),
    Document("d5", "Herring", "Herring is a fish that swims in large schools and is eaten smoked."),
)
"""Six documents. Two have equal content, and the one with the later id comes first, so only corpus order ranks them."""


class RetrieverContract:
    """Inherit from this class and define `make`; every test below then runs against your retriever."""

    def make(self, documents: Sequence[Document]) -> Retriever:
        """Makes a new retriever over ``documents``."""
        raise NotImplementedError

    def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Searches once with a new retriever over `DOCUMENTS`."""
        return run_to_completion(self.make(DOCUMENTS).search(queries, k))

    def test_it_is_a_retriever(self) -> None:
        """The retriever has the methods of the protocol."""
        assert isinstance(self.make(DOCUMENTS), Retriever)

    def test_the_right_passage_comes_first_and_complete(self) -> None:
        """A query with a document's words finds it, and the passage has the document's fields."""
        first = self.search(["Orla Venn engineer born in Halvik"], 3)[0][0]
        assert Document(first.id, first.title, first.text) == DOCUMENTS[1]

    def test_k_is_the_most_that_is_returned(self) -> None:
        """A search returns at most k passages, and a smaller k returns a prefix of them."""
        query = "engineer Orla Venn lighthouse Halvik herring"
        three, one = self.search([query], 3)[0], self.search([query], 1)[0]
        assert (len(three), len(one)) == (3, 1)
        assert [passage.id for passage in one] == [three[0].id]

    def test_best_comes_first(self) -> None:
        """Scores do not increase from one passage to the next, and no document is returned twice."""
        passages = self.search(["herring harbour fish of Halvik"], 6)[0]
        scores = [passage.score for passage in passages]
        assert len(passages) >= 2
        assert scores == sorted(scores, reverse=True)
        assert len({passage.id for passage in passages}) == len(passages)

    def test_ties_are_broken_by_corpus_order(self) -> None:
        """Of two equal documents, the first one in the corpus ranks higher, for every k."""
        both = self.search(["Mossgate Fair apples wool clocks"], 2)[0]
        one = self.search(["Mossgate Fair apples wool clocks"], 1)[0]
        assert [passage.id for passage in both] == ["z-twin", "a-twin"]
        assert [passage.id for passage in one] == ["z-twin"]

    def test_ties_past_k_are_broken_by_corpus_order(self) -> None:
        """Of many equal documents, the first k of the corpus are returned in order."""
        documents = [Document(f"{99 - n}", "Same", "One text of wool and clocks") for n in range(60)]
        passages = run_to_completion(self.make(documents).search(["wool and clocks"], 3))[0]
        assert [passage.id for passage in passages] == ["99", "98", "97"]

    def test_several_queries_are_answered_in_order(self) -> None:
        """Each query gets one list, in the order of the queries; duplicate queries are allowed."""
        queries = ["smoked herring fish", "Mossgate Fair", "smoked herring fish"]
        answers = self.search(queries, 1)
        assert [[passage.id for passage in found] for found in answers] == [["d5"], ["z-twin"], ["d5"]]

    def test_no_queries_give_no_answers(self) -> None:
        """An empty list is not an error."""
        assert self.search([], 3) == []

    def test_a_blank_query_finds_nothing(self) -> None:
        """Blank queries get an empty list and do not affect other queries."""
        answers = self.search(["", "Halvik harbour", " \n\t"], 1)
        assert [len(found) for found in answers] == [0, 1, 0]

    def test_odd_queries_do_no_harm(self) -> None:
        """Unknown words, stop words, punctuation and very long queries raise no error."""
        queries = ["xqzzv", "the of a", "?!", "日本 é 😀", "herring " * 2000]
        answers = self.search(queries, 2)
        assert len(answers) == len(queries)
        assert answers[-1][0].id in ("d4", "d5")

    def test_k_may_exceed_the_corpus(self) -> None:
        """A large k returns at most all documents, and only documents of the corpus."""
        passages = self.search(["Orla Venn engineer"], 100)[0]
        assert 1 <= len(passages) <= len(DOCUMENTS)
        assert {passage.id for passage in passages} <= {document.id for document in DOCUMENTS}

    def test_a_string_stands_for_a_query(self) -> None:
        """A ``str`` and a ``Query`` with the same text give the same results."""
        text = "Who built the lighthouse?"
        assert self.search([text], 3) == self.search([Query(text)], 3)

    def test_concurrent_searches_get_the_same_results(self) -> None:
        """Forty concurrent searches return the same as each alone; scores agree to 2e-5."""
        retriever = self.make(DOCUMENTS)
        names = ("herring", "Orla Venn")
        requests = [(f"{name} of Halvik {n % 7}", 1 + n % 4) for n in range(20) for name in names]

        async def together() -> list[list[list[Passage]]]:
            return await asyncio.gather(*(retriever.search([text], k) for text, k in requests))

        for (text, k), (shared,) in zip(requests, run_to_completion(together()), strict=True):
            alone = run_to_completion(retriever.search([text], k))[0]
            assert [passage.id for passage in shared] == [passage.id for passage in alone]
            assert all(abs(a.score - b.score) <= 2e-5 for a, b in zip(shared, alone, strict=True))

    def test_context_does_not_change_a_corpus_search(self) -> None:
        """The context of a query is ignored, unless the retriever declares its results contextual."""
        if self.make(DOCUMENTS).info().contextual:
            return
        context = QueryContext(episode="e1", question="another question", answers=("herring",), step=3)
        assert self.search([Query("Mossgate Fair", context)], 2) == self.search(["Mossgate Fair"], 2)

    def test_info_says_name_size_and_fingerprint(self) -> None:
        """Equal corpora have the same fingerprint, and different corpora different ones."""
        info, again = self.make(DOCUMENTS).info(), self.make(DOCUMENTS).info()
        changed = (Document("d0", "Ketterby Lighthouse", "Torn down."), *DOCUMENTS[1:])
        assert info.name
        assert info.documents == len(DOCUMENTS)
        assert info == again
        assert info.fingerprint != self.make(changed).info().fingerprint
