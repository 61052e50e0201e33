"""``agentenv retriever``: build a searchable folder from a corpus, and ask it."""

import asyncio
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.corpus import Corpus, load_corpus
from agentenv.retrievers.encoder import make_encoder
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.hybrid import HybridRetriever
from agentenv.retrievers.spec import open_retriever


@dataclass(frozen=True)
class Build:
    """Index a corpus, so that `agentenv retriever query` and `--retriever faiss:DIR` can search it.

    Example: agentenv retriever build corpus.jsonl --out wiki --index SQfp16
    """

    corpus: tyro.conf.Positional[Path]
    """A .jsonl or .jsonl.gz file with id, title and text a line, or a folder that holds corpus.jsonl."""
    out: Path
    """The folder to write; an older retriever there is replaced."""
    index: str = "Flat"
    """How vectors are stored: Flat (exact), SQfp16, SQ8 or HNSW32; or bm25 instead, or hybrid for both."""
    encoder: str = "minilm"
    """Sentence encoder: minilm, hash (no model), or st:PATH for a local sentence-transformers folder."""

    def run(self) -> dict[str, Any]:
        """Builds and saves; returns what was built."""
        started = time.perf_counter()
        retriever = self._build(load_corpus(self.corpus))
        retriever.save(self.out)
        return {"out": str(self.out), **asdict(retriever.info()), "seconds": time.perf_counter() - started}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints where the retriever is and how to ask it."""
        console.print(f"{result['documents']:,} documents, {result['name']}, {result['seconds']:.1f} s.")
        console.print(f"Ask it: agentenv retriever query {result['out']} 'your question'", markup=False)

    def _build(self, corpus: Corpus) -> FaissRetriever | BM25Retriever | HybridRetriever:
        if self.index == "bm25":
            return BM25Retriever.build(corpus)
        kind = HybridRetriever if self.index == "hybrid" else FaissRetriever
        spec = "Flat" if self.index == "hybrid" else self.index
        columns = (TextColumn("encoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("encoding", total=len(corpus))
            return kind.build(
                corpus,
                make_encoder(self.encoder),
                spec,
                progress=lambda done, total: bar.update(task, completed=done),
            )


@dataclass(frozen=True)
class Query:
    """Search a folder that `agentenv retriever build` made.

    Example: agentenv retriever query wiki "Who founded the museum?" -k 3
    """

    folder: tyro.conf.Positional[Path]
    """The folder of the retriever."""
    text: tyro.conf.Positional[str]
    """What to search for."""
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 5
    """Most passages to show; at least 1."""

    def run(self) -> dict[str, Any]:
        """Searches; returns the passages, best first."""
        retriever = open_retriever(self.folder)
        (passages,) = asyncio.run(retriever.search([self.text], self.k))
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
            table.add_row(*map(_plain, row))
        console.print(table if result["passages"] else "Nothing found.")


Command = (
    Annotated[Build, tyro.conf.subcommand("build", prefix_name=False)]
    | Annotated[Query, tyro.conf.subcommand("query", prefix_name=False)]
)
"""What `agentenv retriever` parses."""


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
