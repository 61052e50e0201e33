"""Similarity of two sequences or sets of any items: words, characters or tokens."""

import itertools
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from difflib import SequenceMatcher
from typing import Any

MATCHING_WORK = 16_000_000
"""Limit on the items and pairs of equal items that `matching_share` compares, which take a few seconds at most."""


def edit_distance(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns the smallest number of insertions, deletions and substitutions between both (Levenshtein 1966)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        before = row
        row = [i]
        for j, b in enumerate(other):
            row.append(min(before[j] + (a != b), before[j + 1] + 1, row[j] + 1))
    return row[-1]


def matching_share(
    one: Sequence[Any], other: Sequence[Any], *, work: int = MATCHING_WORK, autojunk: bool = False
) -> float:
    """Returns 2M / (|one| + |other|), M the items in matching blocks (Ratcliff-Obershelp, as ``difflib``); 1 if equal.

    Every item counts, however frequent it is, unless ``autojunk`` selects difflib's rule, which ignores items that make up
    more than 1 % of a sequence of 200 or more. The search for matching blocks takes cubic time in the worst case
    ("aabaab..." and "abbabb..."), which a policy could use to delay everyone who waits for this comparison. It therefore
    stops after ``work`` items and pairs of equal items; in the remaining parts, only equal beginnings and ends count.
    """
    if one == other and not autojunk:
        return 1.0
    matcher = SequenceMatcher(None, one, other, autojunk)
    counts = Counter(other)
    if autojunk and len(other) >= 200:
        counts = Counter({item: count for item, count in counts.items() if count <= len(other) // 100 + 1})
    # cumulative work up to each index of ``one``
    steps = [0, *itertools.accumulate(1 + counts[item] for item in one)]
    matched, ranges = 0, [(0, len(one), 0, len(other))]
    while ranges:
        start, end, start_2, end_2 = ranges.pop()
        work -= steps[end] - steps[start]
        if work < 0:
            matched += _equal_ends(one[start:end], other[start_2:end_2])
            continue
        i, j, size = matcher.find_longest_match(start, end, start_2, end_2)
        if size:
            matched += size
            beside = ((start, i, start_2, j), (i + size, end, j + size, end_2))
            ranges += [part for part in beside if part[0] < part[1] and part[2] < part[3]]
    return 2 * matched / (len(one) + len(other)) if one or other else 1.0


def _equal_ends(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Counts how many items at the beginning and at the end of both sequences are equal."""
    most = min(len(one), len(other))
    begin = next((k for k in range(most) if one[k] != other[k]), most)
    end = next((k for k in range(most - begin) if one[-1 - k] != other[-1 - k]), most - begin)
    return begin + end


def dice(one: AbstractSet[Any], other: AbstractSet[Any]) -> float:
    """Returns 2 |A and B| / (|A| + |B|), the F1 of two sets (Dice 1945); 0 if they share nothing or both are empty."""
    common = len(one & other)
    return 2 * common / (len(one) + len(other)) if common else 0.0
