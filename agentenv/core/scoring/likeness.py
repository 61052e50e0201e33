"""How near two sequences or two sets are, whatever they consist of: words, characters, tokens."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any


def edit_distance(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Fewest insertions, deletions and substitutions that make ``one`` into ``other`` (Levenshtein 1966)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        before = row
        row = [i]
        for j, b in enumerate(other):
            row.append(min(before[j] + (a != b), before[j + 1] + 1, row[j] + 1))
    return row[-1]


def dice(one: AbstractSet[Any], other: AbstractSet[Any]) -> float:
    """2 |A and B| / (|A| + |B|), the F1 of two sets (Dice 1945); 0 where they share nothing, both empty included."""
    common = len(one & other)
    return 2 * common / (len(one) + len(other)) if common else 0.0
