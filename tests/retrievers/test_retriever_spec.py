"""Specs name saved retrievers, wrong ones get one clear sentence, and importing them is light."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from agentenv.core.types import Document
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.retriever_spec import make_retriever, open_retriever, shared_retriever

DOCUMENTS = [Document("a", "Halvik", "A harbour town."), Document("b", "Herring", "A fish.")]


def test_a_spec_opens_what_was_saved(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    from agentenv.retrievers.hybrid import HybridRetriever

    hybrid = HybridRetriever.build(DOCUMENTS, HashEncoder())
    hybrid.save(tmp_path)
    for kind, folder in (("hybrid", tmp_path), ("faiss", tmp_path / "dense"), ("bm25", tmp_path / "bm25")):
        for retriever in (make_retriever(f"{kind}:{folder}"), open_retriever(folder)):
            assert retriever.info().name == kind
            assert asyncio.run(retriever.search(["herring"], 1))[0][0].id == "b"


def test_a_spec_may_ask_for_reranking(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    from agentenv.retrievers.bm25 import BM25Retriever

    BM25Retriever.build(DOCUMENTS).save(tmp_path)
    retriever = make_retriever(f"rerank:overlap@bm25:{tmp_path}")
    (found,) = asyncio.run(retriever.search(["fish."], 2))
    assert [(passage.id, passage.score) for passage in found] == [("b", 1.0)]
    with pytest.raises(ConfigurationError, match=r"'rerank:overlap'.*'rerank:MODEL@faiss:DIR'"):
        make_retriever("rerank:overlap")


@pytest.mark.parametrize(
    ("spec", "named"),
    [("fais:x", "'fais'.*'faiss'"), ("", "bm25, cassette, faiss, http")],
)
def test_unknown_kinds_get_the_nearest_name(spec: str, named: str) -> None:
    with pytest.raises(UnknownName, match=named):
        make_retriever(spec)


def test_importing_loads_no_heavy_library() -> None:
    heavy = "torch faiss sentence_transformers transformers bm25s scipy"
    code = f"import sys, agentenv.cli.retriever; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_spec_without_a_folder_or_with_an_empty_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'faiss'.*'faiss:DIR'"):
        make_retriever("faiss")
    with pytest.raises(ConfigurationError, match="test_a_spec_without_a_folder"):
        make_retriever(f"bm25:{tmp_path}")
    with pytest.raises(ConfigurationError, match="nowhere"):
        open_retriever(tmp_path / "nowhere")


def test_environments_share_a_saved_retriever_until_its_files_change(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    documents = [Document("a", "Mill", "The mill stands at the river."), Document("b", "Ford", "A ford.")]
    BM25Retriever.build(documents).save(tmp_path / "index")
    first = shared_retriever(f"bm25:{tmp_path / 'index'}")
    assert shared_retriever(f"bm25:{tmp_path / 'index'}") is first
    BM25Retriever.build(documents[:1]).save(tmp_path / "index")
    other = shared_retriever(f"bm25:{tmp_path / 'index'}")
    assert (first.info().documents, other.info().documents) == (2, 1)
    with pytest.raises(UnknownName):
        shared_retriever("bm52:index")
