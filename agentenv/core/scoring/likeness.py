"""How near two sequences or two sets are, whatever they consist of: words, characters, tokens."""

import itertools
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from difflib import SequenceMatcher
from typing import Any

MATCHING_WORK = 16_000_000
"""Items and pairs of equal items that `matching_share` looks at, which takes some seconds at most."""


def edit_distance(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Fewest insertions, deletions and substitutions that make ``one`` into ``other`` (Levenshtein 1966)."""
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
    """2M / (|one| + |other|), M the items in matching blocks (Ratcliff and Obershelp, as in ``difflib``); 1 for equal ones.

    Every item counts, however frequent it is, unless ``autojunk`` asks for difflib's rule, which drops those that make up
    more than 1 % of 200 or more. The search for blocks takes the cube of the length in the worst case
    ("aabaab..." and "abbabb..."), by which a policy could hold up everybody who waits for this comparison. It therefore
    ends after a look at ``work`` items and pairs of equal ones, and of the parts that are left only equal ends count.
    """
    if one == other and not autojunk:
        return 1.0
    matcher = SequenceMatcher(None, one, other, autojunk)
    counts = Counter(other)
    if autojunk and len(other) >= 200:
        counts = Counter({item: count for item, count in counts.items() if count <= len(other) // 100 + 1})
    steps = [0, *itertools.accumulate(1 + counts[item] for item in one)]  # up to each place of ``one``
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
    """How many items at the beginning and at the end of both are equal."""
    most = min(len(one), len(other))
    begin = next((k for k in range(most) if one[k] != other[k]), most)
    end = next((k for k in range(most - begin) if one[-1 - k] != other[-1 - k]), most - begin)
    return begin + end


def dice(one: AbstractSet[Any], other: AbstractSet[Any]) -> float:
    """2 |A and B| / (|A| + |B|), the F1 of two sets (Dice 1945); 0 where they share nothing, both empty included."""
    common = len(one & other)
    return 2 * common / (len(one) + len(other)) if common else 0.0
