"""Registered parts: strings ``module:name`` in a registry, and options by the keyword-only arguments of what they name.

A part of the user needs no registry: ``module:name`` takes the place of a registered name.
"""

import importlib
import inspect
import reprlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from agentenv.core.registry import describe_error, is_class, load_own
from agentenv.errors import AgentEnvError, ConfigurationError, UnknownName, check_known

R = TypeVar("R")


def load_entry(entry: str) -> Any:
    """What ``module:name`` names: registries hold such strings, so that reading one imports none of its parts."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def load_part(
    kind: str, name: str, registry: Mapping[str, str], others: Mapping[str, str] | None = None
) -> Any:
    """The part that a registry holds under ``name``, or that ``module:name`` names; raises as `own_part`."""
    return load_entry(registry[name]) if name in registry else own_part(kind, name, registry, others)


def own_part(kind: str, name: str, registered: Iterable[str], others: Mapping[str, str] | None = None) -> Any:
    """What ``module:name`` names in a module of the user, which is looked for in the current folder first.

    Args:
        kind: What it is, in words.
        name: ``module:name``.
        registered: The names that would have been known.
        others: Names of these in other libraries, for the error.

    Raises:
        UnknownName: it is neither one of those nor of that form; carries the nearest.
        ConfigurationError: the module cannot be imported, or has nothing of that name that could be called.
    """
    if not is_class(name):
        raise UnknownName.among(kind, name, registered, others)
    found = load_own(name, kind, called=True)
    if not callable(found):
        raise ConfigurationError(f"the {kind} {name!r} is {reprlib.repr(found)}, which cannot be called")
    return found


def made_part(kind: str, name: str, make: Callable[[], R], methods: Sequence[str]) -> R:
    """The object that a part makes, with the methods that such a part must have.

    Args:
        kind: What is registered, in words.
        name: Under which name.
        make: Makes it.
        methods: Attributes that it must have.

    Raises:
        ConfigurationError: it cannot be made without further arguments, or lacks a method.
    """
    try:
        made = make()
    except AgentEnvError:
        raise
    except Exception as error:
        raise ConfigurationError(f"the {kind} {name!r} cannot be made: {describe_error(error)}") from error
    missing = [method for method in methods if not hasattr(made, method)]
    if missing:
        raise ConfigurationError(
            f"the {kind} {name!r} makes a {type(made).__name__} without {', '.join(missing)}, which such a part must have"
        )
    return made


@contextmanager
def naming_own_parts(names: Iterable[str]) -> Iterator[None]:
    """Within the block an error of a part of the user names the part and the place in it where the error was raised.

    Args:
        names: The parts, as ``module:name``.

    Raises:
        ConfigurationError: one of them raised what is no error of this package.
    """
    try:
        yield
    except (AgentEnvError, OSError):
        raise
    except Exception as error:
        files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
        homes = {name: getattr(sys.modules.get(name.partition(":")[0]), "__file__", None) for name in names}
        if part := next((name for name, file in homes.items() if file in files), ""):
            raise ConfigurationError(f"{part} failed: {describe_error(error)}") from error
        raise


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
        check_known(f"option of the {kind} {name!r}:", key, known)
        try:
            values[key] = TypeAdapter(hints.get(key, Any)).validate_python(value)
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
