"""Parses values that are written as one word on a command line."""

import contextlib
import json
import tomllib
from collections.abc import Sequence
from typing import Any

from agentenv.errors import ConfigurationError

_SWITCHES = {"true": True, "false": False}


def read_switch(word: str) -> bool | None:
    """Parses true or false in any case; None for any other word."""
    return _SWITCHES.get(word.lower())


def read_value(word: str) -> Any:
    """Parses ``word`` as true or false in any case, TOML or JSON; any other word is returned unchanged."""
    if (switch := read_switch(word)) is not None:
        return switch
    for read in (_toml, _json):
        with contextlib.suppress(ValueError, RecursionError):  # the errors of both parsers are ValueErrors
            return read(word)
    return word


def read_options(pairs: Sequence[str], flag: str = "--option") -> dict[str, Any]:
    """Parses ``KEY=VALUE`` pairs. ``flag`` is the command-line option that they were given by, for errors.

    Raises:
        ConfigurationError: a pair has no ``=``.
    """
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise ConfigurationError(f"{flag} {pair!r} must be KEY=VALUE")
        options[key] = read_value(value)
    return options


def _toml(word: str) -> Any:
    return tomllib.loads(f"value = {word}")["value"]


def _json(word: str) -> Any:
    return json.loads(word, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
