"""Snapshots of a state: resources are captured first, then the rest is deep-copied with placeholders for them.

A *resource* is a part of the state that Python cannot copy, such as a sandbox session. It has ``snapshot``, ``restore``,
``fork`` and ``close``. Resources are found by searching data classes, lists, tuples and dicts, and each has a single owner.
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
    """A part of the state that captures itself."""

    def snapshot(self) -> Any:
        """Returns a handle. A handle that owns something has ``release()`` and may have ``bytes``."""

    def restore(self, handle: Any) -> None:
        """Returns to ``handle``, which stays usable.

        Raises:
            StateLost: a program destroyed the state. The resource is then empty, and its next result reports the loss.
        """

    def fork(self) -> Self:
        """Makes an independent copy in the same state."""

    def close(self) -> None:
        """Frees everything that the resource holds."""


def resources_of(value: Any) -> Iterator[Resource]:
    """Yields every resource that ``value`` contains in data classes and containers, each once."""
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
    """The placeholder of one resource inside a captured state."""


class Snapshot:
    """A captured state. It can be restored any number of times until it is released, only by its owner."""

    def __init__(self, owner: object, value: Any) -> None:
        """Captures ``value``.

        Raises:
            SnapshotRefused: a resource cannot be captured in its present state.
            SnapshotError: a part could not be captured. In both cases, parts captured before have been released.
        """
        start = time.perf_counter()
        self.owner = owner
        self._handles: list[tuple[Resource, _Slot, Any]] = []
        memo: dict[int, Any] = {}
        try:
            for resource in resources_of(value):
                self._handles.append((resource, _Slot(), resource.snapshot()))
            # `deepcopy` looks objects up in the memo first, so every resource is replaced by its slot and not copied.
            memo.update({id(resource): slot for resource, slot, _ in self._handles})
            self._value = copy.deepcopy(value, dict(memo))
        except Exception as error:
            self.release()
            kind = SnapshotRefused if isinstance(error, SnapshotRefused) else SnapshotError
            raise kind(f"cannot capture {_copy_failure(value, memo, error)}") from error
        self.seconds = time.perf_counter() - start
        """Wall-clock seconds that the capture took."""

    @property
    def bytes(self) -> int:
        """Size in bytes of the pickled state (0 if it cannot be pickled) plus the sizes that the handles report."""
        held = sum(int(getattr(handle, "bytes", 0)) for _, _, handle in self._handles)
        try:
            return held + len(pickle.dumps(self._value))
        except Exception:
            return held

    def bring_back(self) -> Any:
        """Restores every resource and returns a new copy of the captured value around them.

        A resource whose state was destroyed by a program is empty afterwards, and reports this itself.

        Raises:
            SnapshotError: the snapshot was released, or a resource could not be restored.
        """
        if self.released:
            raise SnapshotError("this snapshot was released; take a new one")
        try:
            for resource, _, handle in self._handles:
                with contextlib.suppress(StateLost):
                    resource.restore(handle)
        except Exception as error:
            raise SnapshotError(f"cannot restore: {error}") from error
        # Copied again, because the snapshot can be restored more than once.
        return copy.deepcopy(self._value, {id(slot): resource for resource, slot, _ in self._handles})

    @property
    def holds_resources(self) -> bool:
        """Whether releasing it needs calls of the environment's resources."""
        return bool(self._handles)

    @property
    def released(self) -> bool:
        """Whether ``release`` was called, or the capture failed."""
        return not hasattr(self, "_value")

    def release(self) -> None:
        """Releases the handles. A second call does nothing."""
        self.__dict__.pop("_value", None)
        # a handle that fails must not prevent the release of the others
        with contextlib.ExitStack() as stack:
            for _, _, handle in self._handles:
                stack.callback(_release, handle)
            self._handles.clear()


def fork_value(value: Any) -> Any:
    """A deep copy of ``value`` in which every resource is replaced by its own fork.

    Raises:
        SnapshotRefused: a resource cannot be captured in its present state.
        SnapshotError: a part could not be forked. In both cases, forks made before have been closed.
    """
    forks: list[Resource] = []
    memo: dict[int, Any] = {}
    try:
        for resource in resources_of(value):
            forks.append(resource.fork())
            memo[id(resource)] = forks[-1]
        # the memo is copied, because a failed deepcopy leaves partial entries
        return copy.deepcopy(value, dict(memo))
    except Exception as error:
        for fork in forks:
            fork.close()
        kind = SnapshotRefused if isinstance(error, SnapshotRefused) else SnapshotError
        raise kind(f"cannot fork {_copy_failure(value, memo, error)}") from error


def _copy_failure(value: Any, memo: Mapping[int, Any], error: Exception) -> str:
    """Describes why a value cannot be copied: its path, such as ``state.lock``, and advice; its type if no part is found.

    Args:
        value: The value to copy.
        memo: Replacements of the resources in it, by their ids.
        error: The error that copying raised.
    """
    names: list[str] = []
    while (name := _first_uncopyable(value, memo)) is not None:
        names.append(name)
        value = value[name] if isinstance(value, dict) else vars(value)[name]
    if not names:
        return f"{type(value).__name__}: {error}"
    advice = "keep it in an object with snapshot, restore, fork and close, or declare capability = StateCapability.NONE"
    return f"{'.'.join(names)}: {error}; {advice}"


def _first_uncopyable(value: Any, memo: Mapping[int, Any]) -> str | None:
    """Returns the name of the first part of ``value`` that cannot be copied; None if none is found or a resource failed."""
    parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    if isinstance(value, type) or any(id(resource) not in memo for resource in resources_of(value)):
        return None
    for name, part in parts.items():
        try:
            copy.deepcopy(part, dict(memo))
        except Exception:
            return name if isinstance(name, str) else None
    return None
