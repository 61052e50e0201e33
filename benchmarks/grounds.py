"""What the retrieval benchmarks search: real passages and questions, an invented world, and a million vectors."""

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from agentenv.core.types import Document
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.errors import DatasetError
from agentenv.retrievers.encoder import Encoder, Vectors, make_encoder
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.storage.corpus import load_corpus

REAL_CORPORA = ("hotpotqa", "2wiki", "musique")
_QUESTION_FILES = ("nq_open/NQ-open.dev.jsonl.gz", "triviaqa/triviaqa_dpr_test.jsonl.gz")


class Ground:
    """A saved index and distinct questions to ask of it."""

    def __init__(self, folder: Path, questions: list[str]) -> None:
        self.folder = folder
        self.questions = questions


def passages(work: Path, encoder: str, documents: int, limit: int) -> Ground:
    """The 13,160 real passages and real questions where AGENTENV_DATA names them, else an invented world.

    ``documents`` and ``limit`` are the size of that world.
    """
    root = os.environ.get("AGENTENV_DATA")
    if root and encoder != "hash":
        data = Path(root)
        rows = [
            Document(f"{name}/{document.id}", document.title, document.text)
            for name in REAL_CORPORA
            for document in load_corpus(data / name)
        ]
        questions = list(dict.fromkeys(_questions(data)))
    else:
        world = FictionalWorld.generate(WorldConfig(documents=documents, questions=documents // 2))
        rows = list(world.documents)
        # Invented worlds have few questions; naming a number makes each distinct.
        asked = [task.question for task in world.questions]
        questions = [f"{asked[n % len(asked)]} {n}" for n in range(limit)]
    folder = work / f"passages-{encoder}-{len(rows)}"
    if not folder.exists():
        FaissRetriever.build(rows, make_encoder(encoder)).save(folder)
    return Ground(folder, questions)


def million(work: Path, encoder: str, rows: int, questions: list[str]) -> Ground:
    """So many random unit vectors of the encoder's length: an exact search costs the same whatever they are."""
    folder = work / f"random-{encoder}-{rows}"
    if not folder.exists():
        documents = [Document(str(row), f"Title {row}", f"Text of row {row}.") for row in range(rows)]
        FaissRetriever.build(documents, RandomPassages(make_encoder(encoder))).save(folder)
    return Ground(folder, questions)


class RandomPassages:
    """An encoder for queries that gives passages random vectors."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.spec, self.id, self.dim, self.recipe = encoder.spec, encoder.id, encoder.dim, encoder.recipe
        self._random = np.random.default_rng(0)

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors of queries."""
        return self._encoder.encode_queries(texts)

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        """Random unit vectors."""
        vectors = self._random.standard_normal((len(texts), self.dim), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def _questions(data: Path) -> Iterator[str]:
    for name in _QUESTION_FILES:
        with gzip.open(data / name, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                question = json.loads(line).get("question")
                if not isinstance(question, str):
                    raise DatasetError(f"{name}, line {number} has no question.")
                yield " ".join(question.split())
