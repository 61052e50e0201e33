"""Checks that tasks can be played, recorded and scored, before the first one is posed.

Otherwise a flaw in a task would only be discovered when its score is written, after everything was played.
"""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentenv.core.io.digests import value_digest
from agentenv.core.types import Task
from agentenv.errors import DatasetError


def checked_tasks(tasks: Iterable[Any], whose: str) -> tuple[Task, ...]:
    """Returns ``tasks`` after checking that each can be recorded and scored.

    Args:
        tasks: The tasks from a file or an environment.
        whose: Where they come from, for the error.

    Raises:
        DatasetError: there are none, an entry is not a task, two have the same id, or a recorded field has a wrong type.
    """
    found: dict[str, Task] = {}
    for number, task in enumerate(tasks, 1):
        if not isinstance(task, Task):
            raise DatasetError(f"{whose}: task {number} is {reprlib.repr(task)}; it must be a Task")
        if (flaw := flaw_of(task) or _unwritable(task)) is not None:
            raise DatasetError(f"{whose}: task {number}, {reprlib.repr(task.id)}: {flaw}")
        if task.id in found:
            raise DatasetError(f"{whose}: the id {task.id!r} occurs twice; make ids unique")
        found[task.id] = task
    if not found:
        raise DatasetError(f"{whose} holds no tasks")
    return tuple(found.values())


def flaw_of(task: Task) -> str | None:
    """Returns what makes ``task`` unusable, as a sentence; None if it is usable."""
    texts = {"id": task.id, "question": task.question}
    if isinstance(task.answers, str) or not isinstance(task.answers, Sequence):
        return f"answers is {reprlib.repr(task.answers)}; it must be a tuple of texts"
    texts |= {f"answer {number}": answer for number, answer in enumerate(task.answers, 1)}
    for name, text in texts.items():
        if not _is_text(text):
            return f"{name} is {reprlib.repr(text)}; it must be text without halves of surrogate pairs"
    if not task.id.strip():
        return "the id is blank"
    if not isinstance(task.data, Mapping):
        return f"data is {reprlib.repr(task.data)}; it must be a mapping"
    return _flaw_of_data(task.data)


def _unwritable(task: Task) -> str | None:
    """Returns why ``task`` has no digest, by which resumed runs are compared; None if it has one."""
    try:
        value_digest(task)
    except (TypeError, ValueError, RecursionError) as error:
        return (
            f"data cannot be written as JSON ({error}): it must nest less deeply, and its keys must be texts"
        )
    return None


def _flaw_of_data(data: Mapping[Any, Any]) -> str | None:
    """Returns what is wrong with the entries of ``Task.data`` that go into records; None if nothing is."""
    for name in ("family", "cluster", "canary"):
        value = data.get(name)
        if value is not None and not (_is_text(value) or (name == "cluster" and type(value) is int)):
            return f"{name} is {reprlib.repr(value)}; it must be text"
    hops = data.get("hops")
    if hops is not None and not (type(hops) is int and hops >= 1):
        return f"hops is {reprlib.repr(hops)}; it must be a whole number of at least 1"
    ids = data.get("supporting_ids", ())
    if isinstance(ids, str) or not isinstance(ids, Iterable) or not all(map(_is_text, ids)):
        return (
            f"supporting_ids is {reprlib.repr(ids)}; it must be a list of ids of documents, which are texts"
        )
    return None


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
