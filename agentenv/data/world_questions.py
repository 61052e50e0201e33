"""Asks questions about a world: draws facts, nests names in phrases, and keeps what the solver confirms."""

import random
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentenv.core.types import Task
from agentenv.data.world_config import ONLY_IF_NAMED
from agentenv.data.world_documents import document_id
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
    Listing,
    Relation,
)
from agentenv.data.world_solver import Solver
from agentenv.errors import ConfigurationError

Entity = tuple[str, int]
TRIES = 500  # draws before a family counts as exhausted
NUMBER_WORDS = ("zero", "one", "two", "three")


@dataclass(frozen=True)
class Phrase:
    """A name, or a nested noun phrase and the hops that lead from it to the entity."""

    text: str
    hops: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class CandidateQuestion:
    """A question that the solver has not checked yet."""

    text: str
    answer: str
    path: tuple[dict[str, str], ...]


def generate_questions(facts: Facts) -> Iterator[Task]:
    """The questions that the config asks for, each with exactly one answer.

    Raises:
        ConfigurationError: the world has fewer distinct questions than were asked for.
    """
    config = facts.config
    generator, solver = QuestionGenerator(facts), Solver(facts)
    seen: set[tuple[str, ...]] = set()
    families = deque(config.active_families())
    while families and len(seen) < config.questions:
        family = families[0]
        for _ in range(TRIES):
            candidate = generator.candidate(family)
            if candidate is None or (key := _key(family, candidate)) in seen or _leaks(family, candidate):
                continue
            if solver.answers(candidate.text) == {candidate.answer}:
                yield _task(facts, len(seen), family, candidate)
                seen.add(key)
                families.rotate(-1)
                break
        else:
            families.popleft()  # exhausted: the others go on
    if len(seen) < config.questions:
        raise ConfigurationError(
            f"A world of {config.documents} documents has only {len(seen)} such questions, "
            f"not {config.questions}; ask for fewer questions, more documents or other families."
        )


def _key(family: str, candidate: CandidateQuestion) -> tuple[str, ...]:
    return (family, *(part for hop in candidate.path for part in (hop["entity"], hop["relation"])))


def _leaks(family: str, candidate: CandidateQuestion) -> bool:
    """Whether the question holds its answer; a comparison of plain names does so by its form."""
    if family in ONLY_IF_NAMED or (family == "comparison" and len(candidate.path) == 2):
        return False
    return re.search(rf"\b{re.escape(candidate.answer)}\b", candidate.text, re.IGNORECASE) is not None


def _task(facts: Facts, number: int, family: str, candidate: CandidateQuestion) -> Task:
    config = facts.config
    data: dict[str, Any] = {
        "hops": len(candidate.path),
        "family": family,
        "supporting_ids": tuple(dict.fromkeys(hop["document"] for hop in candidate.path)),
        "path": candidate.path,
    }
    answers: tuple[str, ...] = (candidate.answer,)
    if family == "count":
        answers += (NUMBER_WORDS[int(candidate.answer)],)
    elif family == "list":
        answers += (", ".join(hop["answer"] for hop in candidate.path),)
    elif (
        candidate.answer.isdecimal()
        and candidate.path[-1]["relation"] in ("population", "guests")
        and len(candidate.answer) > 3
    ):
        answers += (f"{int(candidate.answer):,}",)
    return Task(f"{config.split}-{config.seed}-q{number}", candidate.text, answers, config.split, data)


def hop_of(facts: Facts, entity: Entity, relation: Relation) -> dict[str, str]:
    """One step of a path: the search for what ``relation`` says of ``entity``, where that stands, and what it is."""
    kind, i = entity
    name = facts.names[kind][i]
    return {
        "query": relation.search.format(s=name),
        "document": document_id(facts, facts.document(kind, relation, i)),
        "entity": name,
        "relation": relation.name,
        "answer": facts.text(relation, int(facts.values[kind][relation.name][i])),
    }


def listing_question(rule: Listing, hops: Sequence[dict[str, str]]) -> CandidateQuestion:
    """What ``rule`` asks of the entities of ``hops``, in their order, and the answer, which names each before its value."""
    *names, last = (hop["entity"] for hop in hops)
    text = rule.question.format(a=", ".join(names), b=last)
    return CandidateQuestion(
        text, ", ".join(f"{hop['entity']}: {hop['answer']}" for hop in hops), tuple(hops)
    )


class QuestionGenerator:
    """Draws question drafts from the facts of one world; a candidate may still be ambiguous."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._rng = random.Random(f"questions {facts.config.seed}")
        self._pointers = {kind: self._pointers_to(kind) for kind in TYPES if self._sources(kind)}
        self._plain = [(kind, r) for kind in TYPES for r in RELATIONS[kind] if r not in (WORKS, SUCCESSOR)]
        self._same = True  # whether the next yes_no question is to be a yes; they alternate
        self._makers: dict[str, Callable[[int], CandidateQuestion | None]] = {
            "lookup": self._chain,
            "bridge": self._chain,
            "comparison": self._comparison,
            "intersection": self._intersection,
            "count": self._count,
            "temporal": self._temporal,
            "yes_no": self._sameness,
            "superlative": self._superlative,
            "list": self._listing,
        }

    def candidate(self, family: str) -> CandidateQuestion | None:
        """A question of ``family`` with as many hops as the config allows; None where a draw led nowhere."""
        return self._makers[family](self._pick(self._facts.config.hops_of(family)))

    def _chain(self, hops: int) -> CandidateQuestion | None:
        kind, relation = self._pick(self._plain)
        i = self._one_of(kind, relation)
        if i is None or (phrase := self._nest((kind, i), hops - 1)) is None:
            return None
        last = self._hop((kind, i), relation)
        return CandidateQuestion(
            self._form(relation.questions).format(s=phrase.text), last["answer"], (*phrase.hops, last)
        )

    def _count(self, hops: int) -> CandidateQuestion | None:
        i = self._one_of("person", WORKS)
        if i is None or (phrase := self._nest(("person", i), hops - 1)) is None:
            return None
        last = self._hop(("person", i), WORKS)
        return CandidateQuestion(
            self._form(WORKS.questions).format(s=phrase.text), last["answer"], (*phrase.hops, last)
        )

    def _temporal(self, hops: int) -> CandidateQuestion | None:
        i = self._one_of("organisation", SUCCESSOR)
        if i is None or (phrase := self._nest(("organisation", i), hops - 1)) is None:
            return None
        head = self._facts.names["person"][int(self._facts.first_head[i])]
        last = self._hop(("organisation", i), SUCCESSOR)
        last["query"] += f" {head}"
        text = self._form(SUCCESSOR.questions).format(a=phrase.text, b=head)
        return CandidateQuestion(text, last["answer"], (*phrase.hops, last))

    def _comparison(self, hops: int) -> CandidateQuestion | None:
        rule = self._pick(COMPARISONS)
        i, j = self._one_of(rule.type, rule.relation), self._one_of(rule.type, rule.relation)
        if i is None or j is None or i == j:
            return None
        column = self._facts.values[rule.type][rule.relation.name]
        best = (max if rule.greatest else min)((i, j), key=lambda entity: int(column[entity]))
        pair = self._pair(rule.type, rule.relation, i, j, hops)
        if pair is None:
            return None
        a, b = pair
        text = self._form(rule.questions).format(a=a.text, b=b.text)
        return CandidateQuestion(text, self._facts.names[rule.type][best], a.hops + b.hops)

    def _superlative(self, hops: int) -> CandidateQuestion | None:
        """Which of ``hops`` entities is first, last or largest: as many look-ups, none of which waits for another."""
        rule = self._pick(COMPARISONS)
        entities = self._several(rule.type, rule.relation, hops)
        if len(entities) < hops:
            return None
        column = self._facts.values[rule.type][rule.relation.name]
        best = (max if rule.greatest else min)(entities, key=lambda entity: int(column[entity]))
        *names, last = (self._facts.names[rule.type][i] for i in entities)
        return CandidateQuestion(
            rule.superlative.format(a=", ".join(names), b=last),
            self._facts.names[rule.type][best],
            tuple(self._hop((rule.type, i), rule.relation) for i in entities),
        )

    def _listing(self, hops: int) -> CandidateQuestion | None:
        """The values of ``hops`` entities: as many look-ups, all of them needed, none of which waits for another."""
        rule = self._pick(LISTINGS)
        entities = self._several(rule.type, rule.relation, hops)
        if len(entities) < hops:
            return None
        return listing_question(rule, [self._hop((rule.type, i), rule.relation) for i in entities])

    def _sameness(self, hops: int) -> CandidateQuestion | None:
        rule = self._pick(SAMENESS)
        i = self._one_of(rule.type, rule.relation)
        if i is None:
            return None
        column = self._facts.values[rule.type][rule.relation.name]
        others = np.flatnonzero((column >= 0) & ((column == column[i]) == self._same))
        j = int(self._pick(others)) if len(others) else i
        if i == j or (pair := self._pair(rule.type, rule.relation, i, j, hops)) is None:
            return None
        a, b = pair
        answer = "yes" if self._same else "no"
        self._same = not self._same
        return CandidateQuestion(
            self._form(rule.questions).format(a=a.text, b=b.text), answer, a.hops + b.hops
        )

    def _intersection(self, hops: int) -> CandidateQuestion | None:
        rule = self._pick(INTERSECTIONS)
        columns = self._facts.values[rule.type]
        x, y = columns[rule.first.name], columns[rule.second.name]
        both = np.flatnonzero((x >= 0) & (y >= 0))
        if not len(both):
            return None
        i = int(self._pick(both))
        a = self._facts.names[rule.first.kind][int(x[i])]
        b = self._nest((rule.second.kind, int(y[i])), hops - 2)
        if b is None:
            return None
        found, check = self._hop((rule.type, i), rule.first), self._hop((rule.type, i), rule.second)
        found["query"] = rule.search.format(a=a, b=check["answer"])
        found["answer"] = found["entity"]
        text = self._form(rule.questions).format(a=a, b=b.text)
        return CandidateQuestion(text, found["entity"], (*b.hops, found, check))

    def _pair(self, kind: str, relation: Relation, i: int, j: int, hops: int) -> tuple[Phrase, Phrase] | None:
        """Both sides of a question, with ``hops - 2`` nestings shared out at random."""
        left = self._rng.randint(0, hops - 2)
        a, b = self._nest((kind, i), left), self._nest((kind, j), hops - 2 - left)
        if a is None or b is None:
            return None
        return (
            Phrase(a.text, (*a.hops, self._hop((kind, i), relation))),
            Phrase(b.text, (*b.hops, self._hop((kind, j), relation))),
        )

    def _nest(self, entity: Entity, depth: int) -> Phrase | None:
        """A phrase of ``depth`` hops that stands for ``entity`` and passes no entity twice."""
        entities = [entity]
        relations: list[Relation] = []
        for _ in range(depth):
            kind, i = entities[-1]
            if kind not in self._pointers:  # no fact has a work or an event as its value
                return None
            values, numbers, subjects = self._pointers[kind]
            low, high = np.searchsorted(values, [i, i + 1]).tolist()
            if low == high:
                return None
            at = self._rng.randrange(low, high)
            other, relation = self._sources(kind)[int(numbers[at])]
            entities.append((other, int(subjects[at])))
            relations.append(relation)
        if len(set(entities)) < len(entities):
            return None
        text, hops = self._name(entities[-1]), []
        for step, relation in zip(entities[:0:-1], relations[::-1], strict=True):
            text = self._form(relation.nouns).format(s=text)
            hops.append(self._hop(step, relation))
        return Phrase(text, tuple(hops))

    def _pointers_to(self, kind: str) -> tuple[Any, Any, Any]:
        """All facts with values of type ``kind`` as columns (value, relation number, subject), by value."""
        columns = [self._facts.values[other][r.name] for other, r in self._sources(kind)]
        values = np.concatenate(columns)
        numbers = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
        subjects = np.concatenate([np.arange(len(column)) for column in columns])
        by_value = values.argsort(kind="stable")
        return values[by_value], numbers[by_value], subjects[by_value]

    @staticmethod
    def _sources(kind: str) -> list[tuple[str, Relation]]:
        return [(other, r) for other in TYPES for r in RELATIONS[other] if r.kind == kind and r.nouns]

    def _hop(self, entity: Entity, relation: Relation) -> dict[str, str]:
        return hop_of(self._facts, entity, relation)

    def _name(self, entity: Entity) -> str:
        return self._facts.names[entity[0]][entity[1]]

    def _one_of(self, kind: str, relation: Relation) -> int | None:
        known = self._facts.known(kind, relation.name)
        return int(self._pick(known)) if len(known) else None

    def _several(self, kind: str, relation: Relation, count: int) -> list[int]:
        """``count`` different entities of which ``relation`` is known; fewer where one was drawn twice."""
        drawn = [self._one_of(kind, relation) for _ in range(count)]
        return [i for i in dict.fromkeys(drawn) if i is not None]

    def _form(self, forms: tuple[str, ...]) -> str:
        return str(self._pick(forms[: self._facts.config.paraphrase]))

    def _pick(self, items: Any) -> Any:
        return items[int(self._rng.random() * len(items))]
