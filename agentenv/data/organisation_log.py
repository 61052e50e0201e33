"""The records of an invented organisation, after OrgForge: what happened, what was written down, and who could see it.

Every event is in a log with its time, its people, its facts and the event that caused it; every artefact states the facts of
one event, and the people who could see it are known. What the organisation knows and does not know can therefore be proved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from agentenv.core.types import Document
from agentenv.data.world_config import SPLITS, Split
from agentenv.errors import ConfigurationError, check_known

Channel = Literal["mail", "chat", "tickets"]
Time = tuple[int, int]
"""Business day from 1, and minute of the day."""

OPENS, CLOSES = 9 * 60, 17 * 60 + 30
COOLDOWN = {
    "retrospective": 9,
    "sprint": 9,
    "morale-intervention": 5,
    "hr-checkin": 3,
    "leadership-sync": 2,
    "vendor-meeting": 3,
    "departure": 999,
    "celebration": 5,  # this project's; all others are OrgForge's
}
"""Business days before an event of the same kind may follow, of the same team where the event is a team's."""
NEEDS_INCIDENT = frozenset({"post-mortem", "escalation", "stability-update"})
NEEDS_HEALTH = frozenset({"celebration", "hackathon"})
KINDS = (
    COOLDOWN.keys()
    | NEEDS_INCIDENT
    | NEEDS_HEALTH
    | {"ticket", "progress", "reassigned", "detected", "investigating", "fixed", "resolved", "knowledge-gap"}
    | {"recurrence", "burnout", "passed-on", "handover", "centrality"}  # of organisations with ``social``
)
"""The kinds of events that the engine knows. Another kind may happen only if its name tells in which channel it is left."""
_HINTS = ("mail", "chat", "ticket")
_LEAST_HEALTH = 40
_LOW_MORALE = 0.6
STATES_ITS_REPAIR = frozenset({"resolved", "detected", "stability-update"})
"""Kinds of events whose texts say that the repair which caused them was made."""


@dataclass(frozen=True)
class OrganisationConfig:
    """Which organisation to invent. Equal configs give equal organisations.

    Raises:
        ConfigurationError: a number is out of range.
        UnknownName: no such split.
    """

    seed: int = 0
    people: int = 12
    """At least 6, in teams of six or more."""
    days: int = 22
    """Business days, at least 10."""
    split: Split = "test"
    """Whose invented words are used; the splits share none."""
    followups: int = 0
    """Most incidents that an incident leads to, one after the other: its repair breaks something else."""
    social: bool = False
    """Whether incidents come again, people burn out, complaints go from colleague to colleague, and who leaves hands over
    before the farewell."""

    def __post_init__(self) -> None:
        if not (6 <= self.people <= 200 and 10 <= self.days <= 250) or self.seed < 0:
            raise ConfigurationError(
                f"people={self.people} must be 6 to 200, days={self.days} 10 to 250 and seed={self.seed} at least 0"
            )
        if not 0 <= self.followups <= 10:
            raise ConfigurationError(f"followups={self.followups} must be 0 to 10")
        check_known("split", self.split, SPLITS)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""

    id: str
    kind: str
    time: Time
    actors: tuple[str, ...]
    facts: Mapping[str, str]
    cause: str | None = None
    """The event without which it would not have happened."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """What is left of an event in one channel."""

    document: Document
    channel: Channel
    time: Time
    audience: frozenset[str]
    """The people who could see it."""
    event: str


@dataclass(frozen=True)
class Organisation:
    """The log of an organisation and everything that was written down."""

    config: OrganisationConfig
    name: str
    teams: Mapping[str, tuple[str, ...]]
    """The people of each team, its lead first."""
    left: Mapping[str, Time]
    """When somebody left."""
    events: tuple[Event, ...]
    artefacts: tuple[Artefact, ...]
    refused: Mapping[str, int]
    """Events that were proposed and did not happen, by the rule that refused them."""

    @property
    def documents(self) -> tuple[Document, ...]:
        """The corpus: mail, chat and tickets in the order of time."""
        return tuple(artefact.document for artefact in self.artefacts)

    def of_event(self, event: str) -> list[Artefact]:
        """What was written down of an event."""
        return [artefact for artefact in self.artefacts if artefact.event == event]

    def incident(self, number: str) -> dict[str, Event]:
        """The events of an incident by kind."""
        return {event.kind: event for event in self.events if event.facts.get("incident") == number}

    def led_to(self, number: str) -> list[str]:
        """The incidents that led to an incident, the latest first: each was fixed by a change that caused the next."""
        found: list[str] = []
        while behind := self.incident(number)["detected"].facts.get("behind"):
            found.append(behind)
            number = behind
        return found

    def stating(self, event: str) -> list[Artefact]:
        """What states that ``event`` has happened, in the order of time.

        This is what was written of the event itself. A repair is also stated by the note that its incident is resolved, and
        by the message of a later incident that it has caused.
        """
        by_id = {one.id: one for one in self.events}
        repair = by_id[event].kind == "fixed"

        def states(one: Event) -> bool:
            return one.id == event or (repair and one.cause == event and one.kind in STATES_ITS_REPAIR)

        return [artefact for artefact in self.artefacts if states(by_id[artefact.event])]

    def seen(self, person: str, event: str, time: Time) -> list[Artefact]:
        """What states ``event`` and was seen by ``person`` by ``time``, while he or she was there."""
        gone = self.left.get(person)
        until = time if gone is None else min(time, gone)
        return [a for a in self.stating(event) if a.time <= until and person in a.audience]

    def depends_on(self, event: str, cause: str) -> bool:
        """Whether ``event`` would not have happened without ``cause``: it stands behind it in the chain of causes."""
        by_id = {one.id: one for one in self.events}
        seen: str | None = event
        while seen is not None:
            if seen == cause:
                return True
            seen = by_id[seen].cause
        return False


def clock(time: Time) -> str:
    """A time as artefacts write it: ``day 3, 10:24``."""
    return f"day {time[0]}, {time[1] // 60:02}:{time[1] % 60:02}"


@dataclass
class Engine:
    """Makes the events of an organisation one after the other; nothing that has happened changes."""

    config: OrganisationConfig
    rng: Random
    teams: dict[str, tuple[str, ...]]
    services: dict[str, str]
    """Which team runs each service."""
    cursors: dict[str, Time] = field(default_factory=dict)
    left: dict[str, Time] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    artefacts: list[Artefact] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    tickets: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Person and event of each open ticket."""
    health: int = 100
    morale: float = 1.0
    """From 0 to 1: it falls with every incident and recovers by the day."""

    def feel(self, change: float) -> None:
        """Moves the morale by ``change``, within its bounds."""
        self.morale = min(1.0, max(0.0, self.morale + change))

    def tick(self, actors: Sequence[str], after: Time, low: int, high: int) -> Time:
        """Brings the clocks of ``actors`` to the latest of them and of ``after``, and on by ``low`` to ``high`` minutes."""
        day, minute = max(after, *(self.cursors[actor] for actor in actors))
        minute += self.rng.randint(low, high)
        if minute > CLOSES:
            day, minute = day + 1, OPENS + self.rng.randint(low, high)
        for actor in actors:
            self.cursors[actor] = (day, minute)
        return day, minute

    def refusal(self, kind: str, actors: Sequence[str], facts: Mapping[str, str]) -> str:
        """The first rule against an event; empty where it may happen."""
        known = {person for people in self.teams.values() for person in people}
        if any(actor not in known for actor in actors):
            return "unknown person"
        if any(actor in self.left for actor in actors):
            return "departed person"
        if kind not in KINDS and not any(hint in kind for hint in _HINTS):
            return "novel kind"
        if kind in NEEDS_HEALTH and self.health < _LEAST_HEALTH:
            return "health"
        incidents = [e.facts["incident"] for e in self.events if e.kind == "detected"]
        if kind in NEEDS_INCIDENT and facts.get("incident") not in incidents:
            return "no incident"
        today = max(self.cursors[actor] for actor in actors)[0]
        alike = [e for e in self.events if e.kind == kind and e.facts.get("team") == facts.get("team")]
        last = max((e.time[0] for e in alike), default=None)
        if kind in COOLDOWN and last is not None and today - last < COOLDOWN[kind]:
            return "cooldown"
        if kind == "morale-intervention" and self.morale > _LOW_MORALE:
            return "morale"
        worked = (e for e in self.events if e.kind == kind == "progress" and e.actors[0] == actors[0])
        return "one progress a day" if any(e.time[0] == today for e in worked) else ""

    def happen(
        self,
        kind: str,
        actors: Sequence[str],
        facts: Mapping[str, str],
        wrote: Sequence[tuple[Channel, str, str, Sequence[str]]],
        *,
        cause: str | None = None,
        minutes: tuple[int, int] = (3, 12),
    ) -> Event | None:
        """Appends an event with what is written of it (channel, subject, text, audience); None where a rule refuses it."""
        if rule := self.refusal(kind, actors, facts):
            self.refused[rule] = self.refused.get(rule, 0) + 1
            return None
        after = next((event.time for event in self.events if event.id == cause), (1, OPENS))
        time = self.tick(actors, after, *minutes)
        event = Event(f"event-{len(self.events)}", kind, time, tuple(actors), dict(facts), cause)
        self.events.append(event)
        for channel, subject, text, audience in wrote:
            title = f"[{channel}] {clock(time)}: {subject}"
            number = len(self.artefacts)
            there = frozenset(person for person in audience if person not in self.left)
            if channel == "mail":
                text += f" To: {', '.join(sorted(there))}."
            document = Document(f"{self.config.split}-{self.config.seed}-{channel}-{number}", title, text)
            self.artefacts.append(Artefact(document, channel, time, there, event.id))
        return event
