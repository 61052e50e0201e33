"""Lexical retrieval: BM25 with the library bm25s, with the same English stemmer and stop words for both sides."""

import importlib
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from agentenv.core.scoring.normalize import CJK
from agentenv.core.types import Document
from agentenv.errors import ConfigurationError, CorpusError, IndexMismatch, needs_extra
from agentenv.retrievers.base import (
    SCORE_DECIMALS,
    CorpusRetriever,
    Hit,
    best_hits,
    in_pairs,
    passage_text,
)
from agentenv.retrievers.storage.corpus import Corpus, as_corpus
from agentenv.retrievers.storage.mapped_corpus import write_corpus
from agentenv.retrievers.storage.retriever_folder import Card, new_folder, read_card, read_corpus, write_card

INDEX_FOLDER = "bm25s"
_CJK = re.compile(f"[{CJK}]")
_UNCUT_CJK = re.compile(f"[{CJK}]{{3}}")
_importing = threading.Lock()
_METHOD = "lucene"
K1, B = 1.5, 0.75
"""The defaults of bm25s. ConvSearch-R1 uses .9 and .4 for TopiOCQA, .82 and .68 for QReCC."""


class BM25Retriever(CorpusRetriever):
    """BM25 (Lucene's variant) over title and text.

    Create it with `build` or `load`. Only passages that share a stem with the query are found. For Chinese and Japanese,
    pairs of neighbouring characters are used instead of stems.

    Args:
        corpus: The documents; row i of the index is document i.
        index: A ``bm25s.BM25`` over their stems.
        timeout_s: Time limit of a batch in seconds, after which its callers get a `RetrieverFault`.
    """

    def __init__(self, corpus: Corpus, index: Any, *, timeout_s: float = 60.0) -> None:
        constants = "" if (index.k1, index.b) == (K1, B) else f" k1={index.k1:g} b={index.b:g}"
        pairs = " pairs" if any(map(_CJK.match, index.vocab_dict)) else ""
        super().__init__(
            corpus, name="bm25", settings=f"lucene english{constants}{pairs}", timeout_s=timeout_s
        )
        self._index = index
        self._stems = _Stemmer()

    @classmethod
    def build(cls, documents: Iterable[Document], *, k1: float = K1, b: float = B) -> "BM25Retriever":
        """Indexes the documents.

        Args:
            documents: A corpus, or its documents.
            k1: Saturation of repeated words: larger values give repetitions more weight; at least 0.
            b: Length normalisation, from 0 (none) to 1 (full).

        Raises:
            ConfigurationError: a constant is out of range.
            CorpusError: there are no documents, an id is repeated, or no document contains a word.
        """
        if not (0 <= k1 < inf and 0 <= b <= 1):
            raise ConfigurationError(f"k1={k1} of BM25 must be at least 0, and b={b} from 0 to 1.")
        corpus = as_corpus(documents)
        stems = _Stemmer()([passage_text(document) for document in corpus])
        # Sorted, because bm25s numbers its vocabulary in the order of a set, which differs between processes.
        vocabulary = {stem: i for i, stem in enumerate(sorted({stem for row in stems for stem in row}))}
        if not vocabulary:
            raise CorpusError(f"None of the {len(corpus)} documents has a word that BM25 could index.")
        index = _bm25s().BM25(k1=k1, b=b)
        index.index(([[vocabulary[stem] for stem in row] for row in stems], vocabulary), show_progress=False)
        return cls(corpus, index)

    def save(self, folder: Path | str) -> None:
        """Writes index, corpus and card. If it fails, nothing is left behind.

        Raises:
            ConfigurationError: the folder contains something other than a retriever, or cannot be written.
        """
        with new_folder(Path(folder)) as fresh:
            self.write(fresh)

    def write(self, folder: Path | str) -> None:
        """Writes index, corpus and card into an empty folder, which the caller renames or removes.

        Raises:
            OSError: they cannot be written.
        """
        fresh = Path(folder)
        write_corpus(self.corpus, fresh)
        self._index.save(str(fresh / INDEX_FOLDER), corpus=None, show_progress=False)
        card = Card(kind="bm25", rows=len(self.corpus), corpus=self.corpus.fingerprint)
        write_card(fresh, replace(card, k1=self._index.k1, b=self._index.b))

    @classmethod
    def load(cls, folder: Path | str, *, timeout_s: float = 60.0) -> "BM25Retriever":
        """Opens a saved retriever.

        Args:
            folder: The folder to which `save` wrote it.
            timeout_s: Time limit of a batch in seconds.

        Raises:
            ConfigurationError: the folder contains no BM25 retriever.
            IndexMismatch: the corpus is not the one of which the index was built.
        """
        folder = Path(folder)
        card = read_card(folder, "bm25")
        corpus = read_corpus(folder, card)
        try:
            # Set here, because the folder could name another backend, compiled code that does not check array indices.
            index = _bm25s().BM25.load(str(folder / INDEX_FOLDER), backend="numpy")
            rows = int(index.scores["num_docs"])
            sound = _is_sound(index, rows)
        except (
            OSError,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
            MemoryError,
        ) as error:
            message = f"{folder / INDEX_FOLDER} cannot be read; build the retriever again."
            raise ConfigurationError(message) from error
        if rows != len(corpus):
            raise IndexMismatch(f"The index in {folder} holds {rows} rows, not {len(corpus)}; rebuild it.")
        if not sound:
            raise IndexMismatch(
                f"The arrays or settings in {folder / INDEX_FOLDER} do not fit together; build the retriever again."
            )
        if any(map(_UNCUT_CJK.search, index.vocab_dict)):
            raise IndexMismatch(
                f"The index in {folder} holds clauses of Chinese or Japanese as single words, as earlier versions wrote "
                "them, and would find next to nothing; build it again."
            )
        if (index.k1, index.b) != (K1 if card.k1 is None else card.k1, B if card.b is None else card.b):
            raise IndexMismatch(
                f"The index in {folder} has k1={index.k1:g} and b={index.b:g}, its card k1={card.k1} and b={card.b}; "
                "rebuild it."
            )
        return cls(corpus, index, timeout_s=timeout_s)

    def rank(self, texts: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most ``k`` hits for each text, best first, ties by row."""
        return [self._rank_one(stems, k) for stems in self._stems(texts)]

    def _rank_one(self, stems: list[str], k: int) -> list[Hit]:
        ids = self._index.get_tokens_ids(stems)  # only stems that occur in the corpus
        if not ids:
            return []
        # Rounded first: sums of the same terms in another order differ in the last digits, which would break ties randomly.
        scores = np.round(self._index.get_scores_from_ids(ids), SCORE_DECIMALS)
        # Partitioned instead of sorted, which would dominate the time for millions of documents. All ties with the k-th
        # score are kept, because the row decides among them.
        kth_best = np.partition(scores, -k)[-k]
        rows = np.flatnonzero((scores >= kth_best) & (scores > 0))
        return best_hits(scores[rows], rows, k)


def _is_sound(index: Any, rows: int) -> bool:
    """Whether every word of ``index`` refers to scores, and every score to one of ``rows`` documents."""
    data, documents, starts = (index.scores[name] for name in ("data", "indices", "indptr"))
    if data.dtype.kind != "f" or {documents.dtype.kind, starts.dtype.kind} != {"i"} or starts.ndim != 1:
        return False
    # The entry for unknown words has a number but no scores.
    words = [number for word, number in index.vocab_dict.items() if word or number != len(starts) - 1]
    return bool(
        index.method == _METHOD
        and np.dtype(index.dtype).kind == "f"
        and all(isinstance(constant, int | float) for constant in (index.k1, index.b))
        and data.shape == documents.shape == (int(starts[-1]),)
        and starts[0] == 0
        and (starts[1:] >= starts[:-1]).all()
        and documents.min(initial=0) >= 0
        and documents.max(initial=-1) < rows
        and -inf < data.min(initial=0.0) <= data.max(initial=0.0) < inf
        and all(type(word) is int and 0 <= word < len(starts) - 1 for word in words)
    )


class _Stemmer:
    """Splits texts into lower-case stems without stop words, and Chinese and Japanese into pairs of characters."""

    def __init__(self) -> None:
        with needs_extra("retrieval", "PyStemmer"):
            import Stemmer
        self._tokenize = _bm25s().tokenize
        self._stemmer = Stemmer.Stemmer("english")

    def __call__(self, texts: Sequence[str]) -> list[list[str]]:
        stems: list[list[str]] = self._tokenize(
            list(map(in_pairs, texts)),
            stopwords="en",
            stemmer=self._stemmer,
            return_ids=False,
            show_progress=False,
        )
        return stems


def _bm25s() -> Any:
    # By one thread at a time, because a hidden module is hidden from the whole process; only once, because later imports use
    # the loaded module.
    with _importing:
        if "bm25s" in sys.modules:
            return importlib.import_module("bm25s")
        with needs_extra("retrieval"), _import_blocked("jax"):
            return importlib.import_module("bm25s")


@contextmanager
def _import_blocked(name: str) -> Iterator[None]:
    """Within the block, the module ``name`` cannot be imported.

    bm25s uses JAX if it is installed, and initialises it during import: JAX then reserves three quarters of the memory of a
    GPU, which the policy needs.
    """
    held = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop(name, None)
        if held is not None:
            sys.modules[name] = held
