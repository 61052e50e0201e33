"""FAISS indexes: choosing one for a corpus, its size, training, filling, search effort, writing and opening.

An index is named by FAISS's factory string: ``Flat`` (exact), ``SQfp16``, ``SQ8``, ``HNSW32``, ``HNSW32_SQ8``,
``IVF1024,SQ8``, ``PQ96x4fs,Refine(SQ8)``. Labels are always rows of the corpus. n vectors of d dimensions.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentenv.core.io.files import put_in_place
from agentenv.errors import ConfigurationError, needs_extra

Vectors = NDArray[np.float32]

AUTO = "auto"
_EXACT_BELOW = 1_000  # fewer vectors are too few to train a codebook
_FINE_BELOW = 200_000
_TRAIN_ROWS = 100_000  # number of training rows; plus 64 for every list of an IVF
_POINTS_PER_LIST = 39  # below this, FAISS's k-means only warns
_ADD_ROWS = 65_536


class Effort(NamedTuple):
    """The search effort of an approximate index. It overrides the values in an index file."""

    ef_search: int = 128
    """HNSW: number of candidates kept during a search."""
    probe_share: float = 0.125
    """IVF: share of the lists that are searched; FAISS's default is a single list."""
    least_probes: int = 48
    """IVF: smallest number of lists that are searched. A few dozen lists contain only a few thousand vectors, so searching
    more of them costs little, and searching an eighth would lose answers of real questions."""
    k_factor: int = 32
    """Refine: number of candidates for each hit that are rescored with the finer codes."""


EFFORT = Effort()


def default_spec(rows: int, dim: int) -> str:
    """Returns the index for ``rows`` passages: exact for a small corpus, otherwise small codes refined by larger ones.

    `benchmarks/index_million.py` compares both larger classes with Flat.
    """
    if rows < _EXACT_BELOW:
        return "Flat"
    return f"{fast_codes(dim)},Refine({'SQfp16' if rows <= _FINE_BELOW else 'SQ8'})"


def fast_codes(dim: int) -> str:
    """Returns a fast-scan product quantiser with 4 bits per about 4 dimensions; the parts must divide the dimensions."""
    parts = next(parts for parts in range(max(1, dim // 4), 0, -1) if dim % parts == 0)
    return f"PQ{parts}x4fs"


def list_count(rows: int) -> int:
    """Returns the number of lists of an IVF: a power of two near 4 sqrt(rows), with at least 39 vectors each."""
    wanted = min(4 * rows**0.5, rows / _POINTS_PER_LIST)
    return int(2 ** np.floor(np.log2(max(1.0, wanted))))


class Footprint(NamedTuple):
    """The size of an index in bytes."""

    hot: float
    """Bytes that every search reads."""
    refine: float
    """Bytes of which a search reads only a few rows."""

    @property
    def total(self) -> float:
        """Size of the file in bytes."""
        return self.hot + self.refine


def footprint(spec: str, rows: int, dim: int) -> Footprint:
    """Computes the size of an index, within 3 % of the file for more than 10,000 rows.

    Raises:
        ConfigurationError: the computation does not support this kind of index.
    """
    hot = refine = 0.0
    for part in re.split(r"[,_](?![^(]*\))", spec):
        if match := re.fullmatch(r"HNSW(\d+)", part):
            # 2M links at the base level, M for one row in M - 1 above it, an offset and a level
            hot += rows * (8 * int(match[1]) + 16.2)
            hot += rows * _code_bytes("Flat", dim) * (spec == part)
        elif match := re.fullmatch(r"IVF(\d+)", part):
            hot += rows * 8 + int(match[1]) * 4 * dim
        elif part == "RFlat" or part.startswith("Refine("):
            refine += rows * _code_bytes(part.removeprefix("Refine(").removesuffix(")"), dim)
        else:
            hot += rows * _code_bytes(part, dim) + _codebook_bytes(part, dim)
    return Footprint(hot, refine)


def _code_bytes(storage: str, dim: int) -> float:
    """Returns the number of bytes per vector."""
    fixed = {"Flat": 4 * dim, "RFlat": 4 * dim, "SQfp16": 2 * dim, "SQ8": dim, "SQ4": dim / 2}
    if storage in fixed:
        return fixed[storage]
    if match := re.fullmatch(r"PQ(\d+)(?:x(\d+))?(?:fs)?", storage):
        return int(match[1]) * int(match[2] or 8) / 8
    raise ConfigurationError(
        f"The size of the storage {storage!r} is not known; known: {', '.join(fixed)}, PQ."
    )


def _codebook_bytes(storage: str, dim: int) -> float:
    match = re.match(r"PQ\d+(?:x(\d+))?", storage)
    return 4 * dim * 2 ** int(match[1] or 8) if match else 0


def new_index(spec: str, dim: int) -> Any:
    """Makes an empty index with inner products.

    Raises:
        ConfigurationError: FAISS knows no such index, or it would not label vectors by row.
    """
    faiss = load_faiss()
    if "IDMap" in spec:
        raise ConfigurationError(
            f"{spec!r} stores labels of its own (IDMap); take an index without IDMap, whose labels are rows of the corpus."
        )
    try:
        return faiss.index_factory(dim, spec, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigurationError(
            f"FAISS knows no index {spec!r} of {dim} dimensions; it knows Flat, SQfp16, SQ8, HNSW32_SQ8 and IVF1024,SQ8, "
            "for example. `agentenv retriever build --index` takes bm25 and hybrid as well."
        ) from error


def refuse_untrainable(spec: str, rows: int) -> None:
    """Requires 39 vectors per list (below, FAISS's k-means only warns), and one per code of a product quantiser.

    Raises:
        ConfigurationError: there are fewer.
    """
    lists, codes = re.search(r"IVF(\d+)", spec), re.search(r"PQ\d+(?:x(\d+))?", spec)
    least = max(_POINTS_PER_LIST * int(lists[1]) if lists else 0, 2 ** int(codes[1] or 8) if codes else 0)
    if rows < least:
        raise ConfigurationError(
            f"{rows} passages are too few to train {spec!r}, which wants {least}; use Flat."
        )


def train(index: Any, vectors: Vectors, spec: str) -> None:
    """Trains on rows spread evenly over all ``vectors``, because a quantiser trained on the first ones clips the others.

    Raises:
        ConfigurationError: there are too few vectors.
    """
    if index.is_trained:
        return
    refuse_untrainable(spec, len(vectors))
    lists = re.search(r"IVF(\d+)", spec)
    most = max(_TRAIN_ROWS, 64 * int(lists[1]) if lists else 0)
    sample = np.linspace(0, len(vectors) - 1, min(len(vectors), most)).astype(np.int64)
    # FAISS needs contiguous memory, and vectors may be mapped from a file.
    index.train(np.ascontiguousarray(vectors[sample]))


def add_rest(index: Any, vectors: Vectors, report: Callable[[int], None] | None = None) -> None:
    """Adds the vectors that the index lacks, in order and in parts; reports how many it has."""
    # Starts at the present size, so that an unfinished index is resumed.
    for start in range(index.ntotal, len(vectors), _ADD_ROWS):
        index.add(np.ascontiguousarray(vectors[start : start + _ADD_ROWS]))
        if report is not None:
            report(index.ntotal)


def tune(index: Any, effort: Effort = EFFORT) -> None:
    """Sets the search effort of an index and of the indexes inside it, regardless of the values in its file."""
    faiss = load_faiss()
    if isinstance(index, faiss.IndexRefine):
        index.k_factor = effort.k_factor
        # FAISS returns inner indexes as their base class, which has no settings until it is downcast.
        tune(faiss.downcast_index(index.base_index), effort)
    elif isinstance(index, faiss.IndexPreTransform):
        tune(faiss.downcast_index(index.index), effort)
    elif isinstance(index, faiss.IndexIVF):
        index.nprobe = min(index.nlist, max(effort.least_probes, round(effort.probe_share * index.nlist)))
    elif isinstance(index, faiss.IndexHNSW):
        index.hnsw.efSearch = effort.ef_search


def write_index(index: Any, path: Path) -> None:
    """Writes an index atomically.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            # With a path instead of a writer, FAISS ignores the error of a full disk when it closes the file.
            load_faiss().write_index(index, load_faiss().PyCallbackIOWriter(file.write))
        put_in_place(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_index(path: Path, *, mapped: bool = True) -> Any:
    """Opens an index for searching.

    If it is mapped, its vectors and its graph stay in the file, and all processes share one copy. Only the codes of
    fast-scan quantisers, which FAISS rearranges, are read into memory. The older flag IO_FLAG_MMAP maps only the lists of an
    IVF.

    Raises:
        ConfigurationError: the index cannot be read.
    """
    faiss = load_faiss()
    try:
        # Read-only, because an index may name a file with its lists, which FAISS would otherwise open for writing.
        flags = faiss.IO_FLAG_READ_ONLY | (faiss.IO_FLAG_MMAP_IFC if mapped else 0)
        index = faiss.read_index(str(path), flags)
    except (RuntimeError, MemoryError) as error:
        # In a damaged file, FAISS may interpret any number as a size.
        raise ConfigurationError(f"{path} cannot be read; build the retriever again.") from error
    tune(index)
    return index


def refuse_unsearchable(index: Any, path: Path) -> None:
    """Refuses an index whose hits would not be the best rows of the corpus, or that reads other files.

    Raises:
        ConfigurationError: it compares by distances, of which the smallest is best, has its own labels, or names a file with
            its lists, which could be any file of this machine.
    """
    faiss = load_faiss()
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ConfigurationError(f"{path} compares by distance, not by inner product; build the index again.")
    for part in _indexes_in(index):
        if isinstance(part, faiss.IndexIDMap):
            raise ConfigurationError(
                f"{path} stores labels of its own (IDMap); build it without IDMap, so that its labels are rows of the "
                "corpus."
            )
        lists = getattr(part, "invlists", None)
        if lists is not None and isinstance(faiss.downcast_InvertedLists(lists), faiss.OnDiskInvertedLists):
            raise ConfigurationError(
                f"{path} keeps its lists in another file; build the index again, in one file."
            )


def _indexes_in(index: Any) -> Iterator[Any]:
    """Yields ``index`` and the indexes inside it, downcast, because FAISS returns inner ones as their base class."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index", "storage", "quantizer"):
        if isinstance(inner := getattr(index, name, None), faiss.Index):
            yield from _indexes_in(inner)


@contextmanager
def faiss_threads(count: int) -> Iterator[None]:
    """Within the block, FAISS uses ``count`` threads.

    OpenMP's setting belongs to the calling thread, and torch uses the same one. If a search left it at 1, all later training
    steps of the thread would be three times slower.
    """
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def load_faiss() -> Any:
    """Imports the module ``faiss``.

    Raises:
        MissingExtra: it is not installed.
    """
    with needs_extra("retrieval", "faiss-cpu"):
        import faiss
    return faiss
