"""Loads registered parts, given as strings ``module:name``, and binds their options to their keyword-only arguments.

Parts of the user need no registration: ``module:name`` may be used in place of a registered name.
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
    """Imports and returns what ``module:name`` names. Registries hold strings, so that reading one imports nothing."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def load_part(
    kind: str, name: str, registry: Mapping[str, str], others: Mapping[str, str] | None = None
) -> Any:
    """Returns the part registered under ``name``, or the user's part ``module:name``; raises like `own_part`."""
    return load_entry(registry[name]) if name in registry else own_part(kind, name, registry, others)


def own_part(kind: str, name: str, registered: Iterable[str], others: Mapping[str, str] | None = None) -> Any:
    """Returns what ``module:name`` names in a user's module. The current folder is searched first.

    Args:
        kind: The kind of part, for errors.
        name: The name, ``module:name``.
        registered: The registered names, for errors.
        others: Names that other libraries use for registered parts, for errors.

    Raises:
        UnknownName: it is neither a registered name nor of this form; the error carries the nearest name.
        ConfigurationError: the module cannot be imported, or has no callable of that name.
    """
    if not is_class(name):
        raise UnknownName.among(kind, name, registered, others)
    found = load_own(name, kind, called=True)
    if not callable(found):
        raise ConfigurationError(f"the {kind} {name!r} is {reprlib.repr(found)}, which cannot be called")
    return found


def made_part(kind: str, name: str, make: Callable[[], R], methods: Sequence[str]) -> R:
    """Calls ``make`` and checks that the object has the methods that such a part needs.

    Args:
        kind: The kind of part, for errors.
        name: The name of the part, for errors.
        make: Makes the object.
        methods: Attributes that the object must have.

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
    """Within the block, an error that a user's part raises is converted to one that names the part and the line of code.

    Args:
        names: The parts, as ``module:name``.

    Raises:
        ConfigurationError: a part raised an error that is not one of this package's.
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
    """Returns the names of the options of ``function``."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


def bind_options(
    kind: str, name: str, function: Callable[..., R], options: Mapping[str, Any]
) -> Callable[..., R]:
    """Returns ``function`` with ``options`` bound.

    Args:
        kind: The kind of part, for errors.
        name: The name of the part, for errors.
        function: A function whose keyword-only arguments are its options.
        options: Values by name. Numbers may be given as text.

    Raises:
        UnknownName: there is no such option; the error carries the nearest name.
        ConfigurationError: a value has the wrong type, or a number is not finite.
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
