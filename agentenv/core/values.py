"""A value that was written as one word on a command line."""

import contextlib
import json
import tomllib
from typing import Any

_SWITCHES = {"true": True, "false": False}


def read_switch(word: str) -> bool | None:
    """Whether ``word`` says true or false, in letters of any size; None where it says neither."""
    return _SWITCHES.get(word.lower())


def read_value(word: str) -> Any:
    """The value of ``word``: true or false in letters of any size, TOML, JSON, or otherwise the word itself."""
    if (switch := read_switch(word)) is not None:
        return switch
    for read in (_toml, _json):
        with contextlib.suppress(ValueError, RecursionError):  # the errors of both parsers are ValueErrors
            return read(word)
    return word


def _toml(word: str) -> Any:
    return tomllib.loads(f"value = {word}")["value"]


def _json(word: str) -> Any:
    return json.loads(word, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
