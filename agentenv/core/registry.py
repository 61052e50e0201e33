"""The registered environments: strings that are imported when an environment is made, with the version in the id.

Third parties need one line in their ``pyproject.toml``::

    [project.entry-points."agentenv.envs"]
    "acme/Maze-v0" = "acme.maze:Maze"

Every entry is mirrored into Gymnasium's registry, so ``gymnasium.make`` knows it after ``import agentenv``.
The mirror sets no ``max_episode_steps`` and adds no wrapper: what ``gymnasium.make`` returns is the
environment itself.

Two further forms work wherever an id does: ``module:Class``, whose module is looked for in the current folder first, and
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
    """The extra that installs what the module needs; empty where the core suffices."""


_specs: dict[str, EnvSpec] = {}


def register(
    id: str, entry_point: str | type[Env[Any]], *, kwargs: Mapping[str, Any] | None = None, extra: str = ""
) -> None:
    """Adds an environment, here and in Gymnasium's registry. A second identical registration does nothing.

    Args:
        id: ``namespace/Name-vN``; raise the version whenever results change.
        entry_point: ``module:Class``, imported when the environment is made, or the class itself.
        kwargs: Default arguments of the class.
        extra: The extra of agentenv-suite that installs what the module needs.

    Raises:
        ConfigurationError: a malformed id or entry point, or an id that stands for something else already.
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
    """``module:Class`` of an environment's class.

    Raises:
        ConfigurationError: it is no environment, or cannot be found again by its name.
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
    """Registers what installed packages offer under ``agentenv.envs``; warns of what cannot be registered."""
    for found in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            register(found.name, found.value)
        except ConfigurationError as error:
            warnings.warn(f"an installed environment is left out: {error}", stacklevel=2)


def registered() -> dict[str, EnvSpec]:
    """Every registered environment by id, sorted."""
    return dict(sorted(_specs.items()))


def spec(id: str) -> EnvSpec:
    """The entry of ``id``; that of ``module:Class`` is made up.

    Raises:
        UnknownName: no such environment; names the nearest.
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
    """Whether ``id`` is ``module:Class`` in place of a registered id, or ``module:name`` in place of any other name."""
    return _ENTRY_POINT.fullmatch(id) is not None and not is_remote(id)


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    """Within the block modules are imported from the current folder first; afterwards that folder is searched last.

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
    """The environment class that ``module:Class`` names.

    Raises:
        MissingExtra: the module needs ``extra``, which is not installed.
        ConfigurationError: no such module or class, or the class is no ``Env``.
    """
    found = import_named(entry_point, "class", extra, called=True)
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise ConfigurationError(f"{entry_point} is no subclass of agentenv.Env")
    return found


def import_named(entry_point: str, kind: str, extra: str = "", *, called: bool = False) -> Any:
    """What ``module:name`` names.

    Args:
        entry_point: ``module:name``.
        kind: What is looked for, in words.
        extra: The extra of agentenv-suite that installs what the module needs.
        called: Whether it will be called, so that an error proposes no mapping in its place.

    Raises:
        MissingExtra: the module needs ``extra``, which is not installed.
        ConfigurationError: there is no such module, it cannot be imported, or it has no such name; shows the nearest.
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
    """What ``module:name`` names, whose module is looked for in the current folder first; as `import_named` otherwise."""
    with _current_folder_first():
        return import_named(entry_point, kind, called=called)


def _defined_in(module: str, *, mappings: bool) -> list[str]:
    """The classes and functions that a module defines and what else can be called, as ``module:name``; its mappings too."""
    found = vars(sys.modules[module])
    return [
        f"{module}:{name}"
        for name, value in found.items()
        if (callable(value) or (mappings and isinstance(value, Mapping) and not name.startswith("__")))
        and (getattr(value, "__module__", None) == module or not hasattr(value, "__qualname__"))
    ]


def describe_error(error: BaseException) -> str:
    """``error`` in one line: its kind, what it says, and where in the code of its author it was raised."""
    place = place_of(error)
    # Gymnasium appends all arguments to its message.
    said = str(error).partition(" was raised from the environment creator")[0]
    return f"{type(error).__name__}: {' '.join(said.split())[:500]}{f' ({place})' if place else ''}"


def env_class(id: str) -> type[Env[Any]]:
    """The class of an environment: of a registered id, of ``module:Class``, or of what is served at ``remote:URL``.

    Raises:
        UnknownName: no such environment; names the nearest.
        MissingExtra: an optional dependency is not installed; names the extra.
        ConfigurationError: no such module, class or server.
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
    """Whether ``id`` names an environment behind an address."""
    return id.startswith(_REMOTE)


def make(id: str | type[Env[Any]], **kwargs: Any) -> Env[Any]:
    """A new environment.

    Args:
        id: For example ``agentenv/LocalSearch-v0``, ``module:Class`` or a class for one that is not registered, or
            ``remote:URL`` for one behind ``agentenv serve``.
        **kwargs: Arguments of its class; they go before the registered ones.

    Raises:
        UnknownName: no such environment; names the nearest.
        MissingExtra: an optional dependency is not installed; names the extra.
        ConfigurationError: no such module, class or server.
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
    """``num_envs`` environments that step concurrently; what is shared or immutable in them is loaded once.

    Args:
        id: For example ``agentenv/LocalSearch-v0``.
        num_envs: Number of environments, at least 1.
        **kwargs: Arguments of the class.

    Raises:
        ConfigurationError: ``num_envs`` is below 1; otherwise as ``make``.
    """
    from agentenv.core.vector import VectorEnv

    if num_envs < 1:
        raise ConfigurationError(f"num_envs={num_envs} must be at least 1")
    first = make(id, **kwargs)
    if first.capability >= StateCapability.MEMORY:
        return VectorEnv([first, *first.fork(num_envs - 1)])
    return VectorEnv([first, *(make(id, **kwargs) for _ in range(num_envs - 1))])
