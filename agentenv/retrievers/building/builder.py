"""Builds a retriever folder from a corpus of any size; an interrupted build can be resumed.

Texts and vectors are processed in parts: only the index itself, and less than 64 bytes per passage, are held in memory.
There are three passes, and a second call with the same arguments repeats only what it must:

1. the corpus is copied and hashed; this is always repeated, because its hash decides whether the rest may be kept;
2. passages are encoded into a file; a journal lists the finished parts, each with its checksum;
3. the index is trained and filled; from time to time the unfinished index is saved with its checksum.

The results of an interrupted build are first compared with their checksums, because a file system that was not shut down
properly may have lost or damaged the end of a file. Parts from the first wrong one on are encoded again, and a damaged index
is filled again.

A resumed build gives the same vectors as an uninterrupted one, because parts have the same boundaries. The index is the same
file too, except for a graph (HNSW) that was resumed in the third pass, because its levels are drawn again.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentenv.core.io.claims import claim
from agentenv.core.io.files import sync, sync_folder
from agentenv.errors import ConfigurationError
from agentenv.retrievers.bm25 import K1, B, BM25Retriever
from agentenv.retrievers.building.journal import BuildJournal, Part, UnfinishedIndex, intact_parts
from agentenv.retrievers.encoder import Encoder
from agentenv.retrievers.faiss import ENCODE_ROWS, INDEX_FILE, LAYOUT, dense_card, encode_documents
from agentenv.retrievers.hybrid import BM25_FOLDER, DENSE_FOLDER
from agentenv.retrievers.indexes import (
    AUTO,
    Vectors,
    add_rest,
    default_spec,
    faiss_threads,
    new_index,
    refuse_untrainable,
    train,
    write_index,
)
from agentenv.retrievers.storage.corpus import Corpus, corpus_file, load_corpus, read_documents
from agentenv.retrievers.storage.mapped_corpus import write_corpus
from agentenv.retrievers.storage.retriever_folder import Card, refuse_other_content, write_card

Report = Callable[[str, int, int], None]
"""A function of the name of the pass, the finished rows, and all rows (0 if unknown)."""

JOURNAL = "journal.jsonl"
_REPORT_ROWS = 10_000
_CHECKPOINT_S = 600.0  # interval for saving an unfinished index


@dataclass(frozen=True)
class Built:
    """The result of `build_folder`."""

    rows: int
    spec: str
    resumed_rows: int
    """Number of passages whose vectors an interrupted build had left intact."""
    damaged_rows: int = 0
    """Number of passages whose vectors it had left damaged; they were encoded again."""


def build_bm25_folder(source: Path, out: Path, *, k1: float = K1, b: float = B) -> BM25Retriever:
    """Builds a BM25 retriever in memory and writes it to ``out``, where it replaces an older retriever at the end.

    Args:
        source: A corpus for `load_corpus`.
        out: The folder for `BM25Retriever.load`.
        k1: See `BM25Retriever.build`.
        b: See `BM25Retriever.build`.

    Raises:
        CorpusError: there are no documents, an id is repeated, or a file is corrupt.
        ConfigurationError: ``out`` is something other than a retriever or cannot be written, or another process is building
            it.
    """
    corpus_file(source)
    with _building_folders(out) as (new, _):
        retriever = BM25Retriever.build(load_corpus(source), k1=k1, b=b)
        retriever.write(new)
    return retriever


def build_folder(
    source: Path,
    out: Path,
    encoder: Encoder,
    spec: str = AUTO,
    *,
    hybrid: bool = False,
    report: Report = lambda name, done, total: None,
    checkpoint_s: float = _CHECKPOINT_S,
) -> Built:
    """Builds a FAISS or hybrid retriever in ``out``, where it replaces an older retriever at the end.

    Args:
        source: A corpus for `load_corpus`.
        out: The folder for `FaissRetriever.load` or `HybridRetriever.load`.
        encoder: The encoder of passages now and of queries later.
        spec: A FAISS factory string; ``auto`` chooses by the size of the corpus.
        hybrid: Whether to add a BM25 retriever, which is built in memory.
        report: Called with the progress.
        checkpoint_s: Shortest interval for saving an unfinished index, in seconds.

    Raises:
        CorpusError: there are no documents, an id is repeated, or a file is corrupt.
        ConfigurationError: FAISS knows no such index, ``out`` is something other than a retriever or cannot be written, or
            another process is building it.
    """
    if spec != AUTO:
        new_index(spec, encoder.dim)
    with _building_folders(out) as (new, work):
        target = new / DENSE_FOLDER if hybrid else new
        target.mkdir(exist_ok=True)
        corpus = write_corpus(_read(corpus_file(source), report), target, source=str(source))
        chosen = default_spec(len(corpus), encoder.dim) if spec == AUTO else spec
        refuse_untrainable(chosen, len(corpus))
        of = [corpus.fingerprint, encoder.id, encoder.dim, LAYOUT]
        journal = BuildJournal(work / JOURNAL, of)
        left = journal.rows
        vectors, resumed = _encode(corpus, encoder, work, journal, report)
        unfinished = UnfinishedIndex(work / "index.partial", [chosen, *of])
        # With one thread, so that sums in training have the same order and the file is the same each time.
        with faiss_threads(1):
            index = _fill_index(vectors, chosen, unfinished, report, checkpoint_s)
        write_index(index, target / INDEX_FILE)
        write_card(target, dense_card(corpus, encoder, chosen))
        if hybrid:
            (new / BM25_FOLDER).mkdir()
            BM25Retriever.build(corpus).write(new / BM25_FOLDER)
            write_card(new, Card(kind="hybrid", rows=len(corpus), corpus=corpus.fingerprint))
    return Built(len(corpus), chosen, resumed, left - resumed)


def _read(path: Path, report: Report) -> Iterator[Any]:
    row = 0
    for row, document in enumerate(read_documents(path), start=1):
        yield document
        if row % _REPORT_ROWS == 0:
            report("reading", row, 0)
    report("reading", row, row)


def _encode(
    corpus: Corpus, encoder: Encoder, work: Path, journal: BuildJournal, report: Report
) -> tuple[Vectors, int]:
    """Returns the vectors of all passages, mapped from their file, and how many of them already existed intact."""
    path = work / "vectors.f32"

    def checked(rows: int, of: int) -> None:
        report("checking", rows, of)

    with path.open("r+b" if path.exists() else "w+b") as file:
        journal.keep(intact_parts(file, journal.parts, encoder.dim * 4, checked))
        resumed = journal.rows
        # Vectors after the last intact part are encoded again; they are removed so that new ones can be appended.
        file.truncate(resumed * encoder.dim * 4)
        file.seek(0, os.SEEK_END)
        report("encoding", resumed, len(corpus))
        for start in range(resumed, len(corpus), ENCODE_ROWS):
            chunk = corpus[start : start + ENCODE_ROWS]
            encoded = encode_documents(encoder, chunk).astype(np.float32).tobytes()
            file.write(encoded)
            file.flush()
            # Written to the disk before the journal: after a power failure, it must not list vectors that were lost.
            os.fsync(file.fileno())
            journal.add(Part(start + len(chunk), hashlib.sha256(encoded).hexdigest()))
            report("encoding", start + len(chunk), len(corpus))
    return np.memmap(path, dtype=np.float32, mode="r", shape=(len(corpus), encoder.dim)), resumed


def _fill_index(
    vectors: Vectors, spec: str, unfinished: UnfinishedIndex, report: Report, checkpoint_s: float
) -> Any:
    """Returns an index over all vectors, resuming the one of an earlier call."""
    index = unfinished.read() or new_index(spec, vectors.shape[1])
    report("indexing", index.ntotal, len(vectors))
    train(index, vectors, spec)
    written = time.monotonic()

    def added(rows: int) -> None:
        nonlocal written
        report("indexing", rows, len(vectors))
        if time.monotonic() - written >= checkpoint_s:
            unfinished.write(index)
            written = time.monotonic()

    add_rest(index, vectors, added)
    return index


@contextmanager
def _building_folders(out: Path) -> Iterator[tuple[Path, Path]]:
    """Yields two folders beside ``out``: an empty one that becomes ``out`` at the end, and one that survives a failure.

    After invalid input nothing is left behind, unless there are vectors of an earlier call.
    """
    refuse_other_content(out)
    site = out.parent / f".{out.name}.building"
    new, work = site / "new", site / "work"
    try:
        work.mkdir(parents=True, exist_ok=True)
        (site / "lock").touch()
        with claim(site / "lock", f"Another process is building {out}; wait for it or stop it."):
            # the process was killed between the two renames below
            if (site / "old").exists() and not out.exists():
                (site / "old").rename(out)
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            try:
                yield new, work
            except BaseException:
                if not (work / JOURNAL).exists():
                    shutil.rmtree(site, ignore_errors=True)
                raise
            if out.exists():
                out.rename(site / "old")
            # Before the rename, because a folder must not get its final name while a power failure could still lose its
            # content.
            sync_folder(new)
            new.rename(out)
            sync(out.parent)
            shutil.rmtree(site, ignore_errors=True)
    except OSError as error:
        kept = "; what is encoded is kept, run the same command again" if (work / JOURNAL).exists() else ""
        raise ConfigurationError(f"{out} cannot be written: {error.strerror or error}{kept}.") from error
