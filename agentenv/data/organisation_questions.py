"""Questions about an invented organisation, after OrgForge: who could know what, what would not have been, what is missing.

Every answer follows from the log. The kinds of questions come in equal shares, and so do the answers of each kind.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise, zip_longest
from random import Random
from typing import Any

from agentenv.core.types import Task
from agentenv.data.organisation import invent_organisation
from agentenv.data.organisation_log import CLOSES, OPENS, Event, Organisation, OrganisationConfig, Time, clock

NOBODY = "nobody"
"""The right answer where what is asked for does not exist."""
FOLLOWUPS = 3
"""Incidents that an incident leads to at most, in tasks: without any, nothing depends on another incident, and no question
asks what would not be without one."""

_PAST = {
    "fixed": "{incident} was fixed",
    "resolved": "{incident} was resolved",
    "post-mortem": "the post-mortem of {incident} was written",
    "escalation": "a customer complained about {incident}",
}


def organisation_tasks(
    count: int,
    *,
    seed: int,
    split: Any,
    people: int = 12,
    days: int = 22,
    followups: int = FOLLOWUPS,
    social: bool = False,
) -> list[Task]:
    """``count`` questions about as many organisations as are needed, the seeds of which begin at ``seed``.

    Raises:
        ConfigurationError: a number is out of range.
    """
    tasks: list[Task] = []
    while len(tasks) < count:
        config = OrganisationConfig(seed, people, days, split, followups, social)
        tasks += questions_about(invent_organisation(config))
        seed += 1
    return tasks[:count]


def questions_about(organisation: Organisation) -> list[Task]:
    """The questions about one organisation: as many of each answer as the rarer of both has, kinds by turns."""
    rng = Random(f"questions {organisation.config.seed} {organisation.config.split}")
    makers = (_fact, _perspective, _counterfactual, _silence, _chain, *SOCIAL)
    kinds = [_balanced(list(make(organisation, rng)), rng) for make in makers]
    rows = [task for together in zip_longest(*kinds) for task in together if task is not None]
    config = organisation.config
    return [
        Task(
            f"{config.split}-{config.seed}-organisation-{n}",
            task.question,
            task.answers,
            config.split,
            task.data,
        )
        for n, task in enumerate(rows)
    ]


def _balanced(tasks: list[Task], rng: Random) -> list[Task]:
    """As many tasks of each family as the smallest has, by turns; none of a kind of which only one answer occurs."""
    families: dict[str, list[Task]] = {}
    for task in tasks:
        families.setdefault(task.data["family"], []).append(task)
    if len(families) == 1 and ", " in next(iter(families)):
        return []
    most = min((len(some) for some in families.values()), default=0)
    drawn = [rng.sample(some, most) for _, some in sorted(families.items())]
    return [task for together in zip(*drawn, strict=True) for task in together]


def _made(
    organisation: Organisation,
    family: str,
    question: str,
    answer: str,
    events: list[Event],
    query: str,
    before: Sequence[tuple[str, str]] = (),
) -> Task:
    """A task whose supporting documents are what was written of ``events``.

    ``before`` are queries with what they tell, which come before ``query``.
    """
    documents = [a.document.id for event in events for a in organisation.of_event(event.id)]
    config = organisation.config
    data = {
        "family": family,
        "hops": len(events),
        "supporting_ids": tuple(dict.fromkeys(documents)),
        "path": tuple({"query": asked, "answer": given} for asked, given in (*before, (query, answer))),
        "organisation": {"seed": config.seed, "people": config.people, "days": config.days}
        | ({"followups": config.followups} if config.followups else {})
        | ({"social": True} if config.social else {}),
    }
    return Task("", question, (answer,), config.split, data)


def _incidents(organisation: Organisation) -> Iterator[tuple[str, dict[str, Event]]]:
    for event in organisation.events:
        if event.kind == "detected":
            yield event.facts["incident"], organisation.incident(event.facts["incident"])


def _fact(organisation: Organisation, rng: Random) -> Iterator[Task]:
    """Who fixed what."""
    for number, events in _incidents(organisation):
        if "fixed" in events:
            question = f"Who fixed incident {number}?"
            fixer = events["fixed"].facts["person"]
            yield _made(
                organisation, "fact", question, fixer, [events["fixed"]], f"chat: fixed {number} closed"
            )


def _perspective(organisation: Organisation, rng: Random) -> Iterator[Task]:
    """Whether somebody could know of an event at a time: whether he or she had seen anything that states it."""
    people = [person for team in organisation.teams.values() for person in team]
    for number, events in _incidents(organisation):
        for kind, said in _PAST.items():
            if kind not in events:
                continue
            person, time = rng.choice(people), _near(events[kind].time, organisation.config.days, rng)
            seen = organisation.seen(person, events[kind].id, time)
            question = f"On {clock(time)}, could {person} know that {said.format(incident=number)}?"
            answer = "yes" if seen else "no"
            proof = organisation.by_id[seen[0].event] if seen else events[kind]
            yield _made(organisation, f"perspective, {answer}", question, answer, [proof], f"{number} {kind}")


def _near(time: Time, days: int, rng: Random) -> Time:
    """A time in the days around ``time``."""
    day = min(days, max(1, time[0] + rng.choice((-1, 0, 0, 1, 2))))
    return day, rng.randint(OPENS, CLOSES)


def _counterfactual(organisation: Organisation, rng: Random) -> Iterator[Task]:
    """Whether something would have been written if another incident had not been detected: whether that has led to it.

    Incidents that lead to each other have consecutive numbers. So of each difference of numbers there are as many questions
    with one answer as with the other, or the numbers alone would tell it.
    """
    incidents = [(number, events["detected"].id) for number, events in _incidents(organisation)]
    pairs: dict[tuple[int, bool], list[tuple[str, str]]] = {}
    for (place, (number, first)), (later, (other, then)) in combinations(enumerate(incidents), 2):
        led = organisation.depends_on(then, first)
        pairs.setdefault((later - place, led), []).append((number, other))
    for distance in range(1, len(incidents)):
        missing, left = (pairs.get((distance, led), []) for led in (True, False))
        most = min(len(missing), len(left))
        for some, answer in ((missing, "no"), (left, "yes")):
            for number, other in rng.sample(some, most):
                yield _without(organisation, number, other, answer, rng)


def _without(organisation: Organisation, number: str, other: str, answer: str, rng: Random) -> Task:
    """Whether something about ``other`` would exist without ``number``; the messages back along the incidents tell it."""
    written = {
        "detected": f"the message that reports {other}",
        "post-mortem": f"the post-mortem of {other}",
        "escalation": f"the complaint about {other}",
        "resolved": f"the note that {other} is resolved",
    }
    what = rng.choice([words for kind, words in written.items() if kind in organisation.incident(other)])
    back = [other, *organisation.led_to(other)]
    asked = back[: back.index(number)] if number in back else back
    *before, last = [f"chat: This is incident {one}" for one in asked]
    return _made(
        organisation,
        f"counterfactual, {answer}",
        f"Would {what} exist if incident {number} had not been detected?",
        answer,
        [organisation.incident(one)["detected"] for one in asked],
        last,
        list(zip(before, asked[1:], strict=True)),
    )


def _chain(organisation: Organisation, rng: Random) -> Iterator[Task]:
    """Who fixed an incident that led to others, some of them back; the message of each incident names the one before it."""
    for number, _ in _incidents(organisation):
        before = [number, *organisation.led_to(number)]
        for back, first in enumerate(before[1:], 1):
            steps = "the incident that led to " * back
            passed = [organisation.incident(one)["detected"] for one in before[:back]]
            fixed = organisation.incident(first)["fixed"]
            yield _made(
                organisation,
                "chain",
                f"Who fixed {steps}{number}?",
                fixed.facts["person"],
                [*passed, fixed],
                f"chat: fixed {first} closed",
                [(f"chat: This is incident {a}", b) for a, b in pairwise(before[: back + 1])],
            )


def _silence(organisation: Organisation, rng: Random) -> Iterator[Task]:
    """Who wrote what should have been written; of some incidents nobody did."""
    asked: dict[str, tuple[str, Callable[[str], str]]] = {
        "post-mortem": ("mail", lambda number: f"Who wrote the post-mortem of {number}?"),
        "escalation": ("mail", lambda number: f"Who reported a customer's complaint about {number}?"),
    }
    for number, events in _incidents(organisation):
        for kind, (channel, words) in asked.items():
            there = kind in events
            answer = events[kind].facts["person"] if there else NOBODY
            support = [events[kind]] if there else [events["detected"]]
            family = f"silence, {'present' if there else 'absent'}"
            yield _made(organisation, family, words(number), answer, support, f"{channel}: {kind} {number}")


def _recurrence(organisation: Organisation, rng: Random) -> Iterator[Task]:
    """Which incident another was said to be again; of some nothing is said. The rule that named it may have been wrong.

    The first incidents are no other ones again, and later ones mostly are. So it is asked of neighbours of which one is and
    one is not, or the number alone would tell it.
    """
    known = [(n, events) for n, events in _incidents(organisation) if "symptom" in events["detected"].facts]
    chosen: list[int] = []
    for place, (one, other) in enumerate(pairwise(known)):
        if place not in chosen and ("recurrence" in one[1]) != ("recurrence" in other[1]):
            chosen += [place, place + 1]
    for number, events in (known[place] for place in chosen):
        recurrence = events.get("recurrence")
        yield _made(
            organisation,
            f"recurrence, {'present' if recurrence else 'absent'}",
            f"Which earlier incident was {number} said to be again?",
            recurrence.facts["root"] if recurrence else NOBODY,
            [recurrence or events["detected"]],
            f"tickets: {number} looks familiar",
        )


def _burnout(organisation: Organisation, rng: Random) -> Iterator[Task]:
    """Whether it was written by a time that somebody had burnt out."""
    burnouts = {event.facts["person"]: event for event in organisation.events if event.kind == "burnout"}
    people = [person for team in organisation.teams.values() for person in team] if burnouts else []
    for person in people:
        event = burnouts.get(person) or rng.choice(list(burnouts.values()))
        time = _near(event.time, organisation.config.days, rng)
        answer = "yes" if person in burnouts and event.time <= time else "no"
        question = f"By {clock(time)}, had anybody written that {person} had burnt out?"
        yield _made(organisation, f"burnout, {answer}", question, answer, [event], f"mail: Rest for {person}")


def _way(organisation: Organisation, rng: Random) -> Iterator[Task]:
    """Who passed a complaint on to the lead at its end."""
    for event in organisation.events:
        if event.kind == "passed-on":
            number, lead = event.facts["incident"], event.facts["person"]
            question = f"Who passed the complaint about {number} on to {lead}?"
            query = f"mail: The way of the complaint about {number}"
            yield _made(organisation, "way", question, event.facts["by"], [event], query)


def _centrality(organisation: Organisation, rng: Random) -> Iterator[Task]:
    """How many pairs of colleagues somebody who left stood between."""
    for event in organisation.events:
        if event.kind == "centrality":
            question = f"How many pairs of colleagues did {event.facts['person']} stand between?"
            query = f"mail: Who {event.facts['person']} has connected"
            yield _made(organisation, "centrality", question, event.facts["pairs"], [event], query)


SOCIAL = (_recurrence, _burnout, _way, _centrality)
"""Of organisations with ``social``; of others they make no question."""
