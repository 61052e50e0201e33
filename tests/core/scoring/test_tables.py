"""Measures of QATCH between two result tables, against values worked out by hand."""

import pytest

from agentenv.core.scoring.tables import (
    Table,
    cell_f1,
    cell_precision,
    cell_recall,
    qatch,
    tuple_cardinality,
    tuple_constraint,
    tuple_order,
)

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


B: Table = [("a",), ("b",), ("b",), ("c",)]


@pytest.mark.parametrize(
    ("found", "wanted", "f1", "constraint", "order"),
    [
        (B, B, 1.0, 1.0, 1.0),
        ([(2, "b"), (1, "a")], A, 1.0, 1.0, 0.0),  # columns are free; the rows stand in reverse, so rho is -1
        ([("a",), ("b",), ("c",)], B, 1.0, 0.667, 1.0),  # b once in place of twice: 2 of 3
        ([("b",), ("b",), ("a",), ("c",)], B, 1.0, 1.0, 0.75),  # rho 1 - 6 (1 + 1) / (3 * 8) = .5
        # 2 of 3 cells both ways; a, b in reverse, x aside.
        ([("b",), ("x",), ("a",), ("a",)], B, 0.667, 0.0, 0.0),
        ([("a",)], B, 0.5, 0.333, 1.0),  # CP 1, CR 1/3 is .333: .666 / 1.333; one common row is in order
        ([("x",)], B, 0.0, 0.0, 0.0),
        ([], [], 1.0, 1.0, 1.0),
        ([], B, 0.0, 0.0, 0.0),
        (B, [], 0.0, 0.0, 0.0),
    ],
)
def test_further_measures_by_hand(
    found: Table, wanted: Table, f1: float, constraint: float, order: float
) -> None:
    assert cell_f1(found, wanted) == f1
    assert tuple_constraint(found, wanted) == constraint
    assert tuple_order(found, wanted) == order
