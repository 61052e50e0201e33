"""Inputs of MBPP+ as its functions take them: JSON has lists where Python has tuples, sets and complex numbers.

EvalPlus (Liu et al. 2023, arXiv:2305.01210) turns them back by the number of the record, in its ``mbpp_deserialize_inputs``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Arguments = Sequence[Any]


def _items(value: Sequence[Any]) -> list[Any]:
    return [tuple(item) for item in value]


def _everywhere(value: Any) -> Any:
    return tuple(map(_everywhere, value)) if isinstance(value, list) else value


def _each(given: Arguments) -> Arguments:
    return [tuple(value) for value in given]


def _each_item(given: Arguments) -> Arguments:
    return [_items(value) for value in given]


def _each_and_its_items(given: Arguments) -> Arguments:
    return [tuple(_items(value)) for value in given]


def _first(given: Arguments) -> Arguments:
    return [tuple(given[0]), *given[1:]]


def _items_of_first(given: Arguments) -> Arguments:
    return [_items(given[0]), *given[1:]]


def _second(given: Arguments) -> Arguments:
    return [given[0], tuple(given[1])]


def _first_and_its_lists(given: Arguments) -> Arguments:
    return [tuple(tuple(item) if isinstance(item, list) else item for item in given[0])]


def _values_of_first(given: Arguments) -> Arguments:
    return [{key: tuple(value) for key, value in given[0].items()}, *given[1:]]


def _sets_and_dicts(given: Arguments) -> Arguments:
    return [[set(item) if isinstance(item, list) and item else {} for item in given[0]]]


def _float_and_complex(given: Arguments) -> Arguments:
    return [float(given[0]), complex(given[1])]


def _complex(given: Arguments) -> Arguments:
    return [complex(given[0])]


_ROWS: Mapping[str, Callable[[Arguments], Arguments]] = {
    "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809": _each,
    "63 64 70 94 120 237 272 299 400 409 417 438 473 614 780": _each_item,
    "259 401 445": _each_and_its_items,
    "250 307 405 446 617 720 763 808": _first,
    "75 413 444 753": _items_of_first,
    "106 750": _second,
    "278": _first_and_its_lists,
    "722": _values_of_first,
    "115": _sets_and_dicts,
    "124": _float_and_complex,
    "252": _complex,
    "580 615 791": lambda given: list(map(_everywhere, given)),
}
_OF_RECORD = {int(number): restore for numbers, restore in _ROWS.items() for number in numbers.split()}


def as_python_takes_them(number: int, arguments: Arguments) -> tuple[Any, ...]:
    """The arguments of one call of the record with this number of MBPP+.

    Raises:
        ValueError: they are not of the form that its inputs have.
    """
    try:
        return tuple(_OF_RECORD.get(number, tuple)(arguments))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(f"an input of it has another form: {str(arguments)[:80]}") from error
