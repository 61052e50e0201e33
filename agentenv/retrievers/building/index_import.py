"""Takes over an index that was built elsewhere, as those of Search-R1 and FlashRAG over wiki-18, without rebuilding it.

Theirs is one FAISS file and one ``.jsonl`` whose line i, ``{"id", "contents"}``, is row i of the index. Nothing in the
files says so, nor which encoder made the vectors, so a sample of passages is encoded and compared with the index.
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
_LEAST_SIMILARITY = 0.99  # half precision and another batch size leave .9999
# Of ``contents``: in wiki-18, and in corpora without the quotes.
_LAYOUTS = ('"{title}"\n{text}', "{title}\n{text}")
_LEAST_FOUND = 0.9  # share of the sample that is nearest to its own row, where vectors are stored inexactly


def import_index(index_file: Path, corpus: Path, out: Path, encoder: Encoder) -> FaissRetriever:
    """Makes ``out`` a retriever of links to both files, with the tables and the card that belong to it.

    Args:
        index_file: what ``faiss.write_index`` wrote, inner product.
        corpus: a ``.jsonl`` file, row i of the index being its document i.
        out: the folder to write; an older retriever there is replaced.
        encoder: the one that made the vectors, prefixes and pooling included.

    Raises:
        CorpusError: the corpus is compressed, empty or corrupt.
        ConfigurationError: the index cannot be read, or is of a kind that cannot be searched here.
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
    """How title and text were put together for the encoder that made the vectors.

    Raises:
        IndexMismatch: in no known way do passages get the vectors of their rows.
    """
    rows = np.unique(np.linspace(0, len(corpus) - 1, _SAMPLE).astype(np.int64)).tolist()
    if (lists := load_faiss().try_extract_index_ivf(index)) is not None:
        lists.make_direct_map()  # without it an IVF does not know where its vectors are
    try:
        stored: Vectors = np.stack([index.reconstruct(row) for row in rows])
    except RuntimeError as error:
        raise ConfigurationError(
            f"{type(index).__name__} does not give its vectors back to compare."
        ) from error
    matches = {layout: _match(index, stored, corpus, rows, encoder, layout) for layout in _LAYOUTS}
    layout, (found, mean) = max(matches.items(), key=lambda item: item[1])
    if found < _LEAST_FOUND:
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
    """The share of the passages in ``rows`` that have the stored vectors, and the mean similarity of both."""
    encoded = encoder.encode_passages([laid_out(corpus[row], layout) for row in rows])
    similarity = encoded @ stored.T
    found = similarity.argmax(axis=1) == np.arange(len(stored))
    if isinstance(index, load_faiss().IndexFlat):
        # As a distance: the inner product with a vector that is longer than 1 may be large although both differ.
        found = np.square(encoded - stored).sum(axis=1) <= 2 * (1 - _LEAST_SIMILARITY)
    return float(np.mean(found)), float(np.diag(similarity).mean())
