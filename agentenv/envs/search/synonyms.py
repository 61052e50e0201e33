"""Synonyms in a graph of facts: names with similar vectors.

Shapes: n names, d dimensions of a vector. HippoRAG (Gutierrez et al. 2024, arXiv:2405.14831, section 2.2) links two names if
    the cosine of their vectors is at least .8, which is then the weight of the edge. Its program requires more than two
    letters or digits in a name, and gives a name at most 101 synonyms.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from agentenv.retrievers.encoder import Encoder, Vectors

SIMILARITY = 0.8
"""The cosine from which on two names are synonyms (HippoRAG)."""
_MIN_LETTERS = 3
"""The smallest number of letters and digits of a name with synonyms."""
_MOST_SYNONYMS = 101
"""The largest number of synonyms of a name; the nearest are kept."""
_BLOCK_ROWS = 1000
"""Number of names that are compared with all others at a time."""


class Synonym(NamedTuple):
    """Two names and their similarity."""

    name: str
    other: str
    similarity: float


def synonyms_of(names: Sequence[str], encoder: Encoder, *, similarity: float = SIMILARITY) -> list[Synonym]:
    """Returns all pairs of synonyms, once for each of the two names that has the other among its nearest.

    Args:
        names: Distinct names.
        encoder: Computes the names' vectors.
        similarity: The cosine from which on two names are synonyms.
    """
    return list(nearest(names, encoder.encode_passages(names), similarity=similarity)) if names else []


def nearest(names: Sequence[str], vectors_nd: Vectors, *, similarity: float) -> Iterator[Synonym]:
    """Yields, for each name in turn, the other names with a cosine of at least ``similarity``, nearest first.

    Args:
        names: Distinct names.
        vectors_nd: Their unit vectors.
        similarity: The smallest cosine.
    """
    for start in range(0, len(names), _BLOCK_ROWS):
        cosines = vectors_nd[start : start + _BLOCK_ROWS] @ vectors_nd.T
        for row, name in enumerate(names[start : start + _BLOCK_ROWS]):
            if sum(letter.isalnum() for letter in name) < _MIN_LETTERS:
                continue
            mine = cosines[row]
            alike = [int(place) for place in np.flatnonzero(mine >= similarity) if place != start + row]
            for place in sorted(alike, key=lambda place: (-mine[place], place))[:_MOST_SYNONYMS]:
                yield Synonym(name, names[place], float(mine[place]))
