"""Synonyms of a graph of facts: names whose vectors are alike.

Shapes: n names, d dimensions of a vector. HippoRAG (Gutierrez et al. 2024, arXiv:2405.14831, section 2.2) links two names
where the cosine of their vectors is at least .8, and weighs the edge by it. Its program asks more than two letters or
digits of a name, and gives one name at most 101 synonyms.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from agentenv.retrievers.encoder import Encoder, Vectors

SIMILARITY = 0.8
"""Cosine from which on two names are synonyms (HippoRAG)."""
_SHORTEST = 3
"""Letters and digits of a name that may have synonyms."""
_MOST = 101
"""Synonyms of one name; the nearest come first."""
_ROWS = 1000
"""Names that are compared with all others at once."""


class Synonym(NamedTuple):
    """Two names, and how alike they are."""

    name: str
    other: str
    similarity: float


def synonyms_of(names: Sequence[str], encoder: Encoder, *, similarity: float = SIMILARITY) -> list[Synonym]:
    """Every pair of names that are synonyms, each pair once for each name that has the other among its nearest.

    Args:
        names: Distinct names.
        encoder: Gives them vectors.
        similarity: Cosine from which on two names are synonyms.
    """
    return list(nearest(names, encoder.encode_passages(names), similarity=similarity)) if names else []


def nearest(names: Sequence[str], vectors_nd: Vectors, *, similarity: float) -> Iterator[Synonym]:
    """For each name in turn the others with a cosine of at least ``similarity``, the nearest first.

    Args:
        names: Distinct names.
        vectors_nd: Their unit vectors.
        similarity: The bound.
    """
    for start in range(0, len(names), _ROWS):
        cosines = vectors_nd[start : start + _ROWS] @ vectors_nd.T
        for row, name in enumerate(names[start : start + _ROWS]):
            if sum(letter.isalnum() for letter in name) < _SHORTEST:
                continue
            mine = cosines[row]
            alike = [int(place) for place in np.flatnonzero(mine >= similarity) if place != start + row]
            for place in sorted(alike, key=lambda place: (-mine[place], place))[:_MOST]:
                yield Synonym(name, names[place], float(mine[place]))
