"""HDS-QA: questions of parallel searches and a further one (HybridDeepSearcher, Ko et al. 2025, arXiv:2508.19113).

A parallel-hop question describes an entity by several features instead of its name, and a search of its own finds each. A
hybrid-hop question asks a further fact of the entity that is so described. Over a FictionalWorld both are proved: a feature
phi is a fact, and S(phi) the set of entities of which it holds. The description is unique if the intersection of its sets is
{e}, and parallel if no set alone is {e} and each feature stands on a document of its own. As published, no single search may
answer the question: that for its own words must not find the document of the answer, nor one for a feature all documents.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any

import numpy as np

from agentenv.core.types import Task
from agentenv.data.world_facts import Facts
from agentenv.data.world_grammar import (
    AUTHOR,
    BIRTHPLACE,
    EMPLOYER,
    FIELD,
    FOUNDER,
    MAYOR,
    MENTOR,
    OCCUPATION,
    REGION,
    RELATIONS,
    SEAT,
    SUBJECT,
    SUCCESSOR,
    VENUE,
    WINNER,
    WORKS,
    Relation,
)
from agentenv.data.world_questions import hop_of
from agentenv.errors import ConfigurationError

NOUNS = {
    "person": "the person who",
    "organisation": "the organisation that",
    "place": "the town that",
    "work": "the work that",
    "event": "the event that",
}
CLAUSES: Mapping[Relation, tuple[str, str]] = {
    BIRTHPLACE: ("was born in {v}", "born in the town of {v}"),
    OCCUPATION: ("works as a {v}", "works as a {v}"),
    EMPLOYER: ("is employed by {v}", "is employed by {v}"),
    MENTOR: ("was taught by {v}", "was taught by {v}"),
    SEAT: ("is based in {v}", "is based in {v}"),
    FOUNDER: ("was founded by {v}", "founded by {v}"),
    FIELD: ("studies {v}", "studies {v}"),
    REGION: ("lies in {v}", "lies in the region of {v}"),
    MAYOR: ("has {v} as its mayor", "mayor {v}"),
    AUTHOR: ("was written by {v}", "was written by {v}"),
    SUBJECT: ("is about {v}", "is about {v}"),
    VENUE: ("took place in {v}", "took place in {v}"),
    WINNER: ("was won by {v}", "was won by {v}"),
}
"""By relation, the clause that describes an entity by its value, and the search for it."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One fact of an entity."""

    relation: Relation
    value: int


@dataclass(frozen=True)
class HybridConfig:
    """What questions are made.

    Raises:
        ConfigurationError: a number is out of range.
    """

    questions: int = 100
    fewest: int = 2
    """Least number of features of a description."""
    most: int = 3
    """Greatest number of features."""
    fan: int = 3
    """Most entities that share one feature: more than a search shows of them would hide the entity."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not (2 <= self.fewest <= self.most <= 4) or min(self.questions, self.fan - 1) < 1:
            raise ConfigurationError(
                f"fewest={self.fewest} and most={self.most} must be a range within 2-4, questions={self.questions} at least "
                f"1 and fan={self.fan} at least 2"
            )


def entities_with(facts: Facts, kind: str, feature: Feature) -> frozenset[int]:
    """S(phi): the entities of type ``kind`` of which the corpus states ``feature``."""
    column = facts.values[kind][feature.relation.name]
    return frozenset(np.flatnonzero(column == feature.value).tolist())


def is_parallel(sets: Sequence[frozenset[int]], entity: int) -> bool:
    """Whether the intersection of ``sets`` is ``entity`` alone, and none of them is without the others.

    Nor may a feature be of no use: each narrows down what the others leave.
    """
    if not sets or frozenset.intersection(*sets) != {entity} or any(len(one) == 1 for one in sets):
        return False
    if len(sets) == 2:
        return True
    rest = (frozenset.intersection(*sets[:i], *sets[i + 1 :]) for i in range(len(sets)))
    return all(len(left) > 1 for left in rest)


def hybrid_questions(
    facts: Facts, config: HybridConfig, search: Callable[[str], Collection[str]]
) -> Iterator[Task]:
    """The questions, each proved unique, parallel and hybrid; at most one of an entity.

    Args:
        facts: Of the world.
        config: What questions are made.
        search: The ids of the documents that one search finds; a question that one search answers is left out.

    Raises:
        ConfigurationError: the world has fewer.
    """
    rng = Random(f"{config.seed}/hds-qa")
    drawn = [(kind, i) for kind in NOUNS for i in range(len(facts.names[kind]))]
    rng.shuffle(drawn)
    count = 0
    for kind, i in drawn:
        if count == config.questions:
            return
        task = _question(facts, kind, i, config, rng, count)
        if task is not None and not _is_found_at_once(task, search):
            count += 1
            yield task
    if count < config.questions:
        raise ConfigurationError(
            f"a world of {facts.config.documents} documents has only {count} such questions, not {config.questions}; ask "
            "for fewer questions, more documents, or a greater fan"
        )


def _is_found_at_once(task: Task, search: Callable[[str], Collection[str]]) -> bool:
    """Whether one search answers ``task``: its own words find the page of the answer, or a feature's all that is needed.

    The search for a feature may show the page of the answer among those of the other entities that share the feature; whose
    answer is asked for, only the other features tell.
    """
    needed, (*described, last) = set(task.data["supporting_ids"]), task.data["path"]
    return last["document"] in search(task.question) or any(
        needed <= set(search(hop["query"])) for hop in described
    )


def _question(facts: Facts, kind: str, i: int, config: HybridConfig, rng: Random, number: int) -> Task | None:
    """A question about entity ``i``; None where its facts do not allow one."""
    features = [
        Feature(relation, value)
        for relation in RELATIONS[kind]
        if relation in CLAUSES and (value := int(facts.values[kind][relation.name][i])) >= 0
    ]
    shared = [(f, s) for f in features if 1 < len(s := entities_with(facts, kind, f)) <= config.fan]
    chosen = [
        some
        for size in range(config.fewest, config.most + 1)
        for some in combinations(shared, size)
        if is_parallel([sharing for _, sharing in some], i) and _stand_apart(facts, (kind, i), some)
    ]
    if not chosen:
        return None
    described = [feature for feature, _ in rng.choice(chosen)]
    asked = [
        relation
        for relation in RELATIONS[kind]
        if relation not in (WORKS, SUCCESSOR)
        and relation not in {feature.relation for feature in described}
        and facts.values[kind][relation.name][i] >= 0
    ]
    if not asked:
        return None
    return _task(facts, (kind, i), described, rng.choice(asked), number)


def _stand_apart(
    facts: Facts, entity: tuple[str, int], some: Sequence[tuple[Feature, frozenset[int]]]
) -> bool:
    """Whether each of these features of ``entity`` stands on a document of its own."""
    documents = {hop_of(facts, entity, feature.relation)["document"] for feature, _ in some}
    return len(documents) == len(some)


def _task(
    facts: Facts, entity: tuple[str, int], described: Sequence[Feature], asked: Relation, number: int
) -> Task:
    kind, i = entity
    name = facts.names[kind][i]
    path, clauses, features = [], [], []
    for feature in described:
        value = facts.text(feature.relation, feature.value)
        clause, search = CLAUSES[feature.relation]
        clauses.append(clause.format(v=value))
        path.append(
            {**hop_of(facts, entity, feature.relation), "query": search.format(v=value), "answer": name}
        )
        sharing = entities_with(facts, kind, feature)
        features.append({"clause": clauses[-1], "holds_of": [facts.names[kind][j] for j in sorted(sharing)]})
    last = hop_of(facts, entity, asked)
    description = f"{NOUNS[kind]} {', '.join(clauses[:-1])} and {clauses[-1]}"
    data: dict[str, Any] = {
        "hops": len(path) + 1,
        "family": "hds-qa",
        "parallel": len(path),
        "entity": name,
        "features": features,
        "supporting_ids": list(dict.fromkeys(hop["document"] for hop in (*path, last))),
        "path": [*path, last],
    }
    question = asked.questions[0].format(s=description)
    return Task(f"hds-qa-{number}", question, (last["answer"],), facts.config.split, data)
