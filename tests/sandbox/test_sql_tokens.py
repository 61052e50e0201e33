"""Tokens of a query: spelling does not matter, what is asked does."""

import pytest

from agentenv.sandbox.sql_tokens import tokens


def test_tokens_by_hand() -> None:
    query = "Select \"Name\", c.[size]  -- note\nFROM city AS c WHERE x<>'It''s' /* a ; */ AND y >= .5;;"
    words = "select name , c . size from city as c where x <> 'It''s' and y >= .5"
    assert tokens(query) == tuple(words.split())


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("SELECT 1;", "select  1", True),
        ("SELECT 'a'", "SELECT 'A'", False),
        ("SELECT ab", "SELECT a b", False),
        ("SELECT 1 -- 2", "SELECT 1", True),
        ("", ";", True),
    ],
)
def test_two_spellings_of_a_query_have_equal_tokens(left: str, right: str, same: bool) -> None:
    assert (tokens(left) == tokens(right)) is same


def test_brackets_that_are_never_closed_are_read_once() -> None:
    assert tokens("select [a; [b") == ("select", "a; [")
    assert len(tokens("[" * 100_000)) == 1
