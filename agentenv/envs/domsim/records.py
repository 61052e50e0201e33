"""Tables of the database: tuples of immutable records with a number each, and the words for changing them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast


class Numbered(Protocol):
    """A named tuple with an ``id``."""

    @property
    def id(self) -> int:
        """Its number, unique in its table."""


R = TypeVar("R", bound=Numbered)


def _with(row: R, **changes: Any) -> R:
    made: R = cast(Any, row)._replace(**changes)  # of every named tuple, under a signature of its own
    return made


class MissingRecord(LookupError):
    """A record that a page is about is no longer there."""


def find(rows: tuple[R, ...], id: int) -> R:
    """The record with the number ``id``.

    Raises:
        MissingRecord: there is none, or no longer.
    """
    for row in rows:
        if row.id == id:
            return row
    raise MissingRecord(id)


def changed(rows: tuple[R, ...], id: int, **changes: Any) -> tuple[R, ...]:
    """The table with other values in one record."""
    return tuple(_with(row, **changes) if row.id == id else row for row in rows)


def without(rows: tuple[R, ...], id: int) -> tuple[R, ...]:
    """The table without one record."""
    return tuple(row for row in rows if row.id != id)


def added(rows: tuple[R, ...], row: R) -> tuple[R, ...]:
    """The table with one more record, which gets the next number."""
    return (*rows, _with(row, id=max((held.id for held in rows), default=0) + 1))


def numbered(rows: list[R]) -> tuple[R, ...]:
    """A table of ``rows``, numbered from 1."""
    return tuple(_with(row, id=i) for i, row in enumerate(rows, 1))


Move = tuple[str, ...]
"""One step of a plan, by keys of widgets: ``("open", app)``, ``("click", key)``, ``("fill", key, text)``, ``("select", key,
option)``, ``("drag", key, key)``, ``("answer", text)``."""


Conjunction = Literal["and", "or"]
"""How several measures of one task are joined."""


def joined_value(values: Sequence[float], conjunction: Conjunction) -> float:
    """What several measures of one task are worth together, each within [0, 1], as OSWorld joins them (Xie et al. 2024).

    Of ``and``, any 0 gives 0, and otherwise their mean counts; of ``or``, any 1 gives 1, and otherwise the largest counts
    (arXiv:2404.07972).
    """
    if conjunction == "and":
        return 0.0 if min(values) == 0 else sum(values) / len(values)
    return max(values)


class WantedEnd(NamedTuple):
    """One right end of a task, and how it is reached."""

    plan: tuple[Move, ...]
    wanted: Mapping[str, Any]
    """The database as it shall be, in everything."""
    answer: str | None
    """What must have been said to the user; None where nothing is asked."""


class TaskDraft(NamedTuple):
    """A task that a template made: what to do, how, and what the world is like afterwards."""

    goal: str
    plan: tuple[Move, ...]
    changes: dict[str, Any]
    """Values of the database that the task changes; all others must stay as they are."""
    answer: str | None = None
    """What must have been said to the user, where the task is a question."""
