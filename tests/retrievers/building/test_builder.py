"""Builds: the same as in memory, killed and taken up, larger than memory, one at a time, nothing after bad input."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv.cli.main import main
from agentenv.core.types import Document, Passage
from agentenv.errors import ConfigurationError, CorpusError
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.building.builder import build_bm25_folder, build_folder
from agentenv.retrievers.encoder import Recipe, Vectors
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.hybrid import HybridRetriever

pytest.importorskip("faiss", reason="faiss-cpu is not installed")

DIM = 32


class SeededEncoder:
    """Unit vectors drawn from a hash of the text: fast, and near nothing but the same text."""

    spec, id, dim, recipe = "seeded", "seeded", DIM, Recipe()

    def __init__(self, stop_after: int = 10**9, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.encoded = 0
        self.stop_after, self.error = stop_after, error

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        return self._draw(texts)

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        if self.encoded >= self.stop_after:
            raise self.error("stopped")
        self.encoded += len(texts)
        return self._draw(texts)

    def _draw(self, texts: Sequence[str]) -> Vectors:
        vectors = np.stack([np.random.default_rng(abs(hash_of(text))).standard_normal(DIM) for text in texts])
        unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        return unit


def hash_of(text: str) -> int:
    import zlib

    return zlib.crc32(text.encode())


def write(path: Path, rows: int) -> Path:
    lines = (
        json.dumps({"id": f"d{n}", "title": f"Town {n}", "text": f"Town {n} on river {n % 7}."})
        for n in range(rows)
    )
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write(tmp_path / "corpus.jsonl", 3000)


def first(retriever: FaissRetriever | HybridRetriever, n: int) -> Passage:
    return asyncio.run(retriever.search([f"Town {n}. Town {n} on river {n % 7}."], 1))[0][0]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_streamed_build_is_the_one_in_memory(corpus: Path, tmp_path: Path) -> None:
    seen = list[tuple[str, int, int]]()
    built = build_folder(
        corpus, tmp_path / "out", SeededEncoder(), report=lambda *args: seen.append(args), checkpoint_s=0
    )
    documents = [Document(f"d{n}", f"Town {n}", f"Town {n} on river {n % 7}.") for n in range(3000)]
    memory = FaissRetriever.build(documents, SeededEncoder(), "PQ8x4fs,Refine(SQfp16)")
    loaded = FaissRetriever.load(tmp_path / "out", encoder=SeededEncoder())
    assert (built.rows, built.spec, built.resumed_rows) == (3000, "PQ8x4fs,Refine(SQfp16)", 0)
    assert loaded.info() == memory.info()
    queries = [f"Town {n}" for n in range(20)]
    assert asyncio.run(loaded.search(queries, 5)) == asyncio.run(memory.search(queries, 5))
    assert first(loaded, 2999).id == "d2999"
    assert left_in(tmp_path) == ["corpus.jsonl", "out"]
    assert seen[0] == ("reading", 3000, 3000)
    assert seen[1:5] == [("encoding", n, 3000) for n in (0, 1024, 2048, 3000)]
    assert seen[5:] == [("indexing", 0, 3000), ("indexing", 3000, 3000)]


@pytest.mark.parametrize("spec", ["Flat", "SQ8", "PQ8x4fs,Refine(SQ8)", "IVF16,SQ8", "HNSW16"])
def test_an_interrupted_build_goes_on_and_gives_the_same_files(
    corpus: Path, tmp_path: Path, spec: str
) -> None:
    build_folder(corpus, tmp_path / "whole", SeededEncoder(), spec)
    with pytest.raises(KeyboardInterrupt):
        build_folder(corpus, tmp_path / "broken", SeededEncoder(stop_after=2048), spec)
    assert not (tmp_path / "broken").exists()
    encoder = SeededEncoder()
    built = build_folder(corpus, tmp_path / "broken", encoder, spec)
    assert (built.resumed_rows, encoder.encoded) == (2048, 3000 - 2048)
    for name in left_in(tmp_path / "whole"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def stop_at(context: str, rows: int) -> Callable[[str, int, int], None]:
    def report(name: str, done: int, total: int) -> None:
        if (name, done) == (context, rows):
            raise KeyboardInterrupt

    return report


def test_a_half_filled_index_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Parts as small as the corpus of a test.
    monkeypatch.setattr("agentenv.retrievers.indexes._ADD_ROWS", 500)
    corpus = write(tmp_path / "corpus.jsonl", 2000)
    with pytest.raises(KeyboardInterrupt):
        build_folder(
            corpus,
            tmp_path / "out",
            SeededEncoder(),
            "HNSW16",
            report=stop_at("indexing", 1500),
            checkpoint_s=0,
        )
    seen = list[tuple[str, int, int]]()
    build_folder(corpus, tmp_path / "out", SeededEncoder(), "HNSW16", report=lambda *args: seen.append(args))
    indexed = [done for name, done, _ in seen if name == "indexing"]
    assert indexed == [1000, 1500, 2000]  # 1,000 rows had been written down when the third part was reported
    loaded = FaissRetriever.load(tmp_path / "out", encoder=SeededEncoder())
    assert [first(loaded, n).id for n in (0, 999, 1000, 1999)] == ["d0", "d999", "d1000", "d1999"]


def test_vectors_are_kept_for_another_index_and_not_for_another_corpus(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_folder(corpus, tmp_path / "out", SeededEncoder(), "SQ8", report=stop_at("indexing", 0))
    built = build_folder(corpus, tmp_path / "out", SeededEncoder(), "Flat")
    assert (built.resumed_rows, built.spec) == (3000, "Flat")
    with pytest.raises(KeyboardInterrupt):
        build_folder(
            corpus, tmp_path / "out", SeededEncoder(), "SQ8", report=stop_at("indexing", 3000), checkpoint_s=0
        )
    corpus.write_text(corpus.read_text().replace("river 3", "river 9"))
    built = build_folder(corpus, tmp_path / "out", SeededEncoder(), "SQ8")
    assert built.resumed_rows == 0
    assert asyncio.run(
        FaissRetriever.load(tmp_path / "out", encoder=SeededEncoder()).search(
            ["Town 3. Town 3 on river 9."], 1
        )
    )[0][0].score == pytest.approx(1, abs=0.02)


KILLED = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_builder import SeededEncoder
from agentenv.retrievers.building.builder import build_folder

class Slow(SeededEncoder):
    def encode_passages(self, texts):
        time.sleep(0.05)
        return super().encode_passages(texts)

build_folder(Path(sys.argv[1]), Path(sys.argv[2]), Slow(), "SQ8", report=lambda *a: print(*a, flush=True))
"""


def start_build(corpus: Path, out: Path) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", KILLED, str(corpus), str(out), str(Path(__file__).parent)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def wait_for_line(child: "subprocess.Popen[str]", words: str) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(words):
            return
    pytest.fail(f"the build ended without saying {words!r}")


def test_a_build_killed_while_it_encodes_goes_on(tmp_path: Path) -> None:
    corpus, out = write(tmp_path / "corpus.jsonl", 6000), tmp_path / "out"
    build_folder(corpus, tmp_path / "whole", SeededEncoder(), "SQ8")
    child = start_build(corpus, out)
    try:
        wait_for_line(child, "encoding 2048")
        with pytest.raises(ConfigurationError, match="out"):
            build_folder(corpus, out, SeededEncoder(), "SQ8")
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait(30)
        assert child.stdout is not None
        child.stdout.close()
    encoder = SeededEncoder()
    built = build_folder(corpus, out, encoder, "SQ8")
    assert built.resumed_rows >= 2048
    assert encoder.encoded == 6000 - built.resumed_rows
    for name in left_in(tmp_path / "whole"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert left_in(tmp_path) == ["corpus.jsonl", "out", "whole"]


def test_a_bm25_build_beside_another_is_refused_before_it_works(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the work would be after hours, with a large corpus. Neither leaves anything but the retriever."""
    words = ["retriever", "build", str(corpus), "--out", str(tmp_path / "out"), "--index", "bm25"]
    built = BM25Retriever.build
    codes = []

    def beside(*given: Any, **options: Any) -> BM25Retriever:
        with monkeypatch.context() as patch:
            patch.setattr(BM25Retriever, "build", lambda *_, **__: pytest.fail("it worked"))
            codes.append(main(words))
        return built(*given, **options)

    monkeypatch.setattr(BM25Retriever, "build", beside)
    assert main(words) == 0
    assert codes == [1]
    assert len(BM25Retriever.load(tmp_path / "out").corpus) == 3000
    assert left_in(tmp_path) == ["corpus.jsonl", "out"]


@pytest.mark.parametrize("kind", ["bm25", "hybrid"])
def test_a_full_disk_names_the_folder_that_was_asked_for(
    kind: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(BM25Retriever, "write", full)
    builds: dict[str, Callable[[], Any]] = {
        "bm25": lambda: build_bm25_folder(corpus, tmp_path / "out"),
        "hybrid": lambda: build_folder(corpus, tmp_path / "out", SeededEncoder(), "Flat", hybrid=True),
    }
    with pytest.raises(ConfigurationError) as caught:
        builds[kind]()
    assert str(caught.value).startswith(f"{tmp_path / 'out'} cannot be written: No space left on device")


def test_an_interrupted_bm25_build_leaves_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> BM25Retriever:
        raise KeyboardInterrupt

    monkeypatch.setattr(BM25Retriever, "build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_bm25_folder(corpus, tmp_path / "out")
    assert left_in(tmp_path) == ["corpus.jsonl"]


def test_a_kill_between_the_renames_loses_nothing(corpus: Path, tmp_path: Path) -> None:
    build_folder(corpus, tmp_path / "out", SeededEncoder(), "Flat")
    (tmp_path / ".out.building").mkdir()
    (tmp_path / "out").rename(tmp_path / ".out.building" / "old")
    with pytest.raises(KeyboardInterrupt):
        build_folder(corpus, tmp_path / "out", SeededEncoder(stop_after=0), "Flat")
    assert len(FaissRetriever.load(tmp_path / "out", encoder=SeededEncoder()).corpus) == 3000


SMALL_MEMORY = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from test_builder import SeededEncoder
import faiss, numpy
from agentenv.retrievers.building.builder import build_folder
import agentenv.retrievers.storage.corpus, json

class Fast(SeededEncoder):
    def _draw(self, texts):
        return numpy.tile(super()._draw(texts[:1]), (len(texts), 1))

faiss.omp_set_num_threads(1)
warm = faiss.IndexScalarQuantizer(32, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
warm.train(numpy.eye(32, dtype="float32"))
used = int(open("/proc/self/status").read().split("VmData:")[1].split()[0]) * 1024
limit = used + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
if sys.argv[5] == "load":
    agentenv.retrievers.storage.corpus.load_corpus(Path(sys.argv[1]))
else:
    build_folder(Path(sys.argv[1]), Path(sys.argv[2]), Fast(), "SQ8")
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see memory in use")
def test_a_corpus_larger_than_memory_is_built(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    with corpus.open("w") as file:
        for n in range(20_000):
            file.write(json.dumps({"id": str(n), "title": "", "text": f"{n} " + "word " * 800}) + "\n")
    budget = 40_000_000
    assert corpus.stat().st_size > 2 * budget

    def child(how: str) -> "subprocess.CompletedProcess[str]":
        words = [
            SMALL_MEMORY,
            str(corpus),
            str(tmp_path / "out"),
            str(budget),
            str(Path(__file__).parent),
            how,
        ]
        return subprocess.run(
            [sys.executable, "-c", *words], capture_output=True, text=True, timeout=120, check=False
        )

    held = child("load")  # the limit is real: a corpus in memory does not fit
    assert held.returncode != 0
    assert "MemoryError" in held.stderr
    done = child("build")
    assert done.returncode == 0, done.stderr
    assert len(FaissRetriever.load(tmp_path / "out", encoder=SeededEncoder()).corpus) == 20_000


def test_hybrid_builds_resume_too(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    with pytest.raises(KeyboardInterrupt):
        build_folder(corpus, tmp_path / "out", SeededEncoder(stop_after=1024), hybrid=True)
    built = build_folder(corpus, tmp_path / "out", SeededEncoder(), hybrid=True)
    assert built.resumed_rows == 1024
    loaded = HybridRetriever.load(tmp_path / "out", encoder=SeededEncoder())
    assert first(loaded, 1234).id == "d1234"


@pytest.mark.parametrize(
    ("text", "spec", "error", "named"),
    [
        ('{"id": "a"', "Flat", CorpusError, "line 1"),
        ("", "Flat", CorpusError, "test_bad_input_leaves_nothing"),
        ('{"id": "a", "title": "", "text": ""}', "Flt", ConfigurationError, "'Flt'"),
        ('{"id": "a", "title": "", "text": ""}', "IVF2,Flat", ConfigurationError, "'IVF2,Flat'"),
    ],
)
def test_bad_input_leaves_nothing(
    tmp_path: Path, text: str, spec: str, error: type[Exception], named: str
) -> None:
    (tmp_path / "corpus.jsonl").write_text(text)
    with pytest.raises(error, match=named):
        build_folder(tmp_path, tmp_path / "out", SeededEncoder(), spec)
    assert left_in(tmp_path) == ["corpus.jsonl"]


def test_a_wrong_word_does_not_cost_the_vectors_of_an_interrupted_build(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_folder(corpus, tmp_path / "out", SeededEncoder(stop_after=2048), "Flat")
    with pytest.raises(ConfigurationError, match=r"\b3000\b.*'IVF1024,Flat'"):
        build_folder(corpus, tmp_path / "out", SeededEncoder(stop_after=2048 - 1024), "IVF1024,Flat")
    assert build_folder(corpus, tmp_path / "out", SeededEncoder(), "Flat").resumed_rows >= 2048


def test_a_full_disk_keeps_what_is_encoded(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"out.*stopped"):
        build_folder(corpus, tmp_path / "out", SeededEncoder(stop_after=1024, error=OSError), "Flat")
    assert build_folder(corpus, tmp_path / "out", SeededEncoder(), "Flat").resumed_rows == 1024


def test_what_is_no_retriever_is_not_replaced(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("dear to me")
    with pytest.raises(ConfigurationError, match="thesis"):
        build_folder(corpus, tmp_path / "thesis", SeededEncoder())
    assert left_in(tmp_path) == ["corpus.jsonl", "thesis"]


def test_vectors_that_have_not_length_one_are_refused(corpus: Path, tmp_path: Path) -> None:
    class Long(SeededEncoder):
        def encode_passages(self, texts: Sequence[str]) -> Vectors:
            return 2 * super().encode_passages(texts)

    with pytest.raises(ConfigurationError, match=r"'d0'.*\b2\b"):
        build_folder(corpus, tmp_path / "out", Long(), "Flat")
    assert left_in(tmp_path) == ["corpus.jsonl"]
