"""Actions and observations: the earliest block, JSON, fences, texts cut in the middle."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.core.grammar import (
    MAX_NESTED,
    between,
    earliest_block,
    encodable,
    read_json,
    shortened,
    unfenced,
    without_half_escapes,
)


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<a>1</a>x<a>2</a>", ["1", "2"]),
        ("<a>1<a>2</a></a>", ["1<a>2"]),
        ("</a><a></a><a>", [""]),
        ("<a>" * 3, []),
        ("", []),
    ],
)
def test_what_stands_between_two_tags(text: str, found: list[str]) -> None:
    assert between(text, "<a>", "</a>") == found


def test_pairs_are_found_in_a_time_that_grows_with_the_text_alone() -> None:
    """An expression would try every end for every beginning: here 10**11 steps."""
    assert between("<a>" * 300_000, "<a>", "</a>") == []
    assert len(between("<a></a>" * 100_000 + "<a>" * 100_000, "<a>", "</a>")) == 100_000


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(documents)
def test_json_that_a_policy_writes_is_read_as_it_is(document: Any) -> None:
    assert read_json(json.dumps(document)) == document
    assert read_json(json.dumps(document, ensure_ascii=False)) == document


def nested(levels: int, opening: str = "[", closing: str = "]", inner: str = "") -> str:
    return opening * levels + inner + closing * levels


REFUSED = {
    "no JSON": "{",
    "nothing": "",
    "NaN": "NaN",
    "NaN in a list": "[NaN]",
    "infinity": "[-Infinity]",
    "an overflow": '{"a": 1e999}',
    "a negative overflow": "-1e400",
    "9,000 digits": "9" * 9000,
    "half a pair": '"\\ud800"',
    "half a pair in a name": '{"a": {"\\udfff": 1}}',
    "half a pair in a list": '[["\\ud83d"]]',
    "a level too many": nested(MAX_NESTED + 1),
    "a level too many of objects": nested(MAX_NESTED, '{"a":', "}", "[]"),
    "900 levels": nested(900),
    "1,200 levels": nested(1200),
    "1,200 openings": "[" * 1200,
    "1,200 objects": nested(1200, '{"a":', "}", "1"),
    "a million openings": "[" * 1_000_000,
}


@pytest.mark.parametrize("case", REFUSED)
def test_json_that_would_fail_later_is_refused_now(case: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(REFUSED[case])


def test_json_at_the_bounds_is_read() -> None:
    assert read_json(nested(MAX_NESTED)) is not None
    assert read_json('"\\ud83d\\ude00\\u0000"') == "😀\0"
    assert math.isfinite(read_json("1.7976931348623157e308"))
    assert read_json("9" * 4000) == int("9" * 4000)
    assert len(read_json("[" + "0," * 300_000 + "0]")) == 300_001


def test_a_number_beyond_all_others_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="1e999"):
        read_json('{"a": [1e999]}')
    assert read_json("[1e308]") == [1e308]


def test_escapes_of_half_a_pair_are_replaced_and_those_of_a_pair_are_its_character() -> None:
    assert without_half_escapes("a \\ud83d\\ude00 \\uD83D b \\U0000dc00") == "a 😀 \\ufffd b \\ufffd"
    assert without_half_escapes("\\U0000d83d\\U0000de00 \\u0041 \\n") == "😀 \\u0041 \\n"
    assert without_half_escapes("plain ud83d") == "plain ud83d"


def test_lone_surrogates_are_written_as_escapes() -> None:
    assert encodable("a\ud800é") == "a\\ud800é"
    assert encodable("plain") == "plain"


def test_odd_rooms_leave_the_head_the_larger_part() -> None:
    assert shortened("abcdefgh", 3) == "ab\n[5 characters left out]\nh"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\n```\nx\n ``` \n", "x"),
        ("```", "```"),
        ("```\nx", "```\nx"),
        ("x\n```", "x\n```"),
        ("```\n```", ""),
    ],
)
def test_a_fence_has_a_beginning_and_an_end(text: str, plain: str) -> None:
    assert unfenced(text) == plain


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[NaN]", "NaN"),
        ("-Infinity", "-Infinity"),
        ("1e999", "1e999"),
        ("[" * 65 + "]" * 65, r"\b64\b"),
        ("[" * 100_000, r"\b64\b"),
        ('["\\ud83d"]', "surrogate"),
    ],
)
def test_what_a_policy_is_told_of_its_json_names_what_is_wrong(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_json(text)
