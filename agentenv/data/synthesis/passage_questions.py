"""Questions that rules make from the passages of a corpus: which of two came first, and what stands on the page of another.

Sets of real questions over real passages have few for training. Encyclopedic passages begin with dates in a fixed form
("Ada Stone (born 5 May 1901) was", "Night Train is a 1940 film directed by Ada Stone"), from which questions of the
kinds of 2WikiMultihopQA (Ho et al. 2020, arXiv:2011.01060, section 2) are made, with answers that follow from the passages:
comparisons of births, deaths and releases, the birth of a film's director, and which of two films has the older one.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from agentenv.core.types import Document, Task
from agentenv.errors import ConfigurationError

FAMILY = "passages"
"""The family of these questions, by which scores are listed, and what stands before their ids."""

_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_MONTH = "|".join(_MONTHS)
_DATE = rf"(?:\d{{1,2}} (?:{_MONTH})|(?:{_MONTH}) \d{{1,2}}),? (?:1\d|20)\d\d"
_LIFE = re.compile(rf"^[^()]{{3,60}}\([^()]*?({_DATE})(?: ?[\u2013\u2014-] ?({_DATE}))?[^()]*\)")
_FILM = re.compile(r"^[^.]{2,80}? is an? ((?:18|19|20)\d\d)\b[^.]{0,80}?\bfilm\b")
_DIRECTED = re.compile(
    r"\bdirected by ([A-Z][\w'\u2019-]+(?: (?:[A-Z]\.|[A-Z][\w'\u2019-]+|de|van|von)){1,3})"
    r"(?=[,.]| and | who | starring | for | in )"
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
    documents: Iterable[Document], count: int, seed: int, excluded: Collection[str] = ()
) -> tuple[Task, ...]:
    """``count`` questions, of each kind as many as of every other.

    Args:
        documents: The passages.
        count: How many questions.
        seed: Of the draw.
        excluded: Titles of passages that no question is made of, such as those that answer the questions of a test.

    Raises:
        ConfigurationError: the passages do not give so many.
    """
    rng = Random(seed)
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
                tasks.setdefault(question, Task(f"{FAMILY}:{len(tasks)}", question, (answer,), data=data))
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
    births = _agreed(own, lambda page: _life(page, 1))
    releases = _agreed(own, _release)
    by_name = {one.name: one for one in births}
    directed = []
    for film in releases:
        director = _DIRECTED.search(own[film.name][0].text)
        person = by_name.get(director[1]) if director else None
        if person is not None:
            directed.append(Dated(film.name, person.date, (*film.supports, *person.supports), person.text))
    deaths = _agreed(own, lambda page: _life(page, 2))
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


def _life(page: Document, which: int) -> str:
    """The date of birth (1) or of death (2) with which a passage begins; empty where it has none."""
    match = _LIFE.search(page.text)
    return (match[which] or "") if match else ""


def _release(page: Document) -> str:
    match = _FILM.search(page.text)
    return match[1] if match else ""


_Made = tuple[str, str, tuple[str, ...], int]
"""Question, answer, supporting passages and hops."""


def _comparisons(kind: str, things: Sequence[Dated], rng: Random) -> Iterator[_Made]:
    """Endless comparisons of two, half of them for the first; none where no two differ by a year."""
    if len({one.date[0] for one in things}) < 2:
        return
    while True:
        one, other = rng.sample(list(things), 2)
        # By a year, so that a passage that is cut behind the year still answers.
        if one.date[0] == other.date[0] or one.name in other.name or other.name in one.name:
            continue
        early, late = sorted((one, other), key=lambda thing: thing.date)
        wording, right = (
            (rng.choice(_FIRST[kind]), early) if rng.random() < 0.5 else (rng.choice(_LAST[kind]), late)
        )
        question = wording.format(a=one.name, b=other.name)
        yield question, right.name, (*one.supports, *other.supports), len(one.supports + other.supports)


def _chains(films: Sequence[Dated], rng: Random) -> Iterator[_Made]:
    """The birth of the director of each film, in a random order."""
    for film in rng.sample(list(films), len(films)):
        yield rng.choice(_CHAIN).format(a=film.name), film.text, film.supports, 2


def _bare(title: str) -> str:
    """A title without what tells it from others of its name: ``Jaws (film)`` is ``Jaws``."""
    return title.strip('"').partition(" (")[0].strip()
