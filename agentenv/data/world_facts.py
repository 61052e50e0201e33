"""The ground truth of a FictionalWorld: who there is, what is true of them, and on which page it stands.

Facts are columns of integers, one a relation and type, so that a world of a million documents fits in memory.
"""

import random
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from agentenv.data.world_config import WORDS_PER_FACT, WorldConfig
from agentenv.data.world_grammar import (
    BIRTHPLACE,
    EMPLOYER,
    FIELDS,
    OCCUPATIONS,
    RELATIONS,
    TYPES,
    Relation,
)
from agentenv.data.world_names import NameGenerator

Ints = NDArray[np.int64]
Places = NDArray[np.int8]

# Share of each type in the documents, and how many of these belong to entities with two pages.
SHARES = {"person": 0.40, "organisation": 0.18, "place": 0.16, "work": 0.16, "event": 0.10}
TWO_PAGES = {"person": 0.4, "organisation": 0.3, "place": 0.2, "work": 0.15, "event": 0.15}

# People without a page of their own, for each document and unit of ``indirect``, and their facts, which the
# pages of towns and organisations state: those that a vector search still finds there.
HIDDEN_PEOPLE = 1.4
INDIRECT = (BIRTHPLACE, EMPLOYER)

_TIMEOUT = 1000  # vain tries for a neighbour's name in a row, after which there is none

# Years keep the order of a plausible life: towns, then births, then what these people do.
RANGES = {
    ("person", "birth_year"): (1850, 1930),
    ("organisation", "founding_year"): (1950, 2020),
    ("place", "founding_year"): (1100, 1800),
    ("place", "population"): (1000, 99999),
    ("work", "publication_year"): (1950, 2020),
    ("work", "pages"): (60, 900),
    ("event", "event_year"): (1950, 2020),
    ("event", "guests"): (100, 9999),
}

# The page on which a fact stands: one of its subject or of its value.
NOWHERE, PAGE_1, PAGE_2, GUEST_1, GUEST_2 = range(5)


@dataclass(frozen=True)
class Facts:
    """Columns of one world; ``i`` counts the entities of a type.

    Attributes:
        config: the dials.
        names: names of the entities of each type, and of the tables "region", "occupation" and "field".
        values: by type and relation, the value of each entity: an index into ``names`` or a number; -1
            where it is not stated.
        where: by type and relation, the page on which the fact stands (``NOWHERE`` to ``GUEST_2``).
        first_head: by organisation, the person that ``successor`` followed.
        pages: by type, number of pages of each entity, 0 to 2.
        start: by type, the document number of each entity's first page; the second follows it.
        order: (type number, entity) of all entities in the order of their documents, shape (entities, 2).
        guests: by document number, the fact (relation, person) of somebody without a page that stands there.
    """

    config: WorldConfig
    names: dict[str, list[str]]
    values: dict[str, dict[str, Ints]]
    where: dict[str, dict[str, Places]]
    first_head: Ints
    pages: dict[str, Ints]
    start: dict[str, Ints]
    order: Ints
    guests: dict[int, tuple[Relation, int]] = field(default_factory=dict)

    def known(self, kind: str, relation: str) -> Ints:
        """The entities of type ``kind`` whose ``relation`` is stated."""
        return np.flatnonzero(self.where[kind][relation])

    def text(self, relation: Relation, value: int) -> str:
        """A value as documents and answers write it."""
        return str(value) if relation.kind == "number" else self.names[relation.kind][value]

    def document(self, kind: str, relation: Relation, i: int) -> int:
        """The number of the document in which the fact stands."""
        where = int(self.where[kind][relation.name][i])
        if where in (GUEST_1, GUEST_2):
            return int(self.start[relation.kind][self.values[kind][relation.name][i]]) + where - GUEST_1
        return int(self.start[kind][i]) + where - PAGE_1

    @cached_property
    def works_of(self) -> dict[int, list[int]]:
        """Works by author."""
        works: dict[int, list[int]] = {}
        for work, author in enumerate(self.values["work"]["author"].tolist()):
            works.setdefault(author, []).append(work)
        return works


def generate_facts(config: WorldConfig) -> Facts:
    """Draws the ground truth of the world that ``config`` describes."""
    rng = np.random.default_rng([config.seed, config.documents])
    pages = {kind: _pages(rng, kind, config) for kind in TYPES}
    names = _names(config, {kind: len(pages[kind]) for kind in TYPES})
    order, start = _order(rng, pages)
    values = {kind: {r.name: _values(rng, kind, r, names) for r in RELATIONS[kind]} for kind in TYPES}
    values["work"]["author"] = rng.integers(0, max(1, len(names["work"]) // 2), len(names["work"]))
    values["person"]["spouse"] = _couples(rng, len(names["person"]))
    values["person"]["works"] = _work_counts(names, values["work"]["author"])
    first_head = _others(rng, values["organisation"]["successor"], len(names["person"]))
    where = {kind: _where(rng, kind, pages[kind], values[kind], config.words) for kind in TYPES}
    facts = Facts(config, names, values, where, first_head, pages, start, order)
    _invite(rng, facts)
    for kind in TYPES:
        for relation, column in facts.values[kind].items():
            column[where[kind][relation] == NOWHERE] = -1
    return facts


def _pages(rng: np.random.Generator, kind: str, config: WorldConfig) -> Ints:
    """Pages of each entity of a type, so that the types together fill the documents exactly."""
    documents = config.documents
    others = sum(round(documents * SHARES[other]) for other in TYPES[1:])
    total = documents - others if kind == TYPES[0] else round(documents * SHARES[kind])
    double = int(total * TWO_PAGES[kind] / 2)
    hidden = round(documents * config.indirect * HIDDEN_PEOPLE) if kind == "person" else 0
    return rng.permutation(np.repeat([2, 1, 0], [double, total - 2 * double, hidden]))


def _names(config: WorldConfig, counts: dict[str, int]) -> dict[str, list[str]]:
    rng = random.Random(f"names {config.seed} {config.split}")
    namer = NameGenerator(rng, config.split)
    names = {"occupation": list(OCCUPATIONS), "field": list(FIELDS)}
    for kind, count in (*counts.items(), ("region", min(500, 4 + counts["place"] // 10))):
        near = 0 if kind == "region" else round(count * config.distractors / (1 + config.distractors))
        own = [namer.name(kind) for _ in range(count - near)]
        twins = _twins(rng, namer, kind, own, near)
        names[kind] = own + twins + [namer.name(kind) for _ in range(near - len(twins))]
        rng.shuffle(names[kind])
    return names


def _twins(rng: random.Random, namer: NameGenerator, kind: str, own: list[str], count: int) -> list[str]:
    """Nearly the same names as some of ``own``; fewer than ``count`` where a small stock has no more neighbours."""
    twins: list[str] = []
    misses = 0
    while len(twins) < count and misses < _TIMEOUT:
        twin = namer.similar_name(rng.choice(own), kind)
        twins += [twin] if twin else []
        misses = 0 if twin else misses + 1
    return twins


def _order(rng: np.random.Generator, pages: dict[str, Ints]) -> tuple[Ints, dict[str, Ints]]:
    """Mixes the entities of all types, and numbers their documents."""
    sizes = [len(pages[kind]) for kind in TYPES]
    entities = np.stack(
        [np.repeat(np.arange(len(TYPES)), sizes), np.concatenate([np.arange(n) for n in sizes])], 1
    )
    mixed = rng.permutation(len(entities))
    lengths = np.concatenate([pages[kind] for kind in TYPES])[mixed]
    numbers = np.empty(len(mixed), dtype=np.int64)
    numbers[mixed] = np.cumsum(lengths) - lengths
    return entities[mixed], dict(zip(TYPES, np.split(numbers, np.cumsum(sizes)[:-1]), strict=True))


def _values(rng: np.random.Generator, kind: str, relation: Relation, names: dict[str, list[str]]) -> Ints:
    count = len(names[kind])
    if relation.kind != "number":
        drawn = rng.integers(0, len(names[relation.kind]), count)
        # Nobody is taught by himself: a person who drew himself takes the next one.
        return (
            np.where(drawn == np.arange(count), (drawn + 1) % count, drawn)
            if relation.kind == kind
            else drawn
        )
    low, high = RANGES.get((kind, relation.name), (0, 1))
    return rng.integers(low, high, count)


def _couples(rng: np.random.Generator, count: int) -> Ints:
    """Half of the people are married, each to one who is married to them; -1 for the others."""
    spouse = np.full(count, -1, dtype=np.int64)
    pairs = rng.permutation(count)[: count // 4 * 2].reshape(-1, 2)
    spouse[pairs[:, 0]], spouse[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
    return spouse


def _work_counts(names: dict[str, list[str]], author: Ints) -> Ints:
    """How many works each person wrote; -1 where there is none or their list is too long for a sentence."""
    words = np.array([name.count(" ") + 1 for name in names["work"]])
    counts = np.bincount(author, minlength=len(names["person"]))
    lengths = np.bincount(author, weights=words, minlength=len(names["person"]))
    return np.where((counts > 0) & (lengths <= WORDS_PER_FACT - 5), counts, -1)


def _others(rng: np.random.Generator, taken: Ints, count: int) -> Ints:
    """For each entry of ``taken`` another index below ``count``."""
    return (taken + rng.integers(1, count, len(taken))) % count


def _where(
    rng: np.random.Generator, kind: str, pages: Ints, values: dict[str, Ints], words: int
) -> dict[str, Places]:
    """Chooses which facts are stated, two or more a page, and on which page."""
    relations = [r.name for r in RELATIONS[kind]]
    possible = np.stack([values[r] >= 0 for r in relations], 1)
    luck = rng.random(possible.shape)
    if kind == "work":
        luck[:, relations.index("author")] = -1.0  # always stated, so that counting works is fair
    if kind == "person":
        luck[:, relations.index("works")] *= 0.2  # few people wrote, and only a list of works can be counted
    luck[~possible] = 2.0
    rank = luck.argsort(1).argsort(1)
    most = max(2, words // WORDS_PER_FACT)
    stated = rng.integers(2, most + 1, len(pages))
    stated = np.where(pages == 2, np.maximum(4, rng.integers(4, 2 * most + 1, len(pages))), stated)
    shown = possible & (rank < stated[:, None]) & (pages[:, None] > 0)
    page = np.where(pages[:, None] == 2, 1 + rank % 2, 1) * shown
    return {name: page[:, j].astype(np.int8) for j, name in enumerate(relations)}


def _invite(rng: np.random.Generator, facts: Facts) -> None:
    """States facts of people without a page on pages of the values that have room for one more sentence."""
    stated = sum(np.count_nonzero(column) for columns in facts.where.values() for column in columns.values())
    share = facts.config.indirect
    missing = round(share * stated / (1 - share) / len(INDIRECT))
    roomy = _load(facts) < facts.config.words // WORDS_PER_FACT
    hidden = np.flatnonzero(facts.pages["person"] == 0)
    for relation in INDIRECT:
        hosts = np.repeat(np.arange(len(facts.pages[relation.kind])), facts.pages[relation.kind])
        second = np.diff(hosts, prepend=-1) == 0  # whether this is the second page of its entity
        numbers = facts.start[relation.kind][hosts] + second
        free = rng.permutation(np.flatnonzero(roomy[numbers]))[:missing]
        for i, host in zip(rng.permutation(hidden).tolist(), free.tolist(), strict=False):
            facts.guests[int(numbers[host])] = (relation, i)
            facts.values["person"][relation.name][i] = hosts[host]
            facts.where["person"][relation.name][i] = GUEST_2 if second[host] else GUEST_1


def _load(facts: Facts) -> Ints:
    """Facts on each page of the corpus."""
    load = np.zeros(facts.config.documents, dtype=np.int64)
    for kind in TYPES:
        for column in facts.where[kind].values():
            for page in (PAGE_1, PAGE_2):
                load[facts.start[kind][column == page] + page - 1] += 1
    return load
