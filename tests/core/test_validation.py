"""One sentence on what is wrong with an input: its place, what it must be, and what was given."""

from typing import Any

import pytest
from pydantic import ValidationError

from agentenv.core.validation import Frozen, sentence


class Inner(Frozen):
    """Counts."""

    size: int = 1
    name: str = ""


class Outer(Frozen):
    """Holds them."""

    inner: tuple[Inner, ...] = ()
    needed: int


class Floating(Frozen):
    """A number."""

    number: float


@pytest.mark.parametrize(
    ("given", "place", "shown"),
    [
        ({"needed": "x"}, "needed: ", ", not 'x'."),
        ({"inner": [{}, {"size": "many"}], "needed": 1}, "inner.1.size: ", ", not 'many'."),
        ({"needed": "y" * 70}, "needed: ", f", not '{'y' * 60}'."),
        ({"needed": 1, "more": 2}, "more: ", ", not '2'."),
        ([], "body: ", ", not '[]'."),
    ],
)
def test_the_first_mistake_is_told_with_its_place_and_value(given: Any, place: str, shown: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Outer.model_validate(given)
    said = sentence(refused.value)
    assert said.startswith(place)
    assert said.endswith(shown)
    assert refused.value.errors()[0]["msg"] in said


@pytest.mark.parametrize(("text", "place"), [("{}", "needed: "), ("{", "body: ")])
def test_what_is_missing_or_no_json_has_no_value_to_show(text: str, place: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Outer.model_validate_json(text)
    assert sentence(refused.value).startswith(place)
    assert ", not" not in sentence(refused.value)
    assert sentence(refused.value).endswith(".")


def test_a_configuration_is_frozen_and_its_numbers_are_finite() -> None:
    with pytest.raises(ValidationError):
        Inner().size = 2  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Floating(number=float("inf"))
