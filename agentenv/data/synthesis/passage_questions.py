"""Questions that rules make from the passages of a corpus: comparisons of two things, and facts from the page of another.

Sets of real questions over real passages have few for training. From what the pages say in a fixed form (``passage_facts``)
questions of the kinds of 2WikiMultihopQA (Ho et al. 2020, arXiv:2011.01060, section 2) are made, with answers that follow
from the passages: who of two was born or died first or last, which of two films came out first or has the older director,
whether two persons, films or places are of the same country, and dates, places and nationality of the director of a film,
the performer of a song or the father of a person.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from random import Random

from agentenv.core.types import Document, Task
from agentenv.data.overlap import FAMILY
from agentenv.data.synthesis.passage_facts import COUNTRIES, Day, PageFacts, day_of, facts_of
from agentenv.errors import ConfigurationError

_FIRST = {
    "birth": (
        "Who was born first, {a} or {b}?",
        "Who was born earlier, {a} or {b}?",
        "Who is older, {a} or {b}?",
        "Was {a} or {b} born first?",
    ),
    "death": ("Who died first, {a} or {b}?", "Who died earlier, {a} or {b}?"),
    "release": (
        "Which film was released first, {a} or {b}?",
        "Which film was released earlier, {a} or {b}?",
        "Which film came out earlier, {a} or {b}?",
        "Which film came out first, {a} or {b}?",
    ),
    "director": (
        "Which film has the director who was born earlier, {a} or {b}?",
        "Which film has the director born first, {a} or {b}?",
        "Which film has the director who is older, {a} or {b}?",
        "Which film whose director was born first, {a} or {b}?",
    ),
    "director_death": (
        "Which film has the director who died earlier, {a} or {b}?",
        "Which film has the director died first, {a} or {b}?",
    ),
}
_LAST = {
    "birth": ("Who was born later, {a} or {b}?", "Who is younger, {a} or {b}?"),
    "death": ("Who died later, {a} or {b}?",),
    "release": (
        "Which film was released more recently, {a} or {b}?",
        "Which film was released later, {a} or {b}?",
        "Which film came out later, {a} or {b}?",
    ),
    "director": (
        "Which film has the director who was born later, {a} or {b}?",
        "Which film has the director who is younger, {a} or {b}?",
        "Which film has the director born later, {a} or {b}?",
    ),
    "director_death": (
        "Which film has the director who died later, {a} or {b}?",
        "Which film has the director died later, {a} or {b}?",
    ),
}
_SAME = {
    "persons": (
        "Were {a} and {b} of the same nationality?",
        "Do {a} and {b} have the same nationality?",
        "Are {a} and {b} from the same country?",
        "Does {a} have the same nationality as {b}?",
    ),
    "films": (
        "Did the movies {a} and {b}, originate from the same country?",
        "Are {a} and {b} from the same country?",
    ),
    "places": (
        "Are {a} and {b} located in the same country?",
        "Are both {a} and {b} located in the same country?",
        "Are {a} and {b} both located in the same country?",
    ),
    "directors": (
        "Are the directors of both films {a} and {b} from the same country?",
        "Do both films {a} and {b} have the directors from the same country?",
        "Do director of film {a} and director of film {b} share the same nationality?",
        "Are director of film {a} and director of film {b} both from the same country?",
    ),
}
_CHAIN = {
    "birth": ("When was {who} born?", "What is the date of birth of {who}?", "When is {who}'s birthday?"),
    "death": ("When did {who} die?", "What is the date of death of {who}?"),
    "birth_place": ("Where was {who} born?", "What is the place of birth of {who}?"),
    "death_place": ("Where did {who} die?", "Where was the place of death of {who}?"),
    "nationality": ("What nationality is {who}?", "Which country {who} is from?"),
}
_PLACES = ("birth_place", "death_place")
_WHO = {
    "director": "the director of film {a}",
    "composer": "the composer of film {a}",
    "performer": "the performer of song {a}",
    "founder": "the founder of {a}",
}
_RELATIVES = {
    ("parent", "male"): "{a}'s father",
    ("parent", "female"): "{a}'s mother",
    ("spouse", "male"): "{a}'s husband",
    ("spouse", "female"): "{a}'s wife",
}

_TRIES = 1000
"""Pairs that are drawn before there is taken to be none that can be compared."""
_OLD_ROUNDS = 200
"""Rounds without a new question after which there is taken to be none left."""


@dataclass(frozen=True)
class Dated:
    """Something that a passage gives a date."""

    name: str
    """The passage's title without what stands in brackets behind it."""
    date: Day
    supports: tuple[str, ...]
    """Ids of the passages from which the date follows."""
    text: str
    """The date as its passage writes it."""


@dataclass(frozen=True)
class _OfCountry:
    """Something that passages give a country."""

    name: str
    country: str
    supports: tuple[str, ...]


_Made = tuple[str, tuple[str, ...], tuple[str, ...], int]
"""Question, answers, supporting passages and hops."""


def passage_questions(
    documents: Iterable[Document],
    count: int,
    seed: int,
    excluded: Collection[str] = (),
    taken: Collection[str] = (),
) -> tuple[Task, ...]:
    """``count`` questions, of each kind as many as of every other.

    Args:
        documents: The passages.
        count: How many questions.
        seed: Of the draw.
        excluded: Titles of passages that no question is made of, such as those that answer the questions of a test.
        taken: Ids that no question may have.

    Raises:
        ConfigurationError: the passages do not give so many.
    """
    used = set(taken)
    ids = (one for one in map(f"{FAMILY}:{{}}".format, count_from(0)) if one not in used)
    makers = _makers(facts_of(documents, excluded), Random(seed))
    tasks: dict[str, Task] = {}
    old = 0  # rounds since the last new question
    while len(tasks) < count:
        before = len(tasks)
        for made in (next(maker, None) for maker in makers):
            if made is not None:
                question, answers, supports, hops = made
                data = {"family": FAMILY, "hops": hops, "supporting_ids": supports}
                # A question that is drawn twice counts once.
                if question not in tasks:
                    tasks[question] = Task(next(ids), question, answers, data=data)
        old = 0 if len(tasks) > before else old + 1
        if old > _OLD_ROUNDS:
            raise ConfigurationError(
                f"the passages give {len(tasks)} questions by rules, and {count} are asked for"
            )
    return tuple(tasks.values())[:count]


def _makers(facts: Mapping[str, PageFacts], rng: Random) -> list[Iterator[_Made]]:
    """A source of questions of each kind."""
    dated, of_country = dated_things(facts), _of_country(facts)
    return [
        *(_comparisons(kind, dated[kind], rng) for kind in _FIRST),
        *(_alike(kind, of_country[kind], rng) for kind in _SAME),
        *(_chains(what, facts, rng) for what in _CHAIN),
        *(_own_facts(what, facts, rng) for what in _CHAIN),
    ]


def dated_things(facts: Mapping[str, PageFacts]) -> Mapping[str, list[Dated]]:
    """Births and deaths of persons, releases of films, and films by the births and deaths of their directors."""

    def own(what: Callable[[PageFacts], str]) -> list[Dated]:
        dates = ((one, what(one)) for one in facts.values())
        return [Dated(one.name, day_of(text), (one.id,), text) for one, text in dates if text]

    def of_director(what: Callable[[PageFacts], str]) -> list[Dated]:
        dates = ((film, person, what(person)) for film, person in _directed(facts))
        return [
            Dated(film.name, day_of(text), (film.id, person.id), text) for film, person, text in dates if text
        ]

    return {
        "birth": own(lambda one: one.birth),
        "death": own(lambda one: one.death),
        "release": own(lambda one: one.release),
        "director": of_director(lambda one: one.birth),
        "director_death": of_director(lambda one: one.death),
    }


def _directed(facts: Mapping[str, PageFacts]) -> Iterator[tuple[PageFacts, PageFacts]]:
    """Films with their directors, where both have a page."""
    for film in facts.values():
        person = facts.get(film.related.get("director", ""))
        if film.release and person is not None:
            yield film, person


def _of_country(facts: Mapping[str, PageFacts]) -> Mapping[str, list[_OfCountry]]:
    """Persons and films by nationality, places by country, and films by the nationality of their directors."""
    persons = [one for one in facts.values() if one.birth and one.nationality]
    films = [one for one in facts.values() if one.release and one.nationality]
    places = [one for one in facts.values() if one.country]
    return {
        "persons": [_OfCountry(one.name, COUNTRIES[one.nationality], (one.id,)) for one in persons],
        "films": [_OfCountry(one.name, COUNTRIES[one.nationality], (one.id,)) for one in films],
        "places": [_OfCountry(one.name, one.country, (one.id,)) for one in places],
        "directors": [
            _OfCountry(film.name, COUNTRIES[person.nationality], (film.id, person.id))
            for film, person in _directed(facts)
            if person.nationality
        ],
    }


def _comparisons(kind: str, things: Sequence[Dated], rng: Random) -> Iterator[_Made]:
    """Comparisons of two, half of them for the first, without end while two are found that can be compared."""
    if len({one.date[0] for one in things}) < 2:
        return
    while True:
        pairs = (rng.sample(list(things), 2) for _ in range(_TRIES))
        pair = next((pair for pair in pairs if _comparable(*pair)), None)
        if pair is None:
            return
        one, other = pair
        early, late = sorted((one, other), key=lambda thing: thing.date)
        wording, right = (
            (rng.choice(_FIRST[kind]), early) if rng.random() < 0.5 else (rng.choice(_LAST[kind]), late)
        )
        question = wording.format(a=one.name, b=other.name)
        yield question, (right.name,), (*one.supports, *other.supports), len(one.supports + other.supports)


def _comparable(one: Dated, other: Dated) -> bool:
    """Whether two things differ by a year, so that a passage that is cut behind it still answers, and by their names."""
    return _apart(one.name, other.name) and one.date[0] != other.date[0]


def _apart(one: str, other: str) -> bool:
    return one not in other and other not in one


def _alike(kind: str, things: Sequence[_OfCountry], rng: Random) -> Iterator[_Made]:
    """Whether two are of one country, half of them yes, without end while there are such pairs."""
    by_country: dict[str, list[_OfCountry]] = {}
    for one in things:
        by_country.setdefault(one.country, []).append(one)
    several = [group for group in by_country.values() if len({one.name for one in group}) > 1]
    if not several or len(by_country) < 2:
        return
    while True:
        same = rng.random() < 0.5
        pairs = (rng.sample(rng.choice(several) if same else list(things), 2) for _ in range(_TRIES))
        fit = (pair for pair in pairs if _apart(pair[0].name, pair[1].name))
        pair = next((pair for pair in fit if (pair[0].country == pair[1].country) == same), None)
        if pair is None:
            return
        one, other = pair
        question = rng.choice(_SAME[kind]).format(a=one.name, b=other.name)
        supports = (*one.supports, *other.supports)
        yield question, ("yes" if same else "no",), supports, len(supports)


def _chains(what: str, facts: Mapping[str, PageFacts], rng: Random) -> Iterator[_Made]:
    """A fact of the director, performer, father and so on of each thing that has one, in a random order."""
    found = []
    for one in facts.values():
        for relation, name in one.related.items():
            other = facts.get(name)
            if other is None:
                continue
            wording = _WHO.get(relation) or _RELATIVES.get((relation, other.sex))
            answer: str = getattr(other, what)
            if wording and answer and (relation in ("performer", "founder") or one.release or one.birth):
                found.append((wording.format(a=one.name), _answers(what, answer), (one.id, other.id)))
    for who, answers, supports in rng.sample(found, len(found)):
        yield rng.choice(_CHAIN[what]).format(who=who), answers, supports, 2


def _own_facts(what: str, facts: Mapping[str, PageFacts], rng: Random) -> Iterator[_Made]:
    """A fact of each person, which one page says, in a random order."""
    found = [one for one in facts.values() if getattr(one, what) and one.birth]
    for one in rng.sample(found, len(found)):
        question = rng.choice(_CHAIN[what]).format(who=one.name)
        yield question, _answers(what, getattr(one, what)), (one.id,), 1


def _answers(what: str, answer: str) -> tuple[str, ...]:
    """What is right: a place with its country or state and without."""
    return tuple(dict.fromkeys((answer, answer.partition(", ")[0] if what in _PLACES else answer)))
