"""The FAISS retriever beyond its contract: batches, ties, missing labels, deadlines, saving, and what load refuses."""

import asyncio
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.types import Document, Passage
from agentenv.errors import ConfigurationError, CorpusError, IndexMismatch, MissingExtra, RetrieverFault
from agentenv.retrievers import faiss as module
from agentenv.retrievers.base import best_hits
from agentenv.retrievers.encoder import HashEncoder, Vectors
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.storage.retriever_folder import CARD_FILE, CORPUS_FILE

pytest.importorskip("faiss", reason="faiss-cpu is not installed")

DOCUMENTS = [Document(f"id{n}", f"Town {n}", f"Town {n} lies on river {n % 7}.") for n in range(50)]


class RecordingEncoder(HashEncoder):
    """A hash encoder that keeps the lists of queries and can be slow or broken."""

    def __init__(self, *, seconds: float = 0.0, broken: bool = False) -> None:
        super().__init__(dim=64)
        self.asked: list[list[str]] = []
        self.seconds, self.broken = seconds, broken

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        self.asked.append(list(texts))
        time.sleep(self.seconds)
        if self.broken:
            raise ZeroDivisionError("no vectors today")
        return super().encode_queries(texts)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    FaissRetriever.build(DOCUMENTS, HashEncoder(dim=64)).save(tmp_path / "towns")
    return tmp_path / "towns"


def load(folder: Path) -> FaissRetriever:
    return FaissRetriever.load(folder, encoder=HashEncoder(dim=64))


def ids(retriever: FaissRetriever, text: str, k: int) -> list[str]:
    return [passage.id for passage in asyncio.run(retriever.search([text], k))[0]]


def test_concurrent_searches_are_encoded_in_one_call_without_duplicates() -> None:
    encoder = RecordingEncoder()
    retriever = FaissRetriever.build(DOCUMENTS, encoder)

    async def main() -> list[int]:
        requests = ((["Town 1", "Town 2"], 1), (["Town 2"], 5), (["Town  3", ""], 2))
        answers = await asyncio.gather(*(retriever.search(texts, k) for texts, k in requests))
        return [len(passages) for answer in answers for passages in answer]

    assert asyncio.run(main()) == [1, 1, 5, 2, 0]
    assert encoder.asked == [["Town 1", "Town 2", "Town 3"]]


def test_half_a_character_in_a_query_fails_nobodys_search() -> None:
    """A client of a served environment can send one, and the searches of all episodes meet in a batch."""
    retriever = FaissRetriever.build(DOCUMENTS, HashEncoder())

    async def main() -> list[list[list[Passage]]]:
        return await asyncio.gather(*(retriever.search([text], 2) for text in ("Town 1", "Town \ud83d 2")))

    (first,), (second,) = asyncio.run(main())
    assert [passage.id for passage in first] == ids(retriever, "Town 1", 2)
    assert [passage.id for passage in second] == ids(retriever, "Town ? 2", 2)


def test_in_lockstep_a_batch_holds_the_queries_of_all_episodes_in_order() -> None:
    encoder = RecordingEncoder()
    retriever = FaissRetriever.build(DOCUMENTS, encoder)

    async def episode(deterministic_batcher: DeterministicBatcher, index: int) -> None:
        with deterministic_batcher.episode(index):
            await asyncio.sleep(0.01 * (3 - index))
            await retriever.search([f"Town {index}"], 1)

    async def main() -> None:
        deterministic_batcher = DeterministicBatcher()
        await asyncio.gather(*(episode(deterministic_batcher, index) for index in range(4)))

    asyncio.run(main())
    assert encoder.asked == [["Town 0", "Town 1", "Town 2", "Town 3"]]


def test_a_question_asked_again_is_not_encoded_again() -> None:
    encoder = RecordingEncoder()
    retriever = FaissRetriever.build(DOCUMENTS, encoder)
    assert ids(retriever, "river 3", 2) == ids(retriever, "river 3", 2)
    assert encoder.asked == [["river 3"]]


def test_results_equal_brute_force_in_every_batch_size() -> None:
    encoder = HashEncoder(dim=64)
    retriever = FaissRetriever.build(DOCUMENTS, encoder)
    queries = [f"Town {n} on river {n % 5}" for n in range(64)]
    passages = encoder.encode_passages([f"{d.title} {d.text}" for d in DOCUMENTS]).astype(np.float64)
    scores = np.round(encoder.encode_queries(queries).astype(np.float64) @ passages.T, 5)
    expected = [[f"id{row}" for row in np.lexsort((np.arange(50), -row_scores))[:3]] for row_scores in scores]
    for size in (1, 19, 20, 64):  # FAISS changes its algorithm at 20 queries
        for start in range(0, 64, size):
            answers = asyncio.run(retriever.search(queries[start : start + size], 3))
            found = [[passage.id for passage in answer] for answer in answers]
            assert found == expected[start : start + size]


def test_best_hits_rounds_drops_missing_labels_and_breaks_ties_by_row() -> None:
    # .5000001 and .5000004 round to .50000: a tie, so row 3 precedes row 8. -1 is FAISS's "none".
    scores = np.array([0.5000004, 0.9, 0.5000001, 0.7])
    hits = best_hits(scores, np.array([8, 2, 3, -1]), k=3)
    assert hits == [(2, 0.9), (3, 0.5), (8, 0.5)]


def test_a_failing_encoder_is_a_fault_of_the_retriever() -> None:
    retriever = FaissRetriever.build(DOCUMENTS, RecordingEncoder(broken=True))
    with pytest.raises(RetrieverFault, match="ZeroDivisionError: no vectors today"):
        asyncio.run(retriever.search(["Town 1"], 1))


def test_a_late_answer_is_a_fault_of_the_retriever(tmp_path: Path) -> None:
    FaissRetriever.build(DOCUMENTS, RecordingEncoder()).save(tmp_path / "towns")
    retriever = FaissRetriever.load(tmp_path / "towns", encoder=RecordingEncoder(seconds=0.2), timeout_s=0.05)
    with pytest.raises(RetrieverFault, match=r"\b0\.05\b"):
        asyncio.run(retriever.search(["Town 1"], 1))


@pytest.mark.parametrize("k", [0, -3])
def test_a_k_below_one_is_refused(k: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"(?<![\w-]){k}\b"):
        asyncio.run(FaissRetriever.build(DOCUMENTS, HashEncoder()).search(["Town"], k))


def test_a_bare_string_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'Town 1'"):
        asyncio.run(FaissRetriever.build(DOCUMENTS, HashEncoder()).search("Town 1", 1))


@pytest.mark.parametrize("spec", ["Flat", "SQfp16", "SQ8", "HNSW32"])
def test_saved_and_loaded_retrievers_answer_alike(tmp_path: Path, spec: str) -> None:
    built = FaissRetriever.build(DOCUMENTS, HashEncoder(dim=64), spec)
    built.save(tmp_path / "deep" / "towns")
    loaded = load(tmp_path / "deep" / "towns")
    assert asyncio.run(loaded.search(["Town 7", "river 3"], 5)) == asyncio.run(
        built.search(["Town 7", "river 3"], 5)
    )
    assert loaded.info() == built.info()
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["towns"]


def test_the_card_ties_index_and_corpus_together(saved: Path) -> None:
    card = json.loads((saved / CARD_FILE).read_text())
    assert card["kind"] == "faiss"
    assert (card["rows"], card["dim"], card["metric"], card["index"]) == (50, 64, "inner_product", "Flat")
    assert (card["encoder"], card["encoder_spec"]) == ("hash:64", "hash")
    assert card["corpus"] == load(saved).corpus.fingerprint


def test_another_encoder_is_refused(saved: Path) -> None:
    with pytest.raises(IndexMismatch, match="'hash:32'"):
        FaissRetriever.load(saved, encoder=HashEncoder(dim=32))
    with pytest.raises(IndexMismatch, match="'hash:512'"):
        FaissRetriever.load(saved)  # the spec "hash" makes the encoder of 512 dimensions


def test_another_corpus_is_refused(saved: Path) -> None:
    corpus = saved / CORPUS_FILE
    corpus.write_text(corpus.read_text().replace("Town 7 lies", "Town 7 lay"))
    with pytest.raises(IndexMismatch, match=r"\w{12}.*corpus\.jsonl.*\w{12}"):
        load(saved)
    corpus.write_text("")
    with pytest.raises(CorpusError, match=r"corpus\.jsonl"):
        load(saved)


def test_an_index_of_another_size_is_refused(
    saved: Path, tmp_path: Path, forget_checksums: Callable[[Path], None]
) -> None:
    forget_checksums(saved)
    FaissRetriever.build(DOCUMENTS[:9], HashEncoder(dim=64)).save(tmp_path / "small")
    shutil.copy(tmp_path / "small" / module.INDEX_FILE, saved / module.INDEX_FILE)
    with pytest.raises(IndexMismatch, match=r"\b50\b.*\b64\b"):
        load(saved)


def test_damaged_and_foreign_folders_are_refused(
    saved: Path, tmp_path: Path, forget_checksums: Callable[[Path], None]
) -> None:
    forget_checksums(saved)
    with pytest.raises(ConfigurationError, match="test_damaged_and_foreign"):
        load(tmp_path)
    (saved / module.INDEX_FILE).write_bytes(b"junk")
    with pytest.raises(ConfigurationError, match=r"index\.faiss"):
        load(saved)
    (saved / CARD_FILE).write_text('{"kind": "bm25", "rows": 1, "corpus": "x"}')
    with pytest.raises(ConfigurationError, match=r"bm25.*faiss"):
        load(saved)
    (saved / CARD_FILE).write_text('{"colour": "blue"}')
    with pytest.raises(ConfigurationError, match=r"retriever\.json"):
        load(saved)


def test_saving_replaces_an_older_retriever_and_nothing_else(saved: Path, tmp_path: Path) -> None:
    fresh = FaissRetriever.build(DOCUMENTS[:3], HashEncoder(dim=64))
    fresh.save(saved)
    assert load(saved).info().documents == 3
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("dear to me")
    with pytest.raises(ConfigurationError, match="thesis"):
        fresh.save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "dear to me"


@contextmanager
def small_disk() -> Iterator[None]:
    """No file may grow past 2,000 bytes: writing fails half-way, as on a full disk.

    The limit holds for the whole process, pytest's own output among it: never let it outlive the call under test.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("rows", [9, 50])  # with 9 rows the corpus fits and the index does not
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, rows: int) -> None:
    retriever = FaissRetriever.build(DOCUMENTS[:rows], HashEncoder(dim=64))
    with pytest.raises(ConfigurationError, match="towns"), small_disk():
        retriever.save(tmp_path / "towns")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_keeps_the_older_retriever(saved: Path) -> None:
    fresh = FaissRetriever.build(DOCUMENTS[:40], HashEncoder(dim=64))
    with pytest.raises(ConfigurationError, match="towns"), small_disk():
        fresh.save(saved)
    assert load(saved).info().documents == 50


def test_unknown_and_untrainable_indexes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"FAISS.*'Flatt'.*\b64\b"):
        FaissRetriever.build(DOCUMENTS, HashEncoder(dim=64), "Flatt")
    with pytest.raises(ConfigurationError, match=r"\b50\b.*'PQ8'"):
        FaissRetriever.build(DOCUMENTS, HashEncoder(dim=64), "PQ8")


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"agentenv-suite\[retrieval\]"):
        FaissRetriever.build(DOCUMENTS, HashEncoder())


def test_building_reports_progress() -> None:
    seen: list[tuple[int, int]] = []
    documents = [Document(str(n), "", f"number {n}") for n in range(1500)]
    FaissRetriever.build(
        documents, HashEncoder(dim=8), progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(0, 1500), (1024, 1500), (1500, 1500)]


def test_building_and_searching_leave_the_threads_of_torch_alone() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    code = (  # in an interpreter of its own: torch and FAISS share OpenMP only where torch came first
        "import torch; torch.set_num_threads(3)\n"
        "from agentenv.core.types import Document\n"
        "from agentenv.retrievers.encoder import HashEncoder\n"
        "from agentenv.retrievers.faiss import FaissRetriever\n"
        "built = FaissRetriever.build([Document('a', 'Town', 'A town.')], HashEncoder(dim=64))\n"
        "after_build = torch.get_num_threads()\n"
        "built.rank(['Town'], 1)\n"
        "print(after_build, torch.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "3 3\n", done.stderr
