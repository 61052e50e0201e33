"""Hybrid: the fusion by hand, and the two halves over one corpus."""

import asyncio
from itertools import permutations
from pathlib import Path

import pytest

from agentenv.core.types import Document
from agentenv.errors import ConfigurationError, IndexMismatch
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.hybrid import DEPTH, HYBRID_K, HybridRetriever, reciprocal_rank_fusion
from agentenv.retrievers.storage.retriever_folder import read_card

DOCUMENTS = [Document(f"d{n}", "", f"stone {n} of the wall {n % 3}") for n in range(150)]


def test_fusion_by_hand() -> None:
    # Ranks: row 7 is 1st and 3rd, row 4 2nd and 1st, row 9 3rd only, row 2 2nd only.
    fused = reciprocal_rank_fusion([[7, 4, 9], [4, 2, 7]])
    assert [row for row, _ in fused] == [4, 7, 2, 9]
    assert [score for _, score in fused] == pytest.approx([1 / 62 + 1 / 61, 1 / 61 + 1 / 63, 1 / 62, 1 / 63])


def test_equal_sums_go_to_the_best_single_rank_then_to_the_row() -> None:
    # k = 0. Row 8: 1/2 + 1/2 = 1 with best rank 2; row 5: 1/1 = 1 with best rank 1, so 5 comes first.
    assert [row for row, _ in reciprocal_rank_fusion([[5, 8], [3, 8]], k=0)] == [3, 5, 8]


def test_of_equal_sums_the_best_single_rank_is_first_whatever_the_row_and_the_worst_rank() -> None:
    """With k = 0, row 9 is 2nd and 6th, row 4 twice 3rd: 1/2 + 1/6 = 1/3 + 1/3."""
    fused = reciprocal_rank_fusion([[20, 9, 4], [21, 22, 4, 23, 24, 9]], k=0)
    assert [row for row, _ in fused] == [20, 21, 9, 4, 22, 23, 24]
    assert fused[2][1] == fused[3][1]


def test_the_order_of_the_lists_does_not_matter() -> None:
    lists = [[3, 1, 2, 0], [1, 3, 0, 2], [2, 0, 3, 1]]
    assert reciprocal_rank_fusion(lists) == reciprocal_rank_fusion(lists[::-1])


def test_nothing_fuses_to_nothing() -> None:
    assert reciprocal_rank_fusion([[], []]) == []


def build() -> HybridRetriever:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    return HybridRetriever.build(DOCUMENTS, HashEncoder(dim=64))


@pytest.mark.parametrize(("k", "depth"), [(70, 100), (120, 120)])
def test_search_is_the_fusion_of_both_lists_cut_at_100_or_k(k: int, depth: int) -> None:
    hybrid = build()

    async def main() -> None:
        (found,) = await hybrid.search(["stone 17 of the wall"], k)
        (dense,) = await hybrid.dense.search(["stone 17 of the wall"], depth)
        (bm25,) = await hybrid.bm25.search(["stone 17 of the wall"], depth)
        rankings = [[int(passage.id[1:]) for passage in passages] for passages in (dense, bm25)]
        expected = [(f"d{row}", score) for row, score in reciprocal_rank_fusion(rankings, HYBRID_K)]
        assert [(passage.id, passage.score) for passage in found] == expected[:k]
        assert found[0].id == "d17"
        assert len(found) == k  # never fewer than the corpus has

    asyncio.run(main())


def test_k_only_cuts(tmp_path: Path) -> None:
    hybrid = build()
    assert asyncio.run(hybrid.search(["wall 2"], 3))[0] == asyncio.run(hybrid.search(["wall 2"], 30))[0][:3]


def test_halves_over_different_corpora_are_refused(tmp_path: Path) -> None:
    hybrid = build()
    other = HybridRetriever.build(DOCUMENTS[:9], HashEncoder(dim=64))
    with pytest.raises(IndexMismatch, match=r"\w{12}.*\w{12}"):
        HybridRetriever(hybrid.dense, other.bm25)
    hybrid.dense.save(tmp_path / "dense")
    with pytest.raises(ConfigurationError, match=r"faiss.*hybrid"):
        HybridRetriever.load(tmp_path / "dense")


def test_the_constants_are_those_that_are_published_and_measured() -> None:
    assert reciprocal_rank_fusion([[3]]) == [(3, 1 / 61)]
    assert (HYBRID_K, DEPTH) == (10, 100)


def test_three_lists_in_any_order_sum_to_the_same_digit() -> None:
    """1/61 + 1/62 + 1/67 is another float when it is added up in another order."""
    ranks = (0, 1, 6)
    found = set()
    for order in permutations(ranks):
        lists = [[*[9, 8, 7, 6, 5, 4, 3][:rank], 1] for rank in order]
        found.add(dict(reciprocal_rank_fusion(lists))[1])
    assert len(found) == 1


def test_equal_passages_stand_in_the_order_of_the_corpus() -> None:
    assert [row for row, _ in reciprocal_rank_fusion([[5, 8], [8, 5]])] == [5, 8]
    assert [row for row, _ in reciprocal_rank_fusion([[8, 5], [5, 8]])] == [5, 8]


def test_the_fingerprint_is_of_both_halves() -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    told: list[tuple[int, int]] = []
    first = build()
    other = HybridRetriever.build(
        DOCUMENTS, HashEncoder(dim=32), "HNSW8", progress=lambda *far: told.append(far)
    )
    infos = [one.info() for one in (first, other, HybridRetriever(first.dense, other.bm25))]
    assert [(info.name, info.documents) for info in infos] == [("hybrid", 150)] * 3
    assert infos[0] == infos[2]  # the words are the same
    assert infos[0].fingerprint != infos[1].fingerprint
    assert len({info.fingerprint for info in (infos[0], first.dense.info(), first.bm25.info())}) == 3
    assert told[-1] == (150, 150)
    kind = HybridRetriever.build(DOCUMENTS, HashEncoder(dim=64), "HNSW8").info()
    assert kind.fingerprint not in {info.fingerprint for info in infos}  # another index over the same vectors


def test_a_saved_hybrid_finds_the_same_with_titles_and_texts(tmp_path: Path) -> None:
    titled = [Document(f"d{n}", f"Title {n}", f"stone {n + 10}") for n in range(20)]
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    made = HybridRetriever.build(titled, HashEncoder(dim=64))
    made.save(tmp_path / "index")
    read = HybridRetriever.load(tmp_path / "index", encoder=HashEncoder(dim=64))
    (found,), (again,) = (asyncio.run(one.search(["stone 17"], 2)) for one in (made, read))
    assert found == again
    assert (found[0].id, found[0].title, found[0].text) == ("d7", "Title 7", "stone 17")
    assert read.info() == made.info()
    card = read_card(tmp_path / "index", "hybrid")
    assert (card.rows, card.corpus) == (20, made.corpus.fingerprint)
