"""Imports an index that was built elsewhere, such as those of Search-R1 and FlashRAG over wiki-18, without rebuilding it.

These consist of one FAISS file and one ``.jsonl`` file, whose line i, ``{"id", "contents"}``, is row i of the index. The
files do not state this, nor which encoder made the vectors. So a sample of passages is encoded and compared with the index.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentenv.errors import ConfigurationError, IndexMismatch
from agentenv.retrievers.encoder import Encoder, Vectors
from agentenv.retrievers.faiss import INDEX_FILE, FaissRetriever, dense_card, laid_out
from agentenv.retrievers.indexes import load_faiss, read_index, refuse_unsearchable
from agentenv.retrievers.storage.mapped_corpus import MappedCorpus, link_corpus
from agentenv.retrievers.storage.retriever_folder import new_folder, write_card

_SAMPLE = 16
_LEAST_SIMILARITY = 0.99  # half precision and other batch sizes give .9999
# Of ``contents``: with quotes as in wiki-18, and without.
_LAYOUTS = ('"{title}"\n{text}', "{title}\n{text}")
_LEAST_NEAREST_SHARE = 0.9  # smallest share of the sample that is nearest to its own row, for inexact vectors


def import_index(index_file: Path, corpus: Path, out: Path, encoder: Encoder) -> FaissRetriever:
    """Makes ``out`` a retriever with links to both files, and with the tables and the card that it needs.

    Args:
        index_file: A file of ``faiss.write_index`` with inner product.
        corpus: A ``.jsonl`` file; row i of the index is its document i.
        out: The folder to write. It replaces an older retriever.
        encoder: The encoder that made the vectors, including prefixes and pooling.

    Raises:
        CorpusError: the corpus is compressed, empty or corrupt.
        ConfigurationError: the index cannot be read, or is of an unsupported kind.
        IndexMismatch: index, corpus and encoder do not belong together.
    """
    index = read_index(index_file)
    refuse_unsearchable(index, index_file)
    with new_folder(out) as fresh:
        linked = link_corpus(corpus, fresh)
        if (index.ntotal, index.d) != (len(linked), encoder.dim):
            raise IndexMismatch(
                f"{index_file} holds {index.ntotal} vectors of {index.d} dimensions, but {corpus} has {len(linked)} "
                f"passages and the encoder {encoder.dim} dimensions; they do not belong together."
            )
        layout = _layout_of(index, linked, encoder)
        (fresh / INDEX_FILE).symlink_to(index_file.resolve())
        with corpus.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        kind = type(index).__name__
        write_card(fresh, dense_card(linked, encoder, kind, layout=layout, corpus_file=digest))
    return FaissRetriever.load(out, encoder=encoder)


def _layout_of(index: Any, corpus: MappedCorpus, encoder: Encoder) -> str:
    """Returns how title and text were combined for the encoder that made the vectors.

    Raises:
        IndexMismatch: no known layout gives passages the vectors of their rows.
    """
    rows = np.unique(np.linspace(0, len(corpus) - 1, _SAMPLE).astype(np.int64)).tolist()
    if (lists := load_faiss().try_extract_index_ivf(index)) is not None:
        lists.make_direct_map()  # an IVF needs it to find the vector of a row
    try:
        stored: Vectors = np.stack([index.reconstruct(row) for row in rows])
    except RuntimeError as error:
        raise ConfigurationError(
            f"{type(index).__name__} does not give its vectors back to compare."
        ) from error
    matches = {layout: _match(index, stored, corpus, rows, encoder, layout) for layout in _LAYOUTS}
    layout, (found, mean) = max(matches.items(), key=lambda item: item[1])
    if found < _LEAST_NEAREST_SHARE:
        raise IndexMismatch(
            f"Of {len(rows)} passages {found:.0%} have the vector that encoder {encoder.spec!r} gives them (mean "
            f"similarity {mean:.3f}); the corpus has another order, or the vectors were made with another encoder, "
            "prefix or pooling."
        )
    return layout


def _match(
    index: Any,
    stored: Vectors,
    corpus: MappedCorpus,
    rows: Sequence[int],
    encoder: Encoder,
    layout: str,
) -> tuple[float, float]:
    """Returns the share of the passages in ``rows`` with the stored vectors, and the mean similarity of both."""
    encoded = encoder.encode_passages([laid_out(corpus[row], layout) for row in rows])
    similarity = encoded @ stored.T
    found = similarity.argmax(axis=1) == np.arange(len(stored))
    if isinstance(index, load_faiss().IndexFlat):
        # By distance, because the inner product with a longer vector may be large although the vectors differ.
        found = np.square(encoded - stored).sum(axis=1) <= 2 * (1 - _LEAST_SIMILARITY)
    return float(np.mean(found)), float(np.diag(similarity).mean())
