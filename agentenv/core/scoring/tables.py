"""Similarity of two result tables: the measures of QATCH that Think2SQL uses as rewards (arXiv:2504.15077).

A table is a sequence of rows, and a row is a sequence of cells (None, numbers, text or bytes). Cells are compared as sets,
regardless of their position and number, so the order of rows and columns does not matter. Only ``tuple_constraint`` counts
how often a row occurs, and only ``tuple_order`` depends on the position of rows. Two empty tables are equal; an empty one
and a non-empty one have nothing in common. All values are rounded to three digits, as in the publication.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

Table = Sequence[Sequence[Any]]
Measure = Callable[[Table, Table], float]
"""A function of the found table and the wanted table, with a value in [0, 1]."""

DIGITS = 10
"""Significant digits in which numbers are compared, because sums of floats depend on the order of rows."""
_PLACES = 3


def rounded(value: Any) -> Any:
    """Rounds a fractional number to ``DIGITS`` digits; 2.0 equals 2, and any other value is unchanged."""
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.{DIGITS}g}")


def _cells(table: Table) -> set[str]:
    # As text, because a query could return many numbers with the same hash, which makes a set slow. Nobody can choose hashes
    # of text.
    return {repr(rounded(cell)) for row in table for cell in row}


def _rows(table: Table) -> list[tuple[str, ...]]:
    """Returns the rows with sorted cells, so that the order of columns does not matter."""
    return [tuple(sorted(repr(rounded(cell)) for cell in row)) for row in table]


def _share(part: int, whole: int, found: Table, wanted: Table) -> float:
    if not found and not wanted:
        return 1.0
    return round(part / whole, _PLACES) if found and wanted and whole else 0.0


def cell_precision(found: Table, wanted: Table) -> float:
    """CP = |cells found and wanted| / |cells found|."""
    ours, theirs = _cells(found), _cells(wanted)
    return _share(len(ours & theirs), len(ours), found, wanted)


def cell_recall(found: Table, wanted: Table) -> float:
    """CR = |cells found and wanted| / |cells wanted|."""
    ours, theirs = _cells(found), _cells(wanted)
    return _share(len(ours & theirs), len(theirs), found, wanted)


def tuple_cardinality(found: Table, wanted: Table) -> float:
    """TC = min(n, m) / max(n, m), where n and m are the numbers of rows."""
    return _share(min(len(found), len(wanted)), max(len(found), len(wanted)), found, wanted)


def cell_f1(found: Table, wanted: Table) -> float:
    """2 CP CR / (CP + CR)."""
    precision, recall = cell_precision(found, wanted), cell_recall(found, wanted)
    return round(2 * precision * recall / (precision + recall), _PLACES) if precision + recall else 0.0


def tuple_constraint(found: Table, wanted: Table) -> float:
    """The share of the distinct wanted rows that occur equally often in both tables."""
    ours, theirs = Counter(_rows(found)), Counter(_rows(wanted))
    alike = sum(ours[row] == count for row, count in theirs.items())
    return _share(alike, len(theirs), found, wanted)


def tuple_order(found: Table, wanted: Table) -> float:
    """(rho + 1) / 2, where rho is Spearman's correlation between the positions of the rows that are in both tables.

    A row's position is that of its first occurrence. A single common row counts as ordered; no common row gives 0.
    """
    if not found and not wanted:
        return 1.0
    ours, theirs = dict.fromkeys(_rows(found)), dict.fromkeys(_rows(wanted))
    places = {row: place for place, row in enumerate(row for row in theirs if row in ours)}
    if not places:
        return 0.0
    common = [places[row] for row in ours if row in places]
    away = sum((place - other) ** 2 for place, other in enumerate(common))
    rho = 1 - 6 * away / (len(common) * (len(common) ** 2 - 1)) if len(common) > 1 else 1.0
    return round((rho + 1) / 2, _PLACES)


def qatch(found: Table, wanted: Table) -> float:
    """(CP + CR + TC) / 3."""
    measures: tuple[Measure, ...] = (cell_precision, cell_recall, tuple_cardinality)
    return round(sum(measure(found, wanted) for measure in measures) / len(measures), _PLACES)
