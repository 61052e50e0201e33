"""Distance and likeness of sequences and sets, by hand and as properties."""

import time
from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.core.scoring.likeness import dice, edit_distance, matching_share


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


@given(st.text("abc", max_size=25), st.text("abc", max_size=25))
def test_the_matching_share_is_that_of_difflib(one: str, other: str) -> None:
    assert matching_share(one, other) == SequenceMatcher(None, one, other, autojunk=False).ratio()


@given(st.text("abc", min_size=195, max_size=230), st.text("abcdefgh", min_size=195, max_size=230))
def test_the_matching_share_drops_frequent_items_as_difflib_does(one: str, other: str) -> None:
    other += "vwxyz"
    assert (
        matching_share(one + "wxz", other, autojunk=True) == SequenceMatcher(None, one + "wxz", other).ratio()
    )
    assert matching_share(other, other, autojunk=True) == SequenceMatcher(None, other, other).ratio()


def test_of_two_texts_that_would_take_too_long_the_equal_ends_count() -> None:
    """No pair may be looked at: of 5 + 4 characters the first two and the last one are equal, 2 * 3 / 9."""
    assert matching_share("abxyc", "abzc", work=0) == pytest.approx(6 / 9)
    assert matching_share("aaaa", "aaa", work=0) == pytest.approx(6 / 7)


@pytest.mark.parametrize(("one", "other"), [("aab", "abb"), ("a", "a"), ("ab", "cab")])
def test_no_two_texts_take_the_cube_of_their_length(one: str, other: str) -> None:
    """Of "aabaab..." and "abbabb..." the blocks of 2,000 characters took 25 s, and eight times that for twice as many."""
    started = time.process_time()
    assert 0 <= matching_share(one * 7000 + "x", other * 7000) < 1
    assert time.process_time() - started < 8
