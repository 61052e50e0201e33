"""Actions and observations: the earliest block, fences, texts cut in the middle."""

import pytest

from agentenv.core.grammar import earliest_block, shortened, unfenced


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<b>2</b><a>1</a>", ("b", "2", 8)),
        ("x <a> 1\n2 </a> y", ("a", "1\n2", 14)),
        ("<a>1<a>2</a>", ("a", "2", 12)),
        ("<a>1 < 2</a>", ("a", "1 < 2", 12)),
        ("<a>1<b>2</b>", ("b", "2", 12)),
        ("<a>1", None),
        ("<c>1</c>", None),
    ],
)
def test_the_complete_block_that_begins_first(text: str, found: tuple[str, str, int] | None) -> None:
    assert earliest_block(text, ("a", "b")) == found


def test_fences_are_taken_off() -> None:
    assert unfenced("```python\nx = 1\n```") == "x = 1"
    assert unfenced("x = '```'") == "x = '```'"


def test_long_output_keeps_head_and_tail() -> None:
    assert shortened("abcdefghij", 4) == "ab\n[6 characters left out]\nij"
    assert shortened("abcd", 4) == "abcd"
