"""Reads a question in English and answers it from the facts, knowing nothing of how it was made.

The solver takes every reading that the grammar allows and every entity that fits, so a question with one
answer here has one answer in the world.
"""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from agentenv.data.world_facts import Facts
from agentenv.data.world_grammar import (
    COMPARISONS,
    INTERSECTIONS,
    LISTINGS,
    RELATIONS,
    SAMENESS,
    SUCCESSOR,
    TYPES,
    WORKS,
    Comparison,
    Intersection,
    Relation,
    Sameness,
)

Entity = tuple[str, int]
Rule = tuple[str, Callable[["Solver", list[set[Entity]]], set[str]]]  # a question form and what it means


class Solver:
    """Answers the questions of one world by brute force."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._named = {name: (kind, i) for kind in TYPES for i, name in enumerate(facts.names[kind])}

    def answers(self, question: str) -> set[str]:
        """All answers of all readings, as text; empty where the question cannot be read or nothing fits."""
        found: set[str] = set()
        for form, meaning in _rules():
            for slots in unfold(form, question):
                found |= meaning(self, [self.entities(slot) for slot in slots])
        for rule in COMPARISONS:
            for listed, last in unfold(rule.superlative, question):
                found |= self._extremes(rule, [*listed.split(", "), last])
        for listing in LISTINGS:
            for listed, last in unfold(listing.question, question):
                values = self._values(listing.type, listing.relation, [*listed.split(", "), last])
                if values:
                    found.add(
                        ", ".join(
                            f"{name}: {self.facts.text(listing.relation, one)}"
                            for name, one in values.items()
                        )
                    )
        return found

    def _extremes(self, rule: Comparison, names: list[str]) -> set[str]:
        """Which of these names has the extreme value; empty where one of them has none."""
        values = self._values(rule.type, rule.relation, names)
        if not values:
            return set()
        best = (max if rule.greatest else min)(values.values())
        return {name for name, value in values.items() if value == best}

    def _values(self, kind: str, relation: Relation, names: list[str]) -> dict[str, int]:
        """The value of each of these names; empty where one of them has none, or is not of this kind."""
        values = {
            name: value
            for name in names
            if (entity := self._named.get(name)) is not None and entity[0] == kind
            if (value := self.value(entity, relation)) is not None
        }
        return values if len(values) == len(names) else {}

    def entities(self, phrase: str) -> set[Entity]:
        """What a name or a nested noun phrase may stand for."""
        if phrase in self._named:
            return {self._named[phrase]}
        found: set[Entity] = set()
        for form, relation in _nouns():
            for (slot,) in unfold(form, phrase):
                found |= {
                    (relation.kind, value)
                    for entity in self.entities(slot)
                    if (value := self.value(entity, relation)) is not None
                }
        return found

    def value(self, entity: Entity, relation: Relation) -> int | None:
        """The stated value of a relation, or None."""
        kind, i = entity
        column = self.facts.values[kind].get(relation.name)
        return None if column is None or column[i] < 0 else int(column[i])

    def stated(self, name: str, relation: str) -> str | None:
        """What the facts tell of the entity that has this name, as text; None where they tell nothing."""
        for kind, i in self.entities(name):
            for known in RELATIONS[kind]:
                value = self.value((kind, i), known) if known.name == relation else None
                if value is not None:
                    return self.facts.text(known, value)
        return None

    def name(self, entity: Entity) -> str:
        """The name of an entity."""
        return self.facts.names[entity[0]][entity[1]]


def unfold(form: str, text: str) -> Iterator[list[str]]:
    """All ways in which ``text`` fills the one or two slots of ``form``, ordered by the slots' letters."""
    before, *rest = _pieces(form)
    after = rest[-1]
    if not (text.startswith(before) and text.endswith(after) and len(text) > len(before) + len(after)):
        return
    inner = text[len(before) : len(text) - len(after)]
    if len(rest) == 1:
        yield [inner]
        return
    middle, at = rest[0], inner.find(rest[0])
    while at >= 0:
        pair = [inner[:at], inner[at + len(middle) :]]
        yield pair if form.find("{a}") < form.find("{b}") else pair[::-1]
        at = inner.find(middle, at + 1)


@cache
def _pieces(form: str) -> list[str]:
    return form.replace("{s}", "\0").replace("{a}", "\0").replace("{b}", "\0").split("\0")


@cache
def _nouns() -> tuple[tuple[str, Relation], ...]:
    return tuple({(form, r): None for kind in TYPES for r in RELATIONS[kind] for form in r.nouns})


@cache
def _rules() -> tuple[Rule, ...]:
    rules: list[Rule] = []
    plain = {r: None for kind in TYPES for r in RELATIONS[kind] if r not in (WORKS, SUCCESSOR)}
    rules += [(form, _lookup(r)) for r in plain for form in r.questions]
    rules += [(form, _count) for form in WORKS.questions]
    rules += [(form, _after) for form in SUCCESSOR.questions]
    rules += [(form, _compare(c)) for c in COMPARISONS for form in c.questions]
    rules += [(form, _intersect(c)) for c in INTERSECTIONS for form in c.questions]
    rules += [(form, _same(c)) for c in SAMENESS for form in c.questions]
    return tuple(rules)


def _lookup(relation: Relation) -> Callable[[Solver, list[set[Entity]]], set[str]]:
    def meaning(solver: Solver, slots: list[set[Entity]]) -> set[str]:
        values = [solver.value(entity, relation) for entity in slots[0]]
        return {solver.facts.text(relation, value) for value in values if value is not None}

    return meaning


def _count(solver: Solver, slots: list[set[Entity]]) -> set[str]:
    author = solver.facts.values["work"]["author"]
    return {str(np.count_nonzero(author == i)) for kind, i in slots[0] if kind == "person"}


def _after(solver: Solver, slots: list[set[Entity]]) -> set[str]:
    heads = solver.facts.first_head
    return {
        solver.facts.text(SUCCESSOR, value)
        for kind, i in slots[0]
        if kind == "organisation" and ("person", int(heads[i])) in slots[1]
        if (value := solver.value((kind, i), SUCCESSOR)) is not None
    }


def _compare(rule: Comparison) -> Callable[[Solver, list[set[Entity]]], set[str]]:
    def meaning(solver: Solver, slots: list[set[Entity]]) -> set[str]:
        found: set[str] = set()
        for a in slots[0]:
            for b in slots[1]:
                x, y = solver.value(a, rule.relation), solver.value(b, rule.relation)
                if a[0] != rule.type or b[0] != rule.type or x is None or y is None:
                    continue
                found |= {
                    solver.name(e) for e, v in ((a, x), (b, y)) if v == (max if rule.greatest else min)(x, y)
                }
        return found

    return meaning


def _intersect(rule: Intersection) -> Callable[[Solver, list[set[Entity]]], set[str]]:
    def meaning(solver: Solver, slots: list[set[Entity]]) -> set[str]:
        columns = solver.facts.values[rule.type]
        fits = np.ones(len(solver.facts.names[rule.type]), dtype=bool)
        for relation, slot in ((rule.first, slots[0]), (rule.second, slots[1])):
            fits &= np.isin(columns[relation.name], [i for kind, i in slot if kind == relation.kind])
        return {solver.facts.names[rule.type][i] for i in np.flatnonzero(fits)}

    return meaning


def _same(rule: Sameness) -> Callable[[Solver, list[set[Entity]]], set[str]]:
    def meaning(solver: Solver, slots: list[set[Entity]]) -> set[str]:
        values = [
            (solver.value(a, rule.relation), solver.value(b, rule.relation))
            for a in slots[0]
            for b in slots[1]
            if a[0] == b[0] == rule.type
        ]
        return {"yes" if x == y else "no" for x, y in values if x is not None and y is not None}

    return meaning
