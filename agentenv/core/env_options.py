"""Checks what an environment is given by name and type: arguments of its constructor, and options of ``reset``."""

import inspect
import pickle
import reprlib
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from agentenv.core.types import Task
from agentenv.errors import ConfigurationError, UnknownName


def parameters_of(cls: type) -> Iterator[tuple[type, inspect.Parameter]]:
    """Yields the parameters of a constructor, and those of base classes to which it passes its ``**kwargs``."""
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        found = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        yield from ((base, parameter) for parameter in found)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in found):
            return


def checked_arguments(cls: type, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Converts ``given`` to the types that the constructor of ``cls`` declares; values without such a type are unchanged.

    Args:
        cls: The class of the environment.
        name: The name of the environment, for errors.
        given: Arguments by name. Numbers may be given as text.

    Raises:
        UnknownName: there is no such argument; the error carries the nearest name.
        ConfigurationError: a value has the wrong type.
    """
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found: dict[str, tuple[type, inspect.Parameter]] = {}
    opens = False  # whether ``**kwargs`` are passed to an unknown function
    for base, parameter in parameters_of(cls):
        if parameter.kind in kinds:
            found.setdefault(parameter.name, (base, parameter))
        opens = parameter.kind is parameter.VAR_KEYWORD or (opens and parameter.kind not in kinds)
    values = dict(given)
    for key, value in given.items():
        if key in found:
            values[key] = _checked(value, _hint(*found[key]), f"option {key!r} of {name}")
        elif not opens:
            raise UnknownName.among(f"option of {name}:", key, found)
    return values


def check_reset_options(name: str, known: Mapping[str, Any], given: Mapping[str, Any] | None) -> None:
    """Checks the options given to ``reset`` of the environment ``name``: a task, and the options in ``known``.

    Raises:
        UnknownName: there is no such option; the error carries the nearest name.
        ConfigurationError: a value has the wrong type.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError(
            f"the options of reset() of {name} must be a dict, not {reprlib.repr(given)}"
        )
    for key, value in (given or {}).items():
        if key == "task":
            if value is not None and not isinstance(value, Task):
                raise ConfigurationError(
                    f"option 'task' of reset() of {name} must be a Task, not {reprlib.repr(value)}"
                )
        elif key in known:
            _checked(value, known[key], f"option {key!r} of reset() of {name}")
        else:
            raise UnknownName.among(f"option of reset() of {name}:", str(key), ["task", *known])


def check_declarations(cls: Any) -> None:
    """Checks that the class attributes of an environment that hold texts are tuples of texts.

    Raises:
        ConfigurationError: an attribute has another type, or ``scorers`` is empty.
    """
    for name in ("scorers", "stop", "call_markers"):
        value = getattr(cls, name)
        texts = isinstance(value, tuple | list) and all(isinstance(one, str) and one for one in value)
        if not texts or (name == "scorers" and not value):
            raise ConfigurationError(
                f"{cls.__name__}.{name} is {reprlib.repr(value)}; it must be a tuple of texts"
                + (", at least one" if name == "scorers" else "")
            )


_CALLS: Mapping[str, tuple[tuple[Any, ...], Mapping[str, Any], str]] = {
    "step": (("action",), {}, "def step(self, action)"),
    "astep": (("action",), {}, "async def astep(self, action)"),
    "reset": ((), {"seed": None, "options": None}, "def reset(self, *, seed=None, options=None)"),
    "areset": ((), {"seed": None, "options": None}, "async def areset(self, *, seed=None, options=None)"),
}
"""For each method, the arguments with which it will be called, and the signature to show in errors."""


def check_signatures(cls: Any) -> None:
    """Checks that ``step``, ``reset`` and ``make_tasks`` of an environment's class accept the arguments they will get.

    Raises:
        ConfigurationError: a method does not accept them.
    """
    for name, (positional, named, written) in _CALLS.items():
        try:
            signature = inspect.signature(getattr(cls, name))
        except (TypeError, ValueError):  # the object has no signature
            continue
        try:
            signature.bind(None, *positional, **named)
        except TypeError as error:
            raise ConfigurationError(
                f"{cls.__name__}.{name}{signature} cannot be called in an episode ({error}): write `{written}`"
            ) from error
    signature = inspect.signature(cls.make_tasks)
    try:
        signature.bind(1, seed=0, split="train")
    except TypeError as error:
        raise ConfigurationError(
            f"{cls.__name__}.make_tasks{signature} cannot be called on the class ({error}): write `@classmethod` above "
            '`def make_tasks(cls, n, *, seed=0, split="train")`, and give each further argument a default'
        ) from error


def picklable(owner: object) -> dict[str, Any]:
    """Returns the attributes of ``owner`` to pickle.

    Raises:
        PicklingError: an attribute cannot be pickled; the message names it.
    """
    state = dict(vars(owner))
    for name, value in state.items():
        try:
            pickle.dumps(value)
        except Exception as error:
            raise pickle.PicklingError(
                f"{type(owner).__name__} cannot be pickled: its {name} ({type(value).__name__}) holds what belongs to this "
                f"process ({error}); make a new one from the same arguments where it is needed"
            ) from error
    return state


def _hint(cls: type, parameter: inspect.Parameter) -> Any:
    """Returns the type of a parameter; ``Any`` if it has none that can be resolved."""
    try:
        return typing.get_type_hints(vars(cls)["__init__"]).get(parameter.name, Any)
    except (NameError, TypeError, AttributeError):
        return Any


def _checked(value: Any, hint: Any, what: str) -> Any:
    import pydantic
    from pydantic_core import SchemaError

    try:
        adapter = pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
    except SchemaError:  # for example a protocol that is not runtime-checkable
        return value
    except pydantic.PydanticUserError:
        adapter = _plain_adapter(hint)
    try:
        return value if adapter is None else adapter.validate_python(value)
    except pydantic.ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigurationError(f"{what}: {reason}; got {reprlib.repr(value)}") from error
    except TypeError:  # a protocol that is not runtime-checkable
        return value


def _plain_adapter(hint: Any) -> Any:
    """Returns the pydantic adapter of a type without its own settings; None if pydantic does not support the type."""
    import pydantic

    try:
        return pydantic.TypeAdapter(hint)
    except (pydantic.PydanticUserError, TypeError):
        return None
