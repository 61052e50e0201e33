"""Questions that rules make from the passages of a corpus: which of two came first, and what stands on the page of another.

Sets of real questions over real passages have few for training. Encyclopedic passages begin with dates in a fixed form
("Ada Stone (born 5 May 1901) was", "Night Train is a 1940 film directed by Ada Stone"), from which questions of the
kinds of 2WikiMultihopQA (Ho et al. 2020, arXiv:2011.01060, section 2) are made, with answers that follow from the passages:
comparisons of births, deaths and releases, the birth of a film's director, and which of two films has the older one.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from random import Random

from agentenv.core.types import Document, Task
from agentenv.data.overlap import FAMILY
from agentenv.errors import ConfigurationError

_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_MONTH = "|".join(_MONTHS)
_DATE = rf"(?:\d{{1,2}} (?:{_MONTH})|(?:{_MONTH}) \d{{1,2}}),? (?:1\d|20)\d\d"
_OPENING = re.compile(
    r"^[^()]{3,60}\(([^()]{1,160})\)"
)  # a title's name, and what stands in brackets behind it
_DASHES = re.compile(r"\s*[\u2013\u2014]\s*|\s-\s?|(?<=\d)-(?=\w)")
_SHORTEST_LIFE, _LONGEST_LIFE = 15, 115
"""Years between the dates of what is a life, and not a war or a term of office."""
_FILM = re.compile(
    r"^[^.]{2,80}? is an? ((?:18|19|20)\d\d)\b(?:(?!\b(?:novel|book|play|album|song|series)\b)[^.]){0,80}?\bfilm\b"
    r"(?! director)"
)
_DIRECTED = re.compile(
    r"\bdirected by ([A-Z][\w'\u2019-]+(?: (?:[A-Z]\.|[A-Z][\w'\u2019-]+|de|van|von)){1,3})"
    r"(?=[,.]| who | starring | for | in |(?: and (?:starring|written|produced)))"
)
_PARTS = re.compile(rf"(\d{{4}})|({_MONTH})|(\d{{1,2}})")

_FIRST = {
    "birth": ("Who was born first, {a} or {b}?", "Who was born earlier, {a} or {b}?", "Who is older, {a} or {b}?"),
    "death": ("Who died first, {a} or {b}?", "Who died earlier, {a} or {b}?"),
    "release": (
        "Which film was released first, {a} or {b}?",
        "Which film came out earlier, {a} or {b}?",
        "Which film came out first, {a} or {b}?",
    ),
    "director": (
        "Which film has the director who was born earlier, {a} or {b}?",
        "Which film has the director born first, {a} or {b}?",
        "Which film has the director who is older, {a} or {b}?",
    ),
}  # fmt: skip
_LAST = {
    "birth": ("Who was born later, {a} or {b}?", "Who is younger, {a} or {b}?"),
    "death": ("Who died later, {a} or {b}?",),
    "release": (
        "Which film was released more recently, {a} or {b}?",
        "Which film came out later, {a} or {b}?",
    ),
    "director": (
        "Which film has the director who was born later, {a} or {b}?",
        "Which film has the director who is younger, {a} or {b}?",
    ),
}
_CHAIN = ("When was the director of film {a} born?", "What is the date of birth of the director of film {a}?")

_TRIES = 1000
"""Pairs that are drawn before there is taken to be none that can be compared."""
_OLD_ROUNDS = 200
"""Rounds without a new question after which there is taken to be none left."""

Day = tuple[int, int, int]
"""Year, month and day of a month."""


@dataclass(frozen=True)
class Dated:
    """Something that a passage gives a date."""

    name: str
    """The passage's title without what stands in brackets behind it."""
    date: Day
    supports: tuple[str, ...]
    """Ids of the passages from which the date follows."""
    text: str = ""
    """The date as its passage writes it."""


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
    rng = Random(seed)
    ids = (one for one in map(f"{FAMILY}:{{}}".format, count_from(0)) if one not in set(taken))
    known = dated_things(documents, excluded)
    makers = [_comparisons(kind, known[kind], rng) for kind in _FIRST] + [_chains(known["director"], rng)]
    tasks: dict[str, Task] = {}
    old = 0  # rounds since the last new question
    while len(tasks) < count:
        before = len(tasks)
        for made in (next(maker, None) for maker in makers):
            if made is not None:
                question, answer, supports, hops = made
                data = {"family": FAMILY, "hops": hops, "supporting_ids": supports}
                # A question that is drawn twice counts once.
                if question not in tasks:
                    tasks[question] = Task(next(ids), question, (answer,), data=data)
        old = 0 if len(tasks) > before else old + 1
        if old > _OLD_ROUNDS:
            raise ConfigurationError(
                f"the passages give {len(tasks)} questions by rules, and {count} are asked for"
            )
    return tuple(tasks.values())[:count]


def dated_things(documents: Iterable[Document], excluded: Collection[str] = ()) -> Mapping[str, list[Dated]]:
    """Births and deaths of persons, releases of films, and films by the births of their directors.

    A name that two passages give different dates is left out, because a search cannot tell which of them is meant.
    """
    pages: dict[str, list[Document]] = {}
    for document in documents:
        pages.setdefault(_bare(document.title), []).append(document)
    shut = {_bare(title) for title in excluded}
    own = {name: same for name, same in pages.items() if name not in shut and len(name) > 3}
    births = _agreed(own, lambda page: _life(page, "birth"))
    releases = _agreed(own, _release)
    by_name = {one.name: one for one in births}
    directed = []
    for film in releases:
        named = set(_DIRECTED.findall(own[film.name][0].text))
        person = by_name.get(named.pop()) if len(named) == 1 else None
        if person is not None:
            directed.append(Dated(film.name, person.date, (*film.supports, *person.supports), person.text))
    deaths = _agreed(own, lambda page: _life(page, "death"))
    return {"birth": births, "death": deaths, "release": releases, "director": directed}


def day_of(text: str) -> Day:
    """Year, month and day of a date such as ``5 May 1901`` or ``May 5, 1901``."""
    day = month = year = 0
    for four, name, number in _PARTS.findall(text):
        if four:
            year = int(four)
        elif name:
            month = _MONTHS.index(name) + 1
        else:
            day = int(number)
    return year, month, day


def _agreed(pages: Mapping[str, Sequence[Document]], read: Callable[[Document], str]) -> list[Dated]:
    """What ``read`` finds for each name, where all pages of that name say the same."""
    found = []
    for name, same in pages.items():
        texts = [read(page) for page in same]
        days = {day_of(text) for text in texts}
        if len(days) == 1 and texts[0]:
            found.append(Dated(name, days.pop(), (same[0].id,), texts[0]))
    return found


def _life(page: Document, which: str) -> str:
    """The date of ``birth`` or of ``death`` with which a passage begins; empty where it has none, or is not about a life.

    A date of birth follows the word "born", or is the first thing before a dash behind which a date or a year stands that is
    as far away as a life is long. A date behind the dash alone says when somebody died and not when he or she was born.
    """
    opening = _OPENING.match(page.text)
    parts = _DASHES.split(opening[1]) if opening else [""]
    birth = re.search(_DATE, parts[0])
    if birth is None or len(parts) > 2 or re.search(r"\d|\bdied\b|\bd\.", parts[0][: birth.start()]):
        return ""
    if len(parts) == 1:
        return birth[0] if which == "birth" and "born" in parts[0][: birth.start()] else ""
    end, death = re.search(r"\b(?:1\d|20)\d\d\b", parts[1]), re.search(_DATE, parts[1])
    if end is None or not _SHORTEST_LIFE <= int(end[0]) - day_of(birth[0])[0] <= _LONGEST_LIFE:
        return ""
    return birth[0] if which == "birth" else death[0] if death else ""


def _release(page: Document) -> str:
    match = _FILM.search(page.text)
    return match[1] if match else ""


_Made = tuple[str, str, tuple[str, ...], int]
"""Question, answer, supporting passages and hops."""


def _comparisons(kind: str, things: Sequence[Dated], rng: Random) -> Iterator[_Made]:
    """Comparisons of two, half of them for the first, without end while two are found that can be compared."""
    if len({one.date[0] for one in things}) < 2:
        return
    drawn = list(things)
    while True:
        pairs = (rng.sample(drawn, 2) for _ in range(_TRIES))
        pair = next((pair for pair in pairs if _comparable(*pair)), None)
        if pair is None:
            return
        one, other = pair
        early, late = sorted((one, other), key=lambda thing: thing.date)
        wording, right = (
            (rng.choice(_FIRST[kind]), early) if rng.random() < 0.5 else (rng.choice(_LAST[kind]), late)
        )
        question = wording.format(a=one.name, b=other.name)
        yield question, right.name, (*one.supports, *other.supports), len(one.supports + other.supports)


def _comparable(one: Dated, other: Dated) -> bool:
    """Whether two things differ by a year, so that a passage that is cut behind it still answers, and by their names."""
    apart = one.name not in other.name and other.name not in one.name
    return apart and one.date[0] != other.date[0]


def _chains(films: Sequence[Dated], rng: Random) -> Iterator[_Made]:
    """The birth of the director of each film, in a random order."""
    for film in rng.sample(list(films), len(films)):
        yield rng.choice(_CHAIN).format(a=film.name), film.text, film.supports, 2


def _bare(title: str) -> str:
    """A title without what tells it from others of its name: ``Jaws (film)`` is ``Jaws``."""
    return title.strip('"').partition(" (")[0].strip()
