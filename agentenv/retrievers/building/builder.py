"""Builds a retriever folder from a corpus of any size, and takes up again what a kill or a power cut broke off.

Texts and vectors pass through in parts: only the index itself, and less than 64 bytes a passage, are held in memory.
Three passes, each of which a second call with the same arguments does not repeat where it need not:

1. the corpus is copied, and hashed: read again every time, because its hash says whether the rest may be kept;
2. passages are encoded into a file, whose finished parts are in a journal, each with its checksum;
3. the index is trained and filled; now and then it is written down as far as it is, with its checksum.

What an interrupted build left is compared with its checksums first: a file system that was not shut down properly may have
lost or damaged the end of a file. Parts from the first wrong one on are encoded again; a damaged index is filled again.

A build that was taken up gives the same vectors as one that was not, because parts are cut at the same rows. The index
is the same file too, except for a graph (HNSW) that was taken up in its third pass: its levels are drawn anew.
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
"""Called with the name of the pass, rows done and rows in all; 0 in all is unknown."""

JOURNAL = "journal.jsonl"
_REPORT_ROWS = 10_000
_CHECKPOINT_S = 600.0  # between two writings of an unfinished index


@dataclass(frozen=True)
class Built:
    """What `build_folder` did."""

    rows: int
    spec: str
    resumed_rows: int
    """Passages whose vectors an interrupted build had left undamaged."""
    damaged_rows: int = 0
    """Passages whose vectors it had left damaged; they were encoded again."""


def build_bm25_folder(source: Path, out: Path, *, k1: float = K1, b: float = B) -> BM25Retriever:
    """Builds a BM25 retriever in memory and then in ``out``; an older retriever there is replaced at the end.

    Args:
        source: a corpus, as `load_corpus` reads it.
        out: where `BM25Retriever.load` will find it.
        k1: as for `BM25Retriever.build`.
        b: as for `BM25Retriever.build`.

    Raises:
        CorpusError: no documents, duplicate ids, or a corrupt file.
        ConfigurationError: ``out`` is something else than a retriever or cannot be written, or another process is building
            it.
    """
    corpus_file(source)
    with _site(out) as (new, _):
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
    """Builds a FAISS retriever, or a hybrid one, in ``out``; an older retriever there is replaced at the end.

    Args:
        source: a corpus, as `load_corpus` reads it.
        out: where `FaissRetriever.load` or `HybridRetriever.load` will find it.
        encoder: for passages now and for queries later.
        spec: a FAISS factory string; ``auto`` chooses by the size of the corpus.
        hybrid: adds a BM25 retriever, which is built in memory.
        report: gets the progress.
        checkpoint_s: least seconds between two writings of an unfinished index.

    Raises:
        CorpusError: no documents, duplicate ids, or a corrupt file.
        ConfigurationError: FAISS knows no such index, ``out`` is something else than a retriever or cannot be written,
            or another process is building it.
    """
    if spec != AUTO:
        new_index(spec, encoder.dim)
    with _site(out) as (new, work):
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
        # One thread, so that sums in training come in one order and the file is the same each time.
        with faiss_threads(1):
            index = _fill(vectors, chosen, unfinished, report, checkpoint_s)
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
    """The vectors of all passages, mapped from their file, and how many of them were there already and intact."""
    path = work / "vectors.f32"

    def checked(rows: int, of: int) -> None:
        report("checking", rows, of)

    with path.open("r+b" if path.exists() else "w+b") as file:
        journal.keep(intact_parts(file, journal.parts, encoder.dim * 4, checked))
        resumed = journal.rows
        # What stands behind the last intact part is encoded again, and appending needs the end to be there.
        file.truncate(resumed * encoder.dim * 4)
        file.seek(0, os.SEEK_END)
        report("encoding", resumed, len(corpus))
        for start in range(resumed, len(corpus), ENCODE_ROWS):
            chunk = corpus[start : start + ENCODE_ROWS]
            encoded = encode_documents(encoder, chunk).astype(np.float32).tobytes()
            file.write(encoded)
            file.flush()
            # On the disk before the journal says so: after a power cut it may not promise vectors that were lost.
            os.fsync(file.fileno())
            journal.add(Part(start + len(chunk), hashlib.sha256(encoded).hexdigest()))
            report("encoding", start + len(chunk), len(corpus))
    return np.memmap(path, dtype=np.float32, mode="r", shape=(len(corpus), encoder.dim)), resumed


def _fill(
    vectors: Vectors, spec: str, unfinished: UnfinishedIndex, report: Report, checkpoint_s: float
) -> Any:
    """An index over all vectors, from where an earlier call left it."""
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
def _site(out: Path) -> Iterator[tuple[Path, Path]]:
    """Two folders beside ``out``: an empty one that becomes ``out`` in the end, and one that outlives a failure.

    Bad input leaves nothing, unless vectors of an earlier call are there.
    """
    refuse_other_content(out)
    site = out.parent / f".{out.name}.building"
    new, work = site / "new", site / "work"
    try:
        work.mkdir(parents=True, exist_ok=True)
        (site / "lock").touch()
        with claim(site / "lock", f"Another process is building {out}; wait for it or stop it."):
            if (site / "old").exists() and not out.exists():  # killed between the two renames below
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
            # Before the rename: a folder may not stand under its name with contents that a power cut could still
            # take.
            sync_folder(new)
            new.rename(out)
            sync(out.parent)
            shutil.rmtree(site, ignore_errors=True)
    except OSError as error:
        kept = "; what is encoded is kept, run the same command again" if (work / JOURNAL).exists() else ""
        raise ConfigurationError(f"{out} cannot be written: {error.strerror or error}{kept}.") from error
