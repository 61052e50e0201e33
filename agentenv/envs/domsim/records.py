"""Tables of the database: tuples of immutable records with ids, and functions that change them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast


class Numbered(Protocol):
    """A named tuple with an ``id``."""

    @property
    def id(self) -> int:
        """The id of the record, unique in its table."""


R = TypeVar("R", bound=Numbered)


def _replaced(row: R, **changes: Any) -> R:
    # all named tuples have this method, with different signatures
    made: R = cast(Any, row)._replace(**changes)
    return made


class MissingRecord(LookupError):
    """A record that the page shows no longer exists."""


def find(rows: tuple[R, ...], id: int) -> R:
    """Returns the record with the given id.

    Raises:
        MissingRecord: there is no such record, or it was deleted.
    """
    for row in rows:
        if row.id == id:
            return row
    raise MissingRecord(id)


def changed(rows: tuple[R, ...], id: int, **changes: Any) -> tuple[R, ...]:
    """Returns the table with changed values in one record."""
    return tuple(_replaced(row, **changes) if row.id == id else row for row in rows)


def without(rows: tuple[R, ...], id: int) -> tuple[R, ...]:
    """Returns the table without one record."""
    return tuple(row for row in rows if row.id != id)


def added(rows: tuple[R, ...], row: R) -> tuple[R, ...]:
    """Returns the table with one more record, which gets the next id."""
    return (*rows, _replaced(row, id=max((held.id for held in rows), default=0) + 1))


def numbered(rows: list[R]) -> tuple[R, ...]:
    """Makes a table of ``rows`` with ids from 1."""
    return tuple(_replaced(row, id=i) for i, row in enumerate(rows, 1))


Move = tuple[str, ...]
"""One step of a plan, with keys of widgets: ``("open", app)``, ``("click", key)``, ``("fill", key, text)``, ``("select",
key, option)``, ``("drag", key, key)``, ``("answer", text)``."""


Conjunction = Literal["and", "or"]
"""How several measures of one task are combined."""


def joined_value(values: Sequence[float], conjunction: Conjunction) -> float:
    """Combines several measures of one task, each within [0, 1], as OSWorld does (Xie et al. 2024, arXiv:2404.07972).

    With ``and``, any 0 gives 0, and otherwise the result is their mean. With ``or``, any 1 gives 1, and otherwise the result
    is the largest value.
    """
    if conjunction == "and":
        return 0.0 if min(values) == 0 else sum(values) / len(values)
    return max(values)


class WantedEnd(NamedTuple):
    """One correct end of a task, and a plan that leads to it."""

    plan: tuple[Move, ...]
    wanted: Mapping[str, Any]
    """The complete database at the end."""
    answer: str | None
    """The answer that must be given to the user; None if the task has no question."""


class TaskDraft(NamedTuple):
    """A task made by a template: the goal, a plan, and the changes of the database."""

    goal: str
    plan: tuple[Move, ...]
    changes: dict[str, Any]
    """The entries of the database that the task changes. All others must stay unchanged."""
    answer: str | None = None
    """The answer that must be given to the user, if the task is a question."""
