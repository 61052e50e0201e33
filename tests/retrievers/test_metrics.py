"""Recall of supporting documents, by hand."""

import pytest

from agentenv.errors import ConfigurationError
from agentenv.retrievers.metrics import all_at_k, recall_at_k


def test_recall_is_the_mean_share_of_supporting_documents_in_the_first_k() -> None:
    ranked = [["a", "x", "b"], ["y", "c"], []]
    needed = [["a", "b"], {"c"}, ("d", "d")]
    assert recall_at_k(ranked, needed, 1) == pytest.approx((1 / 2 + 0 + 0) / 3)
    assert recall_at_k(ranked, needed, 2) == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert recall_at_k(ranked, needed, 3) == pytest.approx((1 + 1 + 0) / 3)


def test_recall_of_nothing_is_refused() -> None:
    for needed in ([], [["a"], []]):
        with pytest.raises(ConfigurationError):
            recall_at_k([["a"], ["b"]], needed, 3)


def test_all_counts_the_questions_that_got_everything() -> None:
    ranked = [["a", "x", "b"], ["y", "c"], []]
    needed = [["a", "b"], {"c"}, ("d", "d")]
    assert [all_at_k(ranked, needed, k) for k in (1, 2, 3)] == pytest.approx([0, 1 / 3, 2 / 3])
    with pytest.raises(ConfigurationError):
        all_at_k([["a"]], [[]], 3)
