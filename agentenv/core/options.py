"""Registered parts: strings ``module:name`` in a registry, and options by the keyword-only arguments of what they name."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from agentenv.errors import ConfigurationError, UnknownName

R = TypeVar("R")


def load_entry(entry: str) -> Any:
    """What ``module:name`` names: registries hold such strings, so that reading one imports none of its parts."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def option_names(function: Callable[..., Any]) -> list[str]:
    """The options that ``function`` takes."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


def bind_options(
    kind: str, name: str, function: Callable[..., R], options: Mapping[str, Any]
) -> Callable[..., R]:
    """``function`` with ``options`` filled in.

    Args:
        kind: What is registered, in words.
        name: Under which name.
        function: Its keyword-only arguments are its options.
        options: Values by name; numbers may come as text.

    Raises:
        UnknownName: no such option; carries the nearest.
        ConfigurationError: a value of another type, or a number that is not finite.
    """
    if not options:
        return function
    known, hints = option_names(function), get_type_hints(function)
    values = {}
    for key, value in options.items():
        if key not in known:
            raise UnknownName.among(f"option of the {kind} {name!r}:", key, known)
        try:
            values[key] = TypeAdapter(hints[key]).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigurationError(
                f"option {key!r} of the {kind} {name!r}: {reason}; got {value!r}."
            ) from error
        if isinstance(values[key], float) and not isfinite(values[key]):
            raise ConfigurationError(
                f"option {key!r} of the {kind} {name!r} must be a finite number; got {value!r}."
            )
    return partial(function, **values)
