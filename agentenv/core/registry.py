"""The registry of environments. Entries are import strings, and each id ends with a version.

Other packages need one entry in their ``pyproject.toml``::

    [project.entry-points."agentenv.envs"]
    "acme/Maze-v0" = "acme.maze:Maze"

Every entry is also added to Gymnasium's registry, so ``gymnasium.make`` knows it after ``import agentenv``. It has no
``max_episode_steps`` and no wrappers: ``gymnasium.make`` returns the environment itself.

Two further forms may be used in place of an id: ``module:Class``, for which the current folder is searched first, and
``remote:URL`` for an environment behind ``agentenv serve``.
"""

import contextlib
import importlib
import importlib.metadata
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from agentenv.core.env import Env
from agentenv.core.error_places import place_of
from agentenv.core.types import StateCapability
from agentenv.errors import ConfigurationError, MissingExtra, UnknownName

if TYPE_CHECKING:
    from agentenv.core.vector import VectorEnv

ENTRY_POINT_GROUP = "agentenv.envs"
_REMOTE = "remote:"
_ENTRY_POINT = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True)
class EnvSpec:
    """One registered environment."""

    id: str
    """``namespace/Name-vN``."""
    entry_point: str
    """``module:Class``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Default arguments of the class."""
    extra: str = ""
    """The extra that installs what the module needs; empty if it needs none."""


_specs: dict[str, EnvSpec] = {}


def register(
    id: str, entry_point: str | type[Env[Any]], *, kwargs: Mapping[str, Any] | None = None, extra: str = ""
) -> None:
    """Registers an environment here and in Gymnasium. A second identical registration does nothing.

    Args:
        id: ``namespace/Name-vN``. Increase the version whenever results change.
        entry_point: ``module:Class``, imported when the environment is made, or the class itself.
        kwargs: Default arguments of the class.
        extra: The extra of agentenv-suite that installs what the module needs.

    Raises:
        ConfigurationError: the id or the entry point is malformed, or the id is registered for something else.
    """
    if not re.fullmatch(r"[\w-]+/[\w.-]+-v\d+", id):
        raise ConfigurationError(f"{id!r} is no environment id; write namespace/Name-v0")
    if not isinstance(entry_point, str):
        entry_point = name_of_class(entry_point)
    if not _ENTRY_POINT.fullmatch(entry_point):
        raise ConfigurationError(f"{entry_point!r} is no entry point; write module:Class")
    spec = EnvSpec(id, entry_point, dict(kwargs or {}), extra)
    if _specs.get(id, spec) != spec:
        raise ConfigurationError(f"{id} is {_specs[id].entry_point} already; register a new version")
    if id in _specs:
        return
    _specs[id] = spec
    gymnasium.register(
        id,
        entry_point,
        kwargs=dict(spec.kwargs),
        order_enforce=False,
        disable_env_checker=True,
        vector_entry_point=partial(make_vec, id),
    )


def name_of_class(cls: type[Env[Any]]) -> str:
    """Returns ``module:Class`` of an environment's class.

    Raises:
        ConfigurationError: it is not an environment, or cannot be imported by its name.
    """
    if not (isinstance(cls, type) and issubclass(cls, Env)):
        raise ConfigurationError(
            f"{cls!r} is no subclass of agentenv.Env; give one, or the id of an environment"
        )
    name = f"{cls.__module__}:{cls.__qualname__}"
    if "." in cls.__qualname__:
        raise ConfigurationError(
            f"{name} cannot be found by its name: define the class at the top level of its module"
        )
    return name


def discover() -> None:
    """Registers the entry points of the group ``agentenv.envs``; warns about those that cannot be registered."""
    for found in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            register(found.name, found.value)
        except ConfigurationError as error:
            warnings.warn(f"an installed environment is left out: {error}", stacklevel=2)


def registered() -> dict[str, EnvSpec]:
    """Returns every registered environment by id, sorted."""
    return dict(sorted(_specs.items()))


def spec(id: str) -> EnvSpec:
    """Returns the registry entry of ``id``; for ``module:Class`` it makes one.

    Raises:
        UnknownName: there is no such environment; the message shows the nearest name.
    """
    if is_class(id):
        return EnvSpec(id, id)
    if id not in _specs:
        name = id.removesuffix(".py")
        if name.isidentifier() and Path(f"{name}.py").is_file():
            raise ConfigurationError(
                f"{id!r} is a module of this folder: name its class as well, as in {name}:Class"
            )
        raise UnknownName.among("environment", id, _specs)
    return _specs[id]


def is_class(id: str) -> bool:
    """Whether ``id`` has the form ``module:name``, which names a class or another part, instead of a registered id."""
    return _ENTRY_POINT.fullmatch(id) is not None and not is_remote(id)


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    """Within the block, modules are imported from the current folder first. Afterwards that folder is searched last.

    It stays on the path because a module may import its neighbours later, inside a function.
    """
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)


def load_class(entry_point: str, extra: str = "") -> type[Env[Any]]:
    """Imports the environment class that ``module:Class`` names.

    Raises:
        MissingExtra: the module needs ``extra``, which is not installed.
        ConfigurationError: there is no such module or class, or the class is not derived from ``Env``.
    """
    found = import_named(entry_point, "class", extra, called=True)
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise ConfigurationError(f"{entry_point} is no subclass of agentenv.Env")
    return found


def import_named(entry_point: str, kind: str, extra: str = "", *, called: bool = False) -> Any:
    """Imports what ``module:name`` names.

    Args:
        entry_point: ``module:name``.
        kind: The kind of object, for errors.
        extra: The extra of agentenv-suite that installs what the module needs.
        called: Whether the object will be called. Errors then suggest no mappings.

    Raises:
        MissingExtra: the module needs ``extra``, which is not installed.
        ConfigurationError: the module does not exist or cannot be imported, or has no such name; shows the nearest one.
    """
    module, _, name = entry_point.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if extra and not str(error.name).startswith("agentenv"):
            raise MissingExtra.of(str(error.name), extra) from error
        own = error.name == module.partition(".")[0]
        where = f"; run the command in the folder that holds {error.name}, or install it" if own else ""
        raise ConfigurationError(f"cannot import {entry_point}: {error}{where}") from error
    except AttributeError as error:
        if module in sys.modules:
            complaint = UnknownName.among(kind, entry_point, _defined_in(module, mappings=not called))
            raise ConfigurationError(str(complaint)) from error
        raise ConfigurationError(f"importing {module} failed: {describe_error(error)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"importing {module} failed: {describe_error(error)}") from error


def load_own(entry_point: str, kind: str, *, called: bool = False) -> Any:
    """Imports what ``module:name`` names, like `import_named`, but searches the current folder first."""
    with _current_folder_first():
        return import_named(entry_point, kind, called=called)


def _defined_in(module: str, *, mappings: bool) -> list[str]:
    """Lists the classes, functions and other callables that a module defines, as ``module:name``; mappings on request."""
    found = vars(sys.modules[module])
    return [
        f"{module}:{name}"
        for name, value in found.items()
        if (callable(value) or (mappings and isinstance(value, Mapping) and not name.startswith("__")))
        and (getattr(value, "__module__", None) == module or not hasattr(value, "__qualname__"))
    ]


def describe_error(error: BaseException) -> str:
    """Describes ``error`` in one line: its type, its message, and the place in its author's code where it was raised."""
    place = place_of(error)
    # Gymnasium appends all arguments to its message, which are removed here.
    said = str(error).partition(" was raised from the environment creator")[0]
    return f"{type(error).__name__}: {' '.join(said.split())[:500]}{f' ({place})' if place else ''}"


def env_class(id: str) -> type[Env[Any]]:
    """Returns the class of an environment given by a registered id, ``module:Class`` or ``remote:URL``.

    Raises:
        UnknownName: there is no such environment; the message shows the nearest name.
        MissingExtra: an optional dependency is not installed; the message names the extra.
        ConfigurationError: there is no such module, class or server.
    """
    if is_remote(id):
        served: type[Env[Any]] = importlib.import_module("agentenv.serving.remote").remote_class(
            id.removeprefix(_REMOTE)
        )
        return served
    entry = spec(id)
    with _current_folder_first() if is_class(id) else contextlib.nullcontext():
        return load_class(entry.entry_point, entry.extra)


def is_remote(id: str) -> bool:
    """Whether ``id`` names an environment by its address."""
    return id.startswith(_REMOTE)


def make(id: str | type[Env[Any]], **kwargs: Any) -> Env[Any]:
    """Makes a new environment.

    Args:
        id: A registered id such as ``agentenv/LocalSearch-v0``, ``module:Class`` or a class if it is not registered, or
            ``remote:URL`` for one behind ``agentenv serve``.
        **kwargs: Arguments of the class, which override those of the registry entry.

    Raises:
        UnknownName: there is no such environment; the message shows the nearest name.
        MissingExtra: an optional dependency is not installed; the message names the extra.
        ConfigurationError: there is no such module, class or server.
    """
    if not isinstance(id, str):
        name_of_class(id)
        return id(**kwargs)
    if is_remote(id):
        return load_class("agentenv.serving.remote:RemoteEnv")(url=id.removeprefix(_REMOTE), **kwargs)  # type: ignore[call-arg]
    cls = env_class(id)
    if is_class(id):
        return cls(**kwargs)
    env: Any = gymnasium.make(id, **kwargs)
    made: Env[Any] = env.unwrapped
    return made


def make_vec(id: str | type[Env[Any]], num_envs: int, **kwargs: Any) -> "VectorEnv":
    """Makes ``num_envs`` environments that step concurrently. What is shared or immutable in them is loaded once.

    Args:
        id: For example ``agentenv/LocalSearch-v0``.
        num_envs: Number of environments, at least 1.
        **kwargs: Arguments of the class.

    Raises:
        ConfigurationError: ``num_envs`` is below 1, or one of the reasons of ``make``.
    """
    from agentenv.core.vector import VectorEnv

    if num_envs < 1:
        raise ConfigurationError(f"num_envs={num_envs} must be at least 1")
    first = make(id, **kwargs)
    if first.capability >= StateCapability.MEMORY:
        return VectorEnv([first, *first.fork(num_envs - 1)])
    return VectorEnv([first, *(make(id, **kwargs) for _ in range(num_envs - 1))])
