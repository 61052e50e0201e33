"""Distance and likeness of sequences and sets, by hand and as properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.core.scoring.likeness import dice, edit_distance


def test_edit_distances_of_characters_and_of_tokens() -> None:
    """Of 1 2 3 4 the 2 is deleted and a 9 added: two edits."""
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("", "abc") == 3
    assert edit_distance([1, 2, 3, 4], [1, 3, 4, 9]) == 2
    assert edit_distance([1, 2], [1, 3]) == 1
    assert edit_distance([1, 2, 3], [2, 3]) == 1


@given(st.text(max_size=8), st.text(max_size=8))
def test_edit_distance_is_a_metric(one: str, other: str) -> None:
    assert edit_distance(one, other) == edit_distance(other, one)
    assert (edit_distance(one, other) == 0) == (one == other)
    assert edit_distance(one, other) <= max(len(one), len(other))


def test_dice_is_the_f1_of_two_sets() -> None:
    """Two of three words are in both: 2 * 2 / (3 + 3)."""
    assert dice({"halvik", "lies", "in"}, {"halvik", "lies", "here"}) == pytest.approx(2 / 3)
    assert dice({"halvik"}, {"port"}) == dice(set(), set()) == 0.0
