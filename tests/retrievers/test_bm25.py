"""BM25 beyond its contract: a hand-computed score, both sides treated alike, saving, and silence."""

import asyncio
import json
import math
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
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


def _change_settings(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "params.index.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def _change_array(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        path = folder / f"{name}.csc.index.npy"
        np.save(path, change(np.load(path)))

    return changed


def _as(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / f"{name}.index.json").write_text(text)

    return change


def _endless(folder: Path) -> None:
    head = {"descr": "<f4", "fortran_order": False, "shape": (10**13,)}
    with (folder / "data.csc.index.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, head)


HOSTILE: dict[str, Callable[[Path], None]] = {
    "dtype": _change_settings(dtype="object"),
    "a large dtype": _change_settings(dtype="f8,(1000000000,)f8"),
    "no number of documents": _change_settings(num_docs="x"),
    "no number": _change_settings(k1="x"),
    "unknown settings": _change_settings(foo=1),
    "another method": _change_settings(method="bm25l"),
    "no settings": _as("params", "[]"),
    "no starts": _change_array("indptr", lambda starts: starts[:0]),
    "far starts": _change_array("indptr", lambda starts: starts + 1_000),
    "falling starts": _change_array("indptr", lambda starts: np.concatenate([starts[:1], starts[:0:-1]])),
    "broken starts": _change_array("indptr", lambda starts: starts + 0.5),
    "starts in two rows": _change_array("indptr", lambda starts: starts.reshape(1, -1)),
    "documents that are not there": _change_array("indices", lambda documents: documents + 2**30),
    "documents before the first": _change_array("indices", lambda documents: documents - 5),
    "documents as text": _change_array("indices", lambda documents: documents.astype("U20")),
    "scores as text": _change_array("data", lambda scores: scores.astype("U20")),
    "scores without an end": _change_array("data", lambda scores: scores * np.float32("inf")),
    "fewer scores": _change_array("data", lambda scores: scores[:-1]),
    "more scores than there is memory": _endless,
    "no words": _as("vocab", "null"),
    "a list of words": _as("vocab", "[]"),
    "a word without a number": _as("vocab", '{"citi": "x"}'),
    "a word before the first": _as("vocab", '{"citi": -9999}'),
    "a word that is not there": _as("vocab", '{"citi": 99999999999}'),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_index_that_somebody_has_made_up_is_one_sentence(tmp_path: Path, kind: str) -> None:
    """Whoever writes one writes its checksums too; a search ended in an error of numpy, or found other documents."""
    documents = [Document(f"d{n}", f"T{n}", f"city river capital number {n}") for n in range(30)]
    BM25Retriever.build(documents).save(tmp_path)
    HOSTILE[kind](tmp_path / INDEX_FOLDER)
    write_card(tmp_path, read_card(tmp_path, "bm25"))
    with pytest.raises((ConfigurationError, IndexMismatch), match=re.escape(str(tmp_path))):
        BM25Retriever.load(tmp_path)


@pytest.mark.parametrize("backend", ["numba", "jax", "auto", 7])
def test_an_index_chooses_no_library_that_computes(tmp_path: Path, backend: Any) -> None:
    BM25Retriever.build([Document("a", "A", "city river"), Document("b", "B", "hill")]).save(tmp_path)
    _change_settings(backend=backend)(tmp_path / INDEX_FOLDER)
    write_card(tmp_path, read_card(tmp_path, "bm25"))
    assert BM25Retriever.load(tmp_path)._index.backend == "numpy"
