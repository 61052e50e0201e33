"""FAISS indexes: the choice by size, the arithmetic against real files, training, effort, and what mapping maps."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv.errors import ConfigurationError
from agentenv.retrievers.indexes import (
    Effort,
    Vectors,
    add_rest,
    default_spec,
    footprint,
    list_count,
    new_index,
    read_index,
    train,
    tune,
    write_index,
)

faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")

DIM = 32


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    faiss.omp_set_num_threads(1)


def unit(vectors: Vectors) -> Vectors:
    lengths: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / lengths


def clustered(rows: int, seed: int = 0, dim: int = DIM) -> Vectors:
    rng = np.random.default_rng(seed)
    centres = unit(rng.standard_normal((rows // 50, dim), dtype=np.float32))
    noise = rng.standard_normal((rows, dim), dtype=np.float32) / np.float32(dim**0.5)
    return unit(centres[rng.integers(len(centres), size=rows)] + noise)


def filled(spec: str, vectors: Vectors) -> Any:
    index = new_index(spec, vectors.shape[1])
    train(index, vectors, spec)
    add_rest(index, vectors)
    tune(index)
    return index


def overlap(index: Any, vectors: Vectors, queries: Vectors) -> float:
    truth = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    found = index.search(queries, 10)[1]
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(truth, found, strict=True)]))


@pytest.mark.parametrize(
    ("rows", "spec"),
    [
        (1, "Flat"),
        (999, "Flat"),
        (1_000, "PQ96x4fs,Refine(SQfp16)"),
        (200_000, "PQ96x4fs,Refine(SQfp16)"),
        (200_001, "PQ96x4fs,Refine(SQ8)"),
    ],
)
def test_the_default_depends_on_the_number_of_passages(rows: int, spec: str) -> None:
    assert default_spec(rows, 384) == spec


@pytest.mark.parametrize(("dim", "parts"), [(768, 192), (384, 96), (100, 25), (30, 6), (7, 1), (3, 1)])
def test_the_parts_of_a_codebook_divide_the_dimensions(dim: int, parts: int) -> None:
    spec = default_spec(100_000, dim)
    assert spec == f"PQ{parts}x4fs,Refine(SQfp16)"
    assert new_index(spec, dim).d == dim


def test_parts_that_do_not_divide_the_dimensions_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"FAISS.*'PQ5x4fs'.*\b32\b"):
        new_index("PQ5x4fs", DIM)


@pytest.mark.parametrize(
    ("rows", "lists"), [(1, 1), (78, 2), (10_000, 256), (1_000_000, 2048), (21_000_000, 16384)]
)
def test_lists_are_a_power_of_two_with_39_vectors_each(rows: int, lists: int) -> None:
    # 10,000: 4 x 100 = 400 and 10,000 / 39 = 256.4, so 256. 1,000,000: 4 x 1,000 = 4,000, so 2,048.
    assert list_count(rows) == lists


ROWS = 12_000


@pytest.mark.parametrize(
    "spec",
    [
        *(
            "Flat",
            "SQfp16",
            "SQ8",
            "SQ4",
            "HNSW16",
            "HNSW16_SQ8",
            "IVF64,Flat",
            "IVF64,SQ8",
            "PQ8x4fs",
            "PQ8x4",
        ),
        *("PQ8x4fs,Refine(SQ8)", "PQ8x4fs,RFlat", "IVF64,PQ8x4fs,Refine(SQfp16)"),
    ],
)
def test_arithmetic_agrees_with_the_file_within_three_percent(tmp_path: Path, spec: str) -> None:
    vectors = clustered(ROWS)
    index = new_index(spec, DIM)
    if "HNSW" in spec:
        index.hnsw.efConstruction = 8
    train(index, vectors[:4000], spec)
    add_rest(index, vectors)
    write_index(index, tmp_path / "i")
    expected = footprint(spec, ROWS, DIM).total
    # 3 %, and tables of a few kilobytes that do not grow with the rows
    assert abs((tmp_path / "i").stat().st_size - expected) < 0.03 * expected + 8_000


def test_wiki_18_takes_what_the_literature_says() -> None:
    # 21,015,324 x 768: Flat 3,072 B each = 64.6 GB, SQ8 16.1 GB, HNSW32 over SQ8 near 22 GB, 4-bit codes of 192 parts 2 GB
    rows, gb = 21_015_324, 1e9
    assert footprint("Flat", rows, 768).total / gb == pytest.approx(64.6, abs=0.05)
    assert footprint("SQ8", rows, 768).total / gb == pytest.approx(16.1, abs=0.05)
    assert footprint("HNSW32_SQ8", rows, 768).total / gb == pytest.approx(22, abs=0.6)
    codes = footprint("PQ192x4fs,Refine(SQ8)", rows, 768)
    assert (codes.hot / gb, codes.refine / gb) == pytest.approx((2.02, 16.14), abs=0.01)


def test_arithmetic_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigurationError, match="'LSH'"):
        footprint("LSH", 10, 8)


def test_too_few_vectors_for_the_lists_are_refused_and_not_only_warned_about() -> None:
    with pytest.raises(ConfigurationError, match=r"\b77\b.*'IVF2,Flat'.*\b78\b"):
        filled("IVF2,Flat", clustered(77))
    assert filled("IVF2,Flat", clustered(78)).ntotal == 78
    with pytest.raises(ConfigurationError, match=r"'PQ8x4fs'.*\b16\b"):
        filled("PQ8x4fs", clustered(50)[:15])


def test_a_quantiser_learns_from_all_parts_of_the_corpus() -> None:
    # Sorted, so that the first rows hold the low values of the first coordinate alone; more rows than are trained on.
    vectors = clustered(120_000, dim=8)
    vectors = vectors[np.argsort(vectors[:, 0])]
    queries = vectors[-64:]
    clipped = new_index("SQ8", 8)
    clipped.train(vectors[:100])
    clipped.add(vectors)
    assert overlap(filled("SQ8", vectors), vectors, queries) > 0.9 > overlap(clipped, vectors, queries)


def test_effort_reaches_the_index_inside_and_replaces_what_was_in_the_file(tmp_path: Path) -> None:
    vectors = clustered(3000)
    index = new_index("IVF64,PQ8x4fs,RFlat", DIM)
    train(index, vectors, "IVF64,PQ8x4fs,RFlat")
    add_rest(index, vectors)
    assert (faiss.downcast_index(index.base_index).nprobe, index.k_factor) == (1, 1)  # FAISS's own defaults
    write_index(index, tmp_path / "i")
    again = read_index(tmp_path / "i")
    assert faiss.downcast_index(again.base_index).nprobe == 48  # the least, of 64 lists
    assert again.k_factor == 32
    tune(again, Effort(probe_share=0.5, least_probes=8, k_factor=3))
    assert (faiss.downcast_index(again.base_index).nprobe, again.k_factor) == (32, 3)
    tune(again, Effort(least_probes=100))
    assert faiss.downcast_index(again.base_index).nprobe == 64  # all there are
    graph = new_index("HNSW32_SQ8", DIM)
    tune(graph)
    assert graph.hnsw.efSearch == 128


def test_an_index_written_with_one_probed_list_finds_as_much_after_opening(tmp_path: Path) -> None:
    vectors = clustered(5000)
    queries = vectors[::100]
    index = new_index("IVF64,Flat", DIM)
    train(index, vectors, "IVF64,Flat")
    add_rest(index, vectors)
    before = overlap(index, vectors, queries)
    write_index(index, tmp_path / "i")
    assert overlap(read_index(tmp_path / "i"), vectors, queries) > before + 0.1


def test_adding_goes_on_where_it_stopped() -> None:
    vectors, seen = clustered(3000), list[int]()
    index = new_index("Flat", DIM)
    index.add(vectors[:1234])
    add_rest(index, vectors, seen.append)
    assert seen == [3000]
    np.testing.assert_array_equal(index.reconstruct_n(0, 3000), vectors)


def test_labels_of_their_own_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'IDMap,Flat'"):
        new_index("IDMap,Flat", DIM)


def test_a_file_that_is_no_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "i").write_bytes(b"junk" * 100)
    with pytest.raises(ConfigurationError, match=r"/i\b"):
        read_index(tmp_path / "i")


OWN_MEMORY = """
import sys
from pathlib import Path
import numpy as np
from agentenv.retrievers.indexes import load_faiss, read_index
load_faiss().omp_set_num_threads(1)
own = lambda: int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) * 1024
small = read_index(Path(sys.argv[1]))
small.search(np.ones((1, small.d), dtype=np.float32), 10)
before = own()
index = read_index(Path(sys.argv[2]), mapped=sys.argv[3] == "mapped")
index.search(np.ones((1, index.d), dtype=np.float32), 10)
print(own() - before)
"""


def own_memory(folder: Path, spec: str, how: str) -> tuple[int, int]:
    """Size of an index file, and the memory of its own that a process takes to open and search it."""
    dim = 128
    vectors = clustered(40_000 if "HNSW" not in spec else 4_000, dim=dim)
    write_index(filled("Flat", vectors[:10]), folder / "small")
    index = new_index(spec, dim)
    if "HNSW" in spec:
        index.hnsw.efConstruction = 8
    train(index, vectors[:3000], spec)
    add_rest(index, vectors)
    write_index(index, folder / "big")
    words = [sys.executable, "-c", OWN_MEMORY, str(folder / "small"), str(folder / "big"), how]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    return (folder / "big").stat().st_size, int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see resident memory")
@pytest.mark.parametrize("spec", ["Flat", "SQfp16", "SQ8", "HNSW64", "HNSW64_SQ8", "IVF16,SQ8", "PQ64x4"])
def test_a_mapped_index_takes_no_memory_of_its_own(tmp_path: Path, spec: str) -> None:
    size, own = own_memory(tmp_path, spec, "mapped")
    assert size > 1_200_000
    assert own < size / 3


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see resident memory")
def test_what_is_not_mapped_is_known(tmp_path: Path) -> None:
    size, own = own_memory(tmp_path, "Flat", "read")
    assert own > 0.9 * size  # the measure sees an index that is read into memory
    size, own = own_memory(tmp_path, "PQ32x4fs,Refine(SQfp16)", "mapped")
    codes = 40_000 * 16
    assert own < 3 * codes + 500_000 < size / 2  # fast-scan codes are copied, the finer ones are not
