"""Covers values that are written as one word on a command line."""

import math
from typing import Any

import pytest

from agentenv.core.values import read_value


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *[(word, True) for word in ("true", "True", "TRUE")],
        *[(word, False) for word in ("false", "False", "FALSE")],
        ("3", 3),
        ("1e-4", 1e-4),
        ("[1, 2]", [1, 2]),
        ("'3'", "3"),
        ('{"a": 1}', {"a": 1}),
        ("null", None),
        ("three", "three"),
        ("hf:runs/x", "hf:runs/x"),
        ("", ""),
        ("NaN", "NaN"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_a_word_is_read_alike_everywhere(word: str, value: Any) -> None:
    found = read_value(word)
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_toml() -> None:
    assert math.isnan(read_value("nan"))
