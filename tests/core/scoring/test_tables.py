"""Measures of QATCH between two result tables, against values worked out by hand."""

import pytest

from agentenv.core.scoring.tables import Table, cell_precision, cell_recall, qatch, tuple_cardinality

A: Table = [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("found", "wanted", "precision", "recall", "cardinality", "mean"),
    [
        (A, A, 1.0, 1.0, 1.0, 1.0),
        ([(2.0, "b"), (1, "a")], A, 1.0, 1.0, 1.0, 1.0),  # columns and rows in another order, 2.0 for 2
        ([("a", 1)], A, 1.0, 0.5, 0.5, 0.667),
        ([("a", 9), ("a", 9), ("a", 9)], A, 0.5, 0.25, 0.667, 0.472),  # cells {a, 9}; 2 rows of 3
        ([("1", None)], A, 0.0, 0.0, 0.5, 0.167),  # the text 1 is not the number 1
        ([], [], 1.0, 1.0, 1.0, 1.0),
        ([], A, 0.0, 0.0, 0.0, 0.0),
        (A, [], 0.0, 0.0, 0.0, 0.0),
        ([(1 / 3,)], [(0.33333333333,)], 1.0, 1.0, 1.0, 1.0),  # equal in ten digits
    ],
    ids=["equal", "order", "part", "doubled", "text", "both-empty", "nothing", "something", "digits"],
)
def test_values_by_hand(
    found: Table, wanted: Table, precision: float, recall: float, cardinality: float, mean: float
) -> None:
    assert cell_precision(found, wanted) == precision
    assert cell_recall(found, wanted) == recall
    assert tuple_cardinality(found, wanted) == cardinality
    assert qatch(found, wanted) == mean
