"""BM25 beyond its contract: a hand-computed score, both sides treated alike, saving, and silence."""

import asyncio
import math
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from agentenv.core.types import Document, Passage
from agentenv.errors import ConfigurationError, CorpusError, IndexMismatch
from agentenv.retrievers.bm25 import INDEX_FOLDER, BM25Retriever
from agentenv.retrievers.storage.retriever_folder import CORPUS_FILE, read_card, write_card

pytest.importorskip("bm25s", reason="bm25s is not installed")
pytest.importorskip("Stemmer", reason="PyStemmer is not installed")

DOCUMENTS = [
    Document("a", "Lighthouses", "Ketterby keeps lighthouses"),
    Document("b", "", "Orla was building bridges"),
    Document("c", "Fair", "the apples and the wool of autumn"),
]


def search(retriever: BM25Retriever, text: str, k: int = 3) -> list[Passage]:
    return asyncio.run(retriever.search([text], k))[0]


def test_score_of_one_word_is_bm25() -> None:
    # "bridge" stands in document b only, once. Stems: a = lighthous ketterbi keep lighthous (4), b = orla build bridg
    # (3; "was" is a stop word), c = fair appl wool autumn (4). N = 3, df = 1, mean length 11/3.
    # idf = ln(1 + (3 - 1 + .5) / (1 + .5)); Lucene's tf part = 1 / (1 + 1.5 * (.25 + .75 * 3 / (11/3))).
    expected = math.log(1 + 2.5 / 1.5) / (1 + 1.5 * (0.25 + 0.75 * 9 / 11))
    (passage,) = search(BM25Retriever.build(DOCUMENTS), "bridge")
    assert passage.id == "b"
    assert passage.score == pytest.approx(expected, abs=1e-5)


def test_the_constants_are_those_of_the_index_and_of_its_card(tmp_path: Path) -> None:
    """As above with k1 = .9 and b = .4, which are those of ConvSearch-R1 for TopiOCQA."""
    expected = math.log(1 + 2.5 / 1.5) / (1 + 0.9 * (0.6 + 0.4 * 9 / 11))
    built = BM25Retriever.build(DOCUMENTS, k1=0.9, b=0.4)
    assert search(built, "bridge")[0].score == pytest.approx(expected, abs=1e-5)
    assert built.info().fingerprint != BM25Retriever.build(DOCUMENTS).info().fingerprint
    built.save(tmp_path / "saved")
    loaded = BM25Retriever.load(tmp_path / "saved")
    assert (loaded.info(), search(loaded, "bridge")) == (built.info(), search(built, "bridge"))
    card = read_card(tmp_path / "saved")
    assert (card.k1, card.b) == (0.9, 0.4)
    write_card(tmp_path / "saved", replace(card, k1=1.2))
    with pytest.raises(IndexMismatch, match=r"k1=0\.9.*1\.2"):
        BM25Retriever.load(tmp_path / "saved")
    # A card of before, whose constants were the defaults.
    write_card(tmp_path / "saved", replace(card, k1=None, b=None))
    with pytest.raises(IndexMismatch, match=r"k1=0\.9"):
        BM25Retriever.load(tmp_path / "saved")


@pytest.mark.parametrize(("k1", "b"), [(-0.1, 0.5), (math.nan, 0.5), (1.0, 1.5), (1.0, -0.5)])
def test_constants_out_of_range_are_refused(k1: float, b: float) -> None:
    with pytest.raises(ConfigurationError, match=f"k1={k1}"):
        BM25Retriever.build(DOCUMENTS, k1=k1, b=b)


@pytest.mark.parametrize("text", ["lighthouse", "LIGHTHOUSES", "the lighthouse's"])
def test_queries_are_stemmed_like_passages(text: str) -> None:
    assert [passage.id for passage in search(BM25Retriever.build(DOCUMENTS), text)] == ["a"]


def test_titles_are_searched() -> None:
    assert [passage.id for passage in search(BM25Retriever.build(DOCUMENTS), "fair")] == ["c"]


@pytest.mark.parametrize("text", ["zebra", "the of and", "?!", "x"])
def test_queries_without_known_words_find_nothing(text: str) -> None:
    assert search(BM25Retriever.build(DOCUMENTS), text) == []


def test_unknown_words_beside_known_ones_change_nothing() -> None:
    retriever = BM25Retriever.build(DOCUMENTS)
    assert search(retriever, "zebra bridges qux") == search(retriever, "bridges")


def test_a_corpus_without_words_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"\b2\b"):
        BM25Retriever.build([Document("a", "", ""), Document("b", "", "the of")])


def test_documents_without_words_are_never_found() -> None:
    retriever = BM25Retriever.build([Document("a", "", ""), Document("b", "", "a bridge")])
    assert [passage.id for passage in search(retriever, "bridge")] == ["b"]


def test_saved_and_loaded_answer_alike_and_silently(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    built = BM25Retriever.build(DOCUMENTS)
    built.save(tmp_path / "saved")
    loaded = BM25Retriever.load(tmp_path / "saved")
    for text in ("bridges of Ketterby", "autumn apples", "zebra"):
        assert search(loaded, text) == search(built, text)
    assert loaded.info() == built.info()
    assert capfd.readouterr() == ("", "")


def test_what_does_not_belong_together_is_refused(
    tmp_path: Path, forget_checksums: Callable[[Path], None]
) -> None:
    BM25Retriever.build(DOCUMENTS).save(tmp_path / "three")
    BM25Retriever.build(DOCUMENTS[:2]).save(tmp_path / "two")
    forget_checksums(tmp_path / "three")
    shutil.copytree(tmp_path / "two" / INDEX_FOLDER, tmp_path / "three" / INDEX_FOLDER, dirs_exist_ok=True)
    with pytest.raises(IndexMismatch, match=r"\b3\b"):
        BM25Retriever.load(tmp_path / "three")
    shutil.rmtree(tmp_path / "three" / INDEX_FOLDER)
    with pytest.raises(ConfigurationError, match="bm25s"):
        BM25Retriever.load(tmp_path / "three")
    shutil.copy(tmp_path / "three" / CORPUS_FILE, tmp_path / "two" / CORPUS_FILE)
    with pytest.raises(IndexMismatch, match=r"corpus\.jsonl"):
        BM25Retriever.load(tmp_path / "two")


CHINESE = [
    Document("b", "北京", "北京是中华人民共和国的首都\uff0c位于华北平原。"),
    Document("s", "上海", "上海是中国最大的城市\uff0c位于长江三角洲。"),
    Document("t", "東京", "東京は日本の首都です。"),
]


@pytest.mark.parametrize(
    ("query", "first"), [("中国最大的城市", "s"), ("北京", "b"), ("日本の首都", "t"), ("華北 华北", "b")]
)
def test_words_are_found_in_scripts_without_blanks(query: str, first: str) -> None:
    assert search(BM25Retriever.build(CHINESE), query)[0].id == first


def test_an_index_with_whole_clauses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("agentenv.retrievers.bm25.in_pairs", str)
        BM25Retriever.build(CHINESE).save(tmp_path / "old")
    with pytest.raises(IndexMismatch, match="build it again"):
        BM25Retriever.load(tmp_path / "old")
    BM25Retriever.build(CHINESE).save(tmp_path / "new")
    assert search(BM25Retriever.load(tmp_path / "new"), "首都")


def test_pairs_change_the_fingerprint_of_corpora_that_have_some_alone() -> None:
    def identity(documents: list[Document]) -> str:
        retriever = BM25Retriever.build(documents)
        settings = f"bm25\nlucene english\n{retriever.corpus.fingerprint}"
        return "" if retriever.info().fingerprint == sha256(settings.encode()).hexdigest() else "other"

    assert identity(DOCUMENTS) == ""
    assert identity(CHINESE) == "other"


def run_beside(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own, which finds the modules in ``folder`` before all others."""
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": paths},
    )


def test_jax_is_not_used_where_it_is_installed(tmp_path: Path) -> None:
    """It would reserve three quarters of the memory of a GPU. A process that has imported it goes on with it."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(*_):\n    raise SystemExit('JAX reserves memory')\n")
    program = """
        import asyncio, sys
        import jax
        from agentenv.core.types import Document
        from agentenv.retrievers.bm25 import BM25Retriever
        retriever = BM25Retriever.build([Document("a", "Lighthouses", "Ketterby keeps lighthouses")])
        print(asyncio.run(retriever.search(["lighthouse"], 1))[0][0].id, sys.modules["jax"] is jax)
    """
    done = run_beside(tmp_path, program)
    assert done.stdout.split() == ["a", "True"], done.stderr


def test_threads_may_import_bm25s_at_once_and_jax_stays_what_it_was(tmp_path: Path) -> None:
    """The first hides JAX for a second, in which the others begin."""
    (tmp_path / "jax.py").write_text("")
    (tmp_path / "bm25s.py").write_text("import time\ntime.sleep(1)\n")
    program = """
        import sys
        from concurrent.futures import ThreadPoolExecutor
        from time import sleep
        import jax
        from agentenv.retrievers.bm25 import _bm25s

        def late(place):
            sleep(place / 10)
            return _bm25s().__name__

        with ThreadPoolExecutor(4) as threads:
            found = set(threads.map(late, range(4)))
        print(*found, sys.modules["jax"] is jax)
    """
    done = run_beside(tmp_path, program)
    assert done.stdout.split() == ["bm25s", "True"], done.stderr
