"""The engine of an invented organisation, after OrgForge: which events may happen, when, and what is written of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from agentenv.core.types import Document
from agentenv.data.organisation_graph import SocialState, first_edges
from agentenv.data.organisation_log import (
    CLOSES,
    OPENS,
    Artefact,
    Channel,
    Event,
    OrganisationConfig,
    Time,
    clock,
)

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

    def __post_init__(self) -> None:
        self.state = SocialState(first_edges(self.teams))
        """What `social_state` gives of the events so far, if the organisation is ``social``."""
        self._by_id: dict[str, Event] = {}
        self._incidents: set[str] = set()
        self._last: dict[tuple[str, str | None], int] = {}
        self._worked: set[tuple[str, int]] = set()

    def record(self, event: Event) -> None:
        """Appends ``event`` to the log."""
        self.events.append(event)
        self._by_id[event.id] = event
        day, alike = event.time[0], (event.kind, event.facts.get("team"))
        self._last[alike] = max(day, self._last.get(alike, day))
        if event.kind == "detected":
            self._incidents.add(event.facts["incident"])
        if event.kind == "progress":
            self._worked.add((event.actors[0], day))
        if self.config.social:
            self.state.follow(event)

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
        if kind in NEEDS_INCIDENT and facts.get("incident") not in self._incidents:
            return "no incident"
        today = max(self.cursors[actor] for actor in actors)[0]
        last = self._last.get((kind, facts.get("team")))
        if kind in COOLDOWN and last is not None and today - last < COOLDOWN[kind]:
            return "cooldown"
        if kind == "morale-intervention" and self.morale > _LOW_MORALE:
            return "morale"
        worked = kind == "progress" and (actors[0], today) in self._worked
        return "one progress a day" if worked else ""

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
        after = self._by_id[cause].time if cause is not None else (1, OPENS)
        time = self.tick(actors, after, *minutes)
        event = Event(f"event-{len(self.events)}", kind, time, tuple(actors), dict(facts), cause)
        self.record(event)
        for channel, subject, text, audience in wrote:
            title = f"[{channel}] {clock(time)}: {subject}"
            number = len(self.artefacts)
            there = frozenset(person for person in audience if person not in self.left)
            if channel == "mail":
                text += f" To: {', '.join(sorted(there))}."
            document = Document(f"{self.config.split}-{self.config.seed}-{channel}-{number}", title, text)
            self.artefacts.append(Artefact(document, channel, time, there, event.id))
        return event
