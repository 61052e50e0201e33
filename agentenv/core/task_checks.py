"""Whether tasks can be played, recorded and scored: looked at once, before the first of them is posed.

What is wrong with a task would otherwise show when its scores are listed, after everything was played.
"""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentenv.core.io.digests import value_digest
from agentenv.core.types import Task
from agentenv.errors import DatasetError


def checked_tasks(tasks: Iterable[Any], whose: str) -> tuple[Task, ...]:
    """``tasks``, each of which can be recorded and scored.

    Args:
        tasks: What a file or an environment gave.
        whose: Where they come from, for the sentence.

    Raises:
        DatasetError: there is none, one is no task, two have one id, or an entry that records are made of has another type.
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
    """What makes ``task`` unusable, as a sentence; None where nothing does."""
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
    """Why there is no digest of ``task``, which resumed runs are compared by; None where there is one."""
    try:
        value_digest(task)
    except (TypeError, ValueError, RecursionError) as error:
        return (
            f"data cannot be written as JSON ({error}): it must nest less deeply, and its keys must be texts"
        )
    return None


def _flaw_of_data(data: Mapping[Any, Any]) -> str | None:
    """What of the entries that records are made of cannot be used."""
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
