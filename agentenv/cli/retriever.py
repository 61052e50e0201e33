"""``agentenv retriever``: build a searchable folder from a corpus, take one over, and ask it."""

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.errors import ConfigurationError
from agentenv.policies.compute import AUTOMATIC, ComputeSettings, use_compute
from agentenv.retrievers.bm25 import K1, B
from agentenv.retrievers.building.builder import Report, build_bm25_folder, build_folder
from agentenv.retrievers.building.index_import import import_index
from agentenv.retrievers.encoder import make_encoder
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.hybrid import HybridRetriever
from agentenv.retrievers.indexes import AUTO
from agentenv.retrievers.rerank import RerankRetriever, make_reranker
from agentenv.retrievers.retriever_spec import open_retriever
from agentenv.retrievers.storage.corpus import corpus_file
from agentenv.retrievers.storage.retriever_folder import check_folder


@dataclass(frozen=True)
class Build:
    """Builds an index of a corpus of any size, so that `agentenv retriever query` and `--retriever faiss:DIR` can search it.

    The same command continues a build that was interrupted.

    Example: agentenv retriever build corpus.jsonl --out wiki --index SQfp16
    """

    corpus: tyro.conf.Positional[Path]
    """A .jsonl file with id, title and text a line, a .csv, .tsv or .parquet file with these columns (all but the last also
    with .gz), or a folder that holds corpus.jsonl."""
    out: Path
    """The folder to write; an older retriever there is replaced."""
    index: str = AUTO
    """How vectors are stored, in FAISS's words: Flat (exact), SQfp16, SQ8, HNSW32, HNSW32_SQ8, IVF1024,SQ8,
    PQ96x4fs,Refine(SQ8), ...; auto chooses by the number of passages. Or bm25 instead, or hybrid for both."""
    encoder: str = "minilm"
    """Sentence encoder: minilm, hash (no model), or st:PATH, e5:PATH, bge:PATH for a local sentence-transformers
    folder, the last two with the prefixes of their family."""
    k1: float = K1
    """Constant of the index bm25: how slowly repetitions of a word stop counting."""
    b: float = B
    """Constant of the index bm25: how much long passages are discounted. ConvSearch-R1 takes k1 0.9 and b 0.4 for TopiOCQA,
    0.82 and 0.68 for QReCC."""
    compute: ComputeSettings = AUTOMATIC
    """Where the encoder computes, and how."""

    def run(self) -> dict[str, Any]:
        """Builds and saves; returns what was built."""
        if self.index != "bm25" and (self.k1, self.b) != (K1, B):
            raise ConfigurationError(
                f"--k1 {self.k1:g} and --b {self.b:g} belong to the index bm25, not to {self.index!r}: leave them out."
            )
        started = time.perf_counter()
        with use_compute(self.compute):
            done = self._build_bm25() if self.index == "bm25" else self._build_dense()
        return {"out": str(self.out), **done, "seconds": time.perf_counter() - started}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints where the retriever is and how to ask it."""
        kind = f"{result['name']} {result['index']}".strip()
        console.print(f"{result['documents']:,} documents, {kind}, {result['seconds']:.1f} s.", markup=False)
        if result["resumed_rows"]:
            console.print(
                f"{result['resumed_rows']:,} of them had already been encoded by an interrupted build."
            )
        if result["damaged_rows"]:
            console.print(
                f"{result['damaged_rows']:,} others were encoded again, because the vectors that it had left were damaged."
            )
        console.print(
            f"Ask it: agentenv retriever query {shlex.quote(result['out'])} 'your question'", markup=False
        )

    def _build_bm25(self) -> dict[str, Any]:
        retriever = build_bm25_folder(self.corpus, self.out, k1=self.k1, b=self.b)
        return {**asdict(retriever.info()), "index": "", "resumed_rows": 0, "damaged_rows": 0}

    def _build_dense(self) -> dict[str, Any]:
        hybrid = self.index == "hybrid"
        corpus_file(self.corpus)  # before the encoder, which takes a while
        encoder = make_encoder(self.encoder)
        with _progress() as report:
            built = build_folder(
                self.corpus, self.out, encoder, AUTO if hybrid else self.index, hybrid=hybrid, report=report
            )
        loaded = (HybridRetriever if hybrid else FaissRetriever).load(self.out, encoder=encoder)
        rows = {"resumed_rows": built.resumed_rows, "damaged_rows": built.damaged_rows}
        return {**asdict(loaded.info()), "index": built.spec, **rows}


@contextmanager
def _progress() -> Iterator[Report]:
    """One bar on stderr for the pass that runs: what, how far, how fast, how long still."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True, emoji=False), transient=True) as bar:
        task, name, since = bar.add_task("reading", total=None, rate=""), "", (0, 0.0)

        def report(context: str, done: int, total: int) -> None:
            nonlocal name, since
            if context != name:
                name, since = context, (done, time.monotonic())
                bar.reset(task, description=context, total=total or None)
            rate = (done - since[0]) / max(time.monotonic() - since[1], 1e-9)
            bar.update(task, completed=done, total=total or None, rate=f"{rate:,.0f}/s" if rate else "")

        yield report


@dataclass(frozen=True)
class ImportIndex:
    """Uses an index in the layout of Search-R1 and FlashRAG without building it again. Its files stay where they are.

    Example: agentenv retriever import e5_Flat.index wiki-18.jsonl --encoder e5:e5-base-v2 --out wiki
    """

    index: tyro.conf.Positional[Path]
    """The file that FAISS wrote; inner product, row i being line i of the corpus."""
    corpus: tyro.conf.Positional[Path]
    """The .jsonl file with id and contents a line: the title in quotes, a newline, the text."""
    out: Path
    """The folder to write: links, tables and a card."""
    encoder: str
    """The encoder that made the vectors, as in `build`; a sample of passages is compared."""
    compute: ComputeSettings = AUTOMATIC
    """Where the encoder computes, and how."""

    def run(self) -> dict[str, Any]:
        """Compares, links; returns what was adopted."""
        with use_compute(self.compute):
            retriever = import_index(self.index, self.corpus, self.out, make_encoder(self.encoder))
        return {"out": str(self.out), **asdict(retriever.info()), "index": retriever.spec}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints where the retriever is and how to ask it."""
        console.print(f"{result['documents']:,} documents, {result['index']}, nothing copied.", markup=False)
        console.print(
            f"Ask it: agentenv retriever query {shlex.quote(result['out'])} 'your question'", markup=False
        )


@dataclass(frozen=True)
class Query:
    """Searches a folder that `agentenv retriever build` made.

    Example: agentenv retriever query wiki "Who founded the museum?" -k 3
    """

    folder: tyro.conf.Positional[Path]
    """The folder of the retriever."""
    text: tyro.conf.Positional[str]
    """What to search for."""
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 5
    """Number of passages to show, at least 1."""
    rerank: str = ""
    """Folder of a cross-encoder that reorders the first passages found; empty for none."""
    compute: ComputeSettings = AUTOMATIC
    """Where encoder and cross-encoder compute, and how."""

    def run(self) -> dict[str, Any]:
        """Searches; returns the passages, best first."""
        with use_compute(self.compute):
            retriever = open_retriever(self.folder)
            if self.rerank:
                retriever = RerankRetriever(retriever, make_reranker(self.rerank))
        (passages,) = run_to_completion(retriever.search([self.text], self.k))
        return {
            "query": self.text,
            "retriever": asdict(retriever.info()),
            "passages": [asdict(passage) for passage in passages],
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints the passages as a table."""
        table = Table("score", "id", "title", "text")
        for passage in result["passages"]:
            row = (f"{passage['score']:.3f}", passage["id"], passage["title"], passage["text"])
            table.add_row(*map(Text, row))
        console.print(table if result["passages"] else "Nothing found.", soft_wrap=False)


@dataclass(frozen=True)
class Check:
    """Reads every byte of a saved retriever and compares it with the checksums that were recorded when it was built.

    Opening a retriever compares all of it as well, up to 4 GiB. Of a larger index it compares only a part, so use this
    command.

    Example: agentenv retriever check wiki
    """

    folder: tyro.conf.Positional[Path]
    """The folder of the retriever."""

    def run(self) -> dict[str, Any]:
        """Reads and compares; returns what was read."""
        files, size = check_folder(self.folder)
        return {"folder": str(self.folder), "files": files, "bytes": size}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints that everything is as it was written."""
        console.print(
            f"{result['files']} files, {result['bytes']:,} bytes: all as they were written.", markup=False
        )


Command = (
    Annotated[Build, tyro.conf.subcommand("build", prefix_name=False)]
    | Annotated[Query, tyro.conf.subcommand("query", prefix_name=False)]
    | Annotated[ImportIndex, tyro.conf.subcommand("import", prefix_name=False)]
    | Annotated[Check, tyro.conf.subcommand("check", prefix_name=False)]
)
"""What `agentenv retriever` parses."""
