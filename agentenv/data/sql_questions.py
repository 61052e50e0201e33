"""Questions about a generated database with the query that answers each, in five levels of difficulty.

1 one table; 2 aggregates and order; 3 joins; 4 groups; 5 subqueries. A template draws tables, columns and values from a
``QuestionContext``; one that does not fit the domain raises ``TemplateMismatch`` and another is drawn.
"""

import random
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from agentenv.data.sql_domains import Column, Domain, SQLTable

T = TypeVar("T")


@dataclass(frozen=True)
class SQLQuestion:
    """A question, and how to see that its answer is the only one."""

    question: str
    gold: str
    keys: str = ""
    """A query whose first column must hold no value twice: what the gold query sorts or chooses by."""
    first: int | None = None
    """How many of the keys, from the first; None is all."""


class TemplateMismatch(Exception):
    """The template finds nothing to ask here."""


class QuestionContext:
    """One database, and the choices that templates make in it."""

    def __init__(self, domain: Domain, connection: sqlite3.Connection, rng: random.Random) -> None:
        self._domain, self._connection, self.rng = domain, connection, rng

    def pick(self, items: tuple[T, ...]) -> T:
        """Draws one of ``items``.

        Raises:
            TemplateMismatch: there is none.
        """
        if not items:
            raise TemplateMismatch
        return self.rng.choice(items)

    def table(self) -> SQLTable:
        """Draws a table of the domain."""
        return self.pick(self._domain)

    def pair(self, child: SQLTable | None = None) -> tuple[SQLTable, SQLTable]:
        """A table, and one that it refers to."""
        child = child or self.pick(tuple(table for table in self._domain if table.parents))
        parent = self.pick(child.parents)
        return child, next(table for table in self._domain if table.one == parent)

    def label(self, table: SQLTable) -> str:
        """The label of one of its rows."""
        return str(self._value(f"SELECT {table.label} FROM {table.many} ORDER BY id"))

    def condition(self, table: SQLTable) -> tuple[str, str]:
        """Words and SQL for some of the rows."""
        if self.rng.random() < 0.5:
            column = self.pick(table.words)
            value = self._value(f"SELECT DISTINCT {column.name} FROM {table.many} ORDER BY 1")
            return f"whose {column.phrase} is {value}", f"{table.many}.{column.name} = {quoted(str(value))}"
        return self.numeric(table)

    def numeric(self, table: SQLTable) -> tuple[str, str]:
        """Words and SQL for the rows above or below one of the numbers in the middle of a column."""
        column = self.pick(table.numbers)
        word, sign = self.pick((("above", ">"), ("below", "<")))
        edge = self.threshold(table, column)
        return f"whose {column.phrase} is {word} {edge}", f"{table.many}.{column.name} {sign} {edge}"

    def threshold(self, table: SQLTable, column: Column) -> int | float:
        """A value of the middle half of a column."""
        rows = self._connection.execute(
            f"SELECT {column.name} FROM {table.many} ORDER BY {column.name}"
        ).fetchall()
        value: int | float = rows[self.rng.randrange(len(rows) // 4, 3 * len(rows) // 4)][0]
        return value

    def aggregate(self, column: Column) -> tuple[str, str]:
        """Word and SQL function; nobody adds up years."""
        return self.pick(AGGREGATES[:-1] if "year" in column.phrase else AGGREGATES)

    def _value(self, query: str) -> int | float | str:
        value: int | float | str = self.rng.choice(self._connection.execute(query).fetchall())[0]
        return value


def quoted(text: str) -> str:
    """``text`` as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


AGGREGATES = (("average", "avg"), ("highest", "max"), ("lowest", "min"), ("total", "sum"))
ENDS = (("highest", "DESC"), ("lowest", "ASC"))


def _joined(child: SQLTable, parent: SQLTable) -> str:
    return f"{child.many} JOIN {parent.many} ON {child.many}.{parent.one}_id = {parent.many}.id"


def labels_where(context: QuestionContext) -> SQLQuestion:
    """Level 1: the labels of some rows."""
    table = context.table()
    words, where = context.condition(table)
    question = f"List the {table.label} of all {table.many} {words}."
    return SQLQuestion(question, f"SELECT {table.label} FROM {table.many} WHERE {where}")


def count_where(context: QuestionContext) -> SQLQuestion:
    """Level 1: how many rows."""
    table = context.table()
    words, where = context.condition(table)
    return SQLQuestion(
        f"How many {table.many} are there {words}?", f"SELECT count(*) FROM {table.many} WHERE {where}"
    )


def look_up(context: QuestionContext) -> SQLQuestion:
    """Level 1: one number of one row."""
    table = context.table()
    column, label = context.pick(table.numbers), context.label(table)
    return SQLQuestion(
        f"What is the {column.phrase} of the {table.one} with the {table.label} {label}?",
        f"SELECT {column.name} FROM {table.many} WHERE {table.label} = {quoted(label)}",
    )


def distinct_words(context: QuestionContext) -> SQLQuestion:
    """Level 1: the different words in a column."""
    table = context.table()
    column = context.pick(table.words)
    words, where = context.numeric(table)
    return SQLQuestion(
        f"Which {column.phrase} values occur among the {table.many} {words}? Give each one once.",
        f"SELECT DISTINCT {column.name} FROM {table.many} WHERE {where}",
    )


def aggregate_where(context: QuestionContext) -> SQLQuestion:
    """Level 2: one aggregate over some rows."""
    table = context.table()
    column = context.pick(table.numbers)
    word, function = context.aggregate(column)
    words, where = context.condition(table)
    return SQLQuestion(
        f"What is the {word} {column.phrase} of the {table.many} {words}?",
        f"SELECT {function}({column.name}) FROM {table.many} WHERE {where}",
    )


def both_ends(context: QuestionContext) -> SQLQuestion:
    """Level 2: two aggregates."""
    table = context.table()
    column = context.pick(table.numbers)
    return SQLQuestion(
        f"What are the lowest and the highest {column.phrase} of all {table.many}, in this order?",
        f"SELECT min({column.name}), max({column.name}) FROM {table.many}",
    )


def top(context: QuestionContext) -> SQLQuestion:
    """Level 2: order and limit."""
    table = context.table()
    column, (word, direction) = context.pick(table.numbers), context.pick(ENDS)
    count = context.rng.randint(2, 5)
    order = f"FROM {table.many} ORDER BY {column.name} {direction}"
    return SQLQuestion(
        f"Give the {table.label} of the {count} {table.many} with the {word} {column.phrase}, the {word} first.",
        f"SELECT {table.label} {order} LIMIT {count}",
        f"SELECT {column.name} {order}",
        count + 1,
    )


def sorted_where(context: QuestionContext) -> SQLQuestion:
    """Level 2: two columns in order."""
    table = context.table()
    column = context.pick(table.numbers)
    words, where = context.condition(table)
    rest = f"FROM {table.many} WHERE {where} ORDER BY {column.name}"
    return SQLQuestion(
        f"List {table.label} and {column.phrase} of the {table.many} {words}, the lowest {column.phrase} first.",
        f"SELECT {table.label}, {column.name} {rest}",
        f"SELECT {column.name} {rest}",
    )


def children_of(context: QuestionContext) -> SQLQuestion:
    """Level 3: the rows that refer to a named one."""
    child, parent = context.pair()
    label = context.label(parent)
    return SQLQuestion(
        f"List the {child.label} of all {child.many} of the {parent.one} with the {parent.label} {label}.",
        f"SELECT {child.many}.{child.label} FROM {_joined(child, parent)} "
        f"WHERE {parent.many}.{parent.label} = {quoted(label)}",
    )


def with_parent(context: QuestionContext) -> SQLQuestion:
    """Level 3: columns of two tables."""
    child, parent = context.pair()
    words, where = context.condition(child)
    return SQLQuestion(
        f"List the {child.label} of each of the {child.many} {words}, with the {parent.label} of its {parent.one}.",
        f"SELECT {child.many}.{child.label}, {parent.many}.{parent.label} FROM {_joined(child, parent)} WHERE {where}",
    )


def count_by_parent(context: QuestionContext) -> SQLQuestion:
    """Level 3: a count over a join."""
    child, parent = context.pair()
    words, where = context.condition(parent)
    return SQLQuestion(
        f"How many {child.many} belong to {parent.many} {words}?",
        f"SELECT count(*) FROM {_joined(child, parent)} WHERE {where}",
    )


def two_joins(context: QuestionContext) -> SQLQuestion:
    """Level 3: over two references."""
    child, parent = context.pair()
    parent, grand = context.pair(parent)
    words, where = context.condition(grand)
    second = f"JOIN {grand.many} ON {parent.many}.{grand.one}_id = {grand.many}.id"
    return SQLQuestion(
        f"List the {child.label} of all {child.many} whose {parent.one} belongs to one of the {grand.many} {words}.",
        f"SELECT {child.many}.{child.label} FROM {_joined(child, parent)} {second} WHERE {where}",
    )


def count_each(context: QuestionContext) -> SQLQuestion:
    """Level 4: a count by group."""
    table = context.table()
    column = context.pick(table.words)
    return SQLQuestion(
        f"For each {column.phrase} that occurs, give the {column.phrase} and the number of {table.many} with it.",
        f"SELECT {column.name}, count(*) FROM {table.many} GROUP BY {column.name}",
    )


def aggregate_each(context: QuestionContext) -> SQLQuestion:
    """Level 4: an aggregate by parent."""
    child, parent = context.pair()
    column = context.pick(child.numbers)
    word, function = context.aggregate(column)
    return SQLQuestion(
        f"For each {parent.one} that has any {child.many}, give its {parent.label} and the {word} {column.phrase} "
        f"of its {child.many}.",
        f"SELECT {parent.many}.{parent.label}, {function}({child.many}.{column.name}) FROM {_joined(child, parent)} "
        f"GROUP BY {parent.many}.id",
    )


def at_least(context: QuestionContext) -> SQLQuestion:
    """Level 4: a condition on the size of a group."""
    child, parent = context.pair()
    count = context.rng.randint(2, 5)
    return SQLQuestion(
        f"Give the {parent.label} of every {parent.one} that has at least {count} {child.many}.",
        f"SELECT {parent.many}.{parent.label} FROM {_joined(child, parent)} "
        f"GROUP BY {parent.many}.id HAVING count(*) >= {count}",
    )


def groups_above(context: QuestionContext) -> SQLQuestion:
    """Level 4: a condition on the aggregate of a group."""
    table = context.table()
    group, column = context.pick(table.words), context.pick(table.numbers)
    edge = context.threshold(table, column)
    return SQLQuestion(
        f"Give every {group.phrase} for which the average {column.phrase} of the {table.many} is above {edge}.",
        f"SELECT {group.name} FROM {table.many} GROUP BY {group.name} HAVING avg({column.name}) > {edge}",
    )


def most_children(context: QuestionContext) -> SQLQuestion:
    """Level 4: the largest group."""
    child, parent = context.pair()
    order = f"FROM {_joined(child, parent)} GROUP BY {parent.many}.id ORDER BY count(*) DESC"
    return SQLQuestion(
        f"Which {parent.one} has the most {child.many}? Give its {parent.label}.",
        f"SELECT {parent.many}.{parent.label} {order} LIMIT 1",
        f"SELECT count(*) {order}",
        2,
    )


def above_average(context: QuestionContext) -> SQLQuestion:
    """Level 5: a comparison with an aggregate of the whole table."""
    table = context.table()
    column = context.pick(table.numbers)
    return SQLQuestion(
        f"List the {table.label} of all {table.many} whose {column.phrase} is above the average {column.phrase} of all "
        f"{table.many}.",
        f"SELECT {table.label} FROM {table.many} WHERE {column.name} > (SELECT avg({column.name}) FROM {table.many})",
    )


def childless(context: QuestionContext) -> SQLQuestion:
    """Level 5: rows that nothing refers to."""
    child, parent = context.pair()
    return SQLQuestion(
        f"Give the {parent.label} of every {parent.one} that has no {child.many} at all.",
        f"SELECT {parent.label} FROM {parent.many} WHERE id NOT IN (SELECT {parent.one}_id FROM {child.many})",
    )


def best_of_each(context: QuestionContext) -> SQLQuestion:
    """Level 5: a subquery that depends on the row."""
    child, parent = context.pair()
    column = context.pick(child.numbers)
    best = (
        f"SELECT max(other.{column.name}) FROM {child.many} AS other "
        f"WHERE other.{parent.one}_id = {child.many}.{parent.one}_id"
    )
    return SQLQuestion(
        f"For each {parent.one} that has any {child.many}, give its {parent.label} and the {child.label} of the one "
        f"among its {child.many} with the highest {column.phrase}.",
        f"SELECT {parent.many}.{parent.label}, {child.many}.{child.label} FROM {_joined(child, parent)} "
        f"WHERE {child.many}.{column.name} = ({best})",
        f"SELECT {child.many}.{parent.one}_id FROM {child.many} WHERE {column.name} = ({best})",
    )


def groups_above_all(context: QuestionContext) -> SQLQuestion:
    """Level 5: groups against the whole table."""
    child, parent = context.pair()
    column = context.pick(child.numbers)
    return SQLQuestion(
        f"Give the {parent.label} of every {parent.one} whose {child.many} have a higher average {column.phrase} than all "
        f"{child.many} together.",
        f"SELECT {parent.many}.{parent.label} FROM {_joined(child, parent)} GROUP BY {parent.many}.id "
        f"HAVING avg({child.many}.{column.name}) > (SELECT avg({column.name}) FROM {child.many})",
    )


def count_with_child(context: QuestionContext) -> SQLQuestion:
    """Level 5: rows with at least one of some others, each counted once."""
    child, parent = context.pair()
    words, where = context.condition(child)
    return SQLQuestion(
        f"How many {parent.many} have at least one of the {child.many} {words}?",
        f"SELECT count(*) FROM {parent.many} WHERE id IN (SELECT {parent.one}_id FROM {child.many} WHERE {where})",
    )


Template = Callable[[QuestionContext], SQLQuestion]
TEMPLATES: Mapping[int, tuple[Template, ...]] = {
    1: (labels_where, count_where, look_up, distinct_words),
    2: (aggregate_where, both_ends, top, sorted_where),
    3: (children_of, with_parent, count_by_parent, two_joins),
    4: (count_each, aggregate_each, at_least, groups_above, most_children),
    5: (above_average, childless, best_of_each, groups_above_all, count_with_child),
}
