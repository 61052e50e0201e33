"""Options of registered parts: what a part takes, values that come as text, and what is refused."""

from typing import Any, Literal

import pytest

from agentenv.core.options import bind_options, load_entry, option_names
from agentenv.errors import ConfigurationError, UnknownName


def part(
    tasks: list[int], *, share: float = 0.5, kind: Literal["a", "b"] = "a", most: int | None = None
) -> Any:
    """Returns what it was called with."""
    return tasks, share, kind, most


def test_options_are_the_arguments_that_are_taken_by_name_alone() -> None:
    assert option_names(part) == ["share", "kind", "most"]


def test_values_are_read_as_the_types_that_are_declared() -> None:
    bound = bind_options("part", "mine", part, {"share": "0.25", "kind": "b", "most": 3})
    assert bound([1]) == ([1], 0.25, "b", 3)
    assert bind_options("part", "mine", part, {}) is part


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"shar": 1}, UnknownName, "part 'mine'.*'shar'.*'share'"),
        ({"tasks": []}, UnknownName, "'tasks'"),
        ({"share": "much"}, ConfigurationError, "'share' of the part 'mine': .*number.*'much'"),
        ({"kind": "c"}, ConfigurationError, "'kind'.*'c'"),
        ({"share": "nan"}, ConfigurationError, "'share' of the part 'mine'.*'nan'"),
        ({"share": float("-inf")}, ConfigurationError, "'share'.*-inf"),
    ],
)
def test_what_does_not_fit_is_named(options: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        bind_options("part", "mine", part, options)


def test_an_entry_is_loaded_by_module_and_name() -> None:
    assert load_entry("agentenv.core.options:option_names") is option_names
