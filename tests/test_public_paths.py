"""Every documented function that takes a path takes it as text as well, as `agentenv.train` and `agentenv.evaluate` do."""

import dataclasses
import inspect
import pydoc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agentenv
from agentenv.data.datasets import load_dataset
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.retriever_spec import open_retriever
from agentenv.retrievers.storage.corpus import Corpus, load_corpus, read_documents

PAGES = Path(agentenv.__file__).parents[1] / "docs/api"
DOCUMENTS = [agentenv.Document("d1", "Mill", "The mill stands at the river.")]


def documented() -> Iterator[tuple[str, Any]]:
    """The functions and methods that the reference names; records are given by the library and are left out."""
    pages = (path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md")))
    names = {line.split()[1] for page in pages for line in page.splitlines() if line.startswith("::: ")}
    for name in sorted(names):
        found = pydoc.locate(name)
        if inspect.isclass(found):
            methods = inspect.getmembers(found, inspect.isroutine)
            is_record = dataclasses.is_dataclass(found)
            yield from (
                (f"{name}.{key}", method)
                for key, method in methods
                if not key.startswith("_") or (key == "__init__" and not is_record)
            )
        elif callable(found):
            yield name, found


def test_a_path_may_be_text() -> None:
    functions = dict(documented())
    assert {"agentenv.data.load_dataset", "agentenv.retrievers.BM25Retriever.load"} <= set(functions)
    refused = []
    for name, function in functions.items():
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # of C
            continue
        refused += [
            f"{name}({one.name})"
            for one in parameters
            if "Path" in str(one.annotation) and "str" not in str(one.annotation)
        ]
    assert not refused


def test_questions_corpora_and_indexes_are_named_by_text(tmp_path: Path) -> None:
    questions, corpus, index = (str(tmp_path / name) for name in ("q.jsonl", "corpus.jsonl", "index"))
    Path(questions).write_text('{"question": "Where?", "answer": "river"}\n', encoding="utf-8")
    assert load_dataset("jsonl", questions).tasks[0].answers == ("river",)
    Corpus(DOCUMENTS).save(corpus)
    assert list(read_documents(corpus)) == DOCUMENTS == list(load_corpus(corpus))
    BM25Retriever.build(DOCUMENTS).save(index)
    assert BM25Retriever.load(index).info() == open_retriever(index).info()
