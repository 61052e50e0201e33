"""How much of one result table is in another: the measures of QATCH that Think2SQL rewards (arXiv:2504.15077).

A table is a sequence of rows, each a sequence of cells (None, numbers, text or bytes). Cells are compared as sets, wherever
they stand, so the order of columns and rows is free, and so is how often a cell occurs. ``tuple_constraint`` alone counts
how often a row occurs, and ``tuple_order`` alone looks at where it stands. Two empty tables agree; an empty one and another
do not. Every measure is rounded to three digits, as published.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

Table = Sequence[Sequence[Any]]
Measure = Callable[[Table, Table], float]
"""From the table that was found and the one that is wanted to a value in [0, 1]."""

DIGITS = 10
"""Significant digits in which two numbers must agree: sums of floats depend on the order of rows."""
_PLACES = 3


def rounded(value: Any) -> Any:
    """A number in ``DIGITS`` digits where it has a fraction; 2.0 and 2 are one number, and everything else is as it is."""
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.{DIGITS}g}")


def _cells(table: Table) -> set[str]:
    # As text, whose hashes nobody can choose: of numbers a query could give as many of one hash as it likes.
    return {repr(rounded(cell)) for row in table for cell in row}


def _rows(table: Table) -> list[tuple[str, ...]]:
    """The rows with their cells sorted, so that the order of columns is free."""
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
    """TC = min(n, m) / max(n, m), n and m the numbers of rows."""
    return _share(min(len(found), len(wanted)), max(len(found), len(wanted)), found, wanted)


def cell_f1(found: Table, wanted: Table) -> float:
    """2 CP CR / (CP + CR)."""
    precision, recall = cell_precision(found, wanted), cell_recall(found, wanted)
    return round(2 * precision * recall / (precision + recall), _PLACES) if precision + recall else 0.0


def tuple_constraint(found: Table, wanted: Table) -> float:
    """The share of the different wanted rows that stand in both tables equally often."""
    ours, theirs = Counter(_rows(found)), Counter(_rows(wanted))
    alike = sum(ours[row] == count for row, count in theirs.items())
    return _share(alike, len(theirs), found, wanted)


def tuple_order(found: Table, wanted: Table) -> float:
    """(rho + 1) / 2, rho Spearman's correlation between the places of the rows that stand in both tables.

    A row counts where it stands first. One common row is in order; none is worth 0.
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
