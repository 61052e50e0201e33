"""Snapshots of a state: resources are captured first, then the rest as a deep copy that holds their handles.

A *resource* is anything in the state that cannot be copied by Python, such as a sandbox session. It has
``snapshot``, ``restore``, ``fork`` and ``close``, is found by looking through data classes, lists, tuples and
dicts, and is shared by nobody else.
"""

import contextlib
import copy
import dataclasses
import pickle
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self, runtime_checkable

from agentenv.errors import SnapshotError, SnapshotRefused, StateLost


@runtime_checkable
class Resource(Protocol):
    """A part of the state that knows how to capture itself."""

    def snapshot(self) -> Any:
        """A handle; one that owns something has ``release()`` and may have ``bytes``."""

    def restore(self, handle: Any) -> None:
        """Goes back to ``handle``, which stays usable.

        Raises:
            StateLost: a program destroyed what it held. The resource is empty then and shows that with its next result.
        """

    def fork(self) -> Self:
        """An independent twin in the same state."""

    def close(self) -> None:
        """Frees what the resource holds."""


def resources_of(value: Any) -> Iterator[Resource]:
    """Every resource reachable from ``value`` through data classes and containers, each once."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, (str, bytes, int, float, type(None))):
            continue
        seen.add(id(item))
        if isinstance(item, Resource) and not isinstance(item, type):
            yield item
        elif dataclasses.is_dataclass(item):
            stack.extend(getattr(item, field.name) for field in dataclasses.fields(item))
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)


def _release(handle: Any) -> None:
    if callable(release := getattr(handle, "release", None)):
        release()


class _Slot:
    """Stands for one resource inside a captured state."""


class Snapshot:
    """A captured state, usable any number of times until released; belongs to the one that took it."""

    def __init__(self, owner: object, value: Any) -> None:
        """Captures ``value``.

        Raises:
            SnapshotRefused: a resource cannot be captured as it stands.
            SnapshotError: a part could not be captured; either way what was taken before it has been released.
        """
        start = time.perf_counter()
        self.owner = owner
        self._handles: list[tuple[Resource, _Slot, Any]] = []
        memo: dict[int, Any] = {}
        try:
            for resource in resources_of(value):
                self._handles.append((resource, _Slot(), resource.snapshot()))
            # `deepcopy` looks here first, so that every resource becomes its slot and none is copied.
            memo.update({id(resource): slot for resource, slot, _ in self._handles})
            self._value = copy.deepcopy(value, dict(memo))
        except Exception as error:
            self.release()
            kind = SnapshotRefused if isinstance(error, SnapshotRefused) else SnapshotError
            raise kind(f"cannot capture {_why(value, memo, error)}") from error
        self.seconds = time.perf_counter() - start
        """Wall-clock seconds that the capture took."""

    @property
    def bytes(self) -> int:
        """Bytes of the pickled state (0 if unpicklable) and of the handles, as the resources tell it."""
        held = sum(int(getattr(handle, "bytes", 0)) for _, _, handle in self._handles)
        try:
            return held + len(pickle.dumps(self._value))
        except Exception:
            return held

    def bring_back(self) -> Any:
        """Restores every resource and returns a fresh copy of the value around them.

        A resource whose program destroyed its own state is empty afterwards, and says so itself.

        Raises:
            SnapshotError: the snapshot was released, or a resource could not go back.
        """
        if self.released:
            raise SnapshotError("this snapshot was released; take a new one")
        try:
            for resource, _, handle in self._handles:
                with contextlib.suppress(StateLost):
                    resource.restore(handle)
        except Exception as error:
            raise SnapshotError(f"cannot restore: {error}") from error
        # A copy, because the snapshot can be brought back again.
        return copy.deepcopy(self._value, {id(slot): resource for resource, slot, _ in self._handles})

    @property
    def holds_resources(self) -> bool:
        """Whether freeing it is work of the environment's resources, and not of Python alone."""
        return bool(self._handles)

    @property
    def released(self) -> bool:
        """Whether ``release`` was called, or the capture failed."""
        return not hasattr(self, "_value")

    def release(self) -> None:
        """Frees the handles; a second call does nothing."""
        self.__dict__.pop("_value", None)
        with contextlib.ExitStack() as stack:  # one that fails must not keep the others
            for _, _, handle in self._handles:
                stack.callback(_release, handle)
            self._handles.clear()


def fork_value(value: Any) -> Any:
    """A deep copy of ``value`` in which every resource is replaced by its own fork.

    Raises:
        SnapshotRefused: a resource cannot be captured as it stands.
        SnapshotError: a part could not be forked; either way the forks made before it have been closed.
    """
    forks: list[Resource] = []
    memo: dict[int, Any] = {}
    try:
        for resource in resources_of(value):
            forks.append(resource.fork())
            memo[id(resource)] = forks[-1]
        return copy.deepcopy(value, dict(memo))  # a copy: what fails halfway leaves halves in it
    except Exception as error:
        for fork in forks:
            fork.close()
        kind = SnapshotRefused if isinstance(error, SnapshotRefused) else SnapshotError
        raise kind(f"cannot fork {_why(value, memo, error)}") from error


def _why(value: Any, memo: Mapping[int, Any], error: Exception) -> str:
    """Where in ``value`` what cannot be copied stands, such as ``state.lock``, and what to do; its type where nobody knows.

    Args:
        value: What was to be copied.
        memo: What stands for the resources in it.
        error: What was raised.
    """
    names: list[str] = []
    while (name := _uncopied(value, memo)) is not None:
        names.append(name)
        value = value[name] if isinstance(value, dict) else vars(value)[name]
    if not names:
        return f"{type(value).__name__}: {error}"
    advice = "keep it in an object with snapshot, restore, fork and close, or declare capability = StateCapability.NONE"
    return f"{'.'.join(names)}: {error}; {advice}"


def _uncopied(value: Any, memo: Mapping[int, Any]) -> str | None:
    """The first attribute or entry of ``value`` that cannot be copied; None where there is none, or a resource failed."""
    parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    if isinstance(value, type) or any(id(resource) not in memo for resource in resources_of(value)):
        return None
    for name, part in parts.items():
        try:
            copy.deepcopy(part, dict(memo))
        except Exception:
            return name if isinstance(name, str) else None
    return None
