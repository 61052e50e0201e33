"""The records of an invented organisation, after OrgForge: what happened, what was written down, and who could see it.

Every event is in a log with its time, its people, its facts and the event that caused it; every artefact states the facts of
one event, and the people who could see it are known. What the organisation knows and does not know can therefore be proved.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from agentenv.core.types import Document
from agentenv.data.world_config import SPLITS, Split
from agentenv.errors import ConfigurationError, check_known

Channel = Literal["mail", "chat", "tickets"]
Time = tuple[int, int]
"""Business day from 1, and minute of the day."""

OPENS, CLOSES = 9 * 60, 17 * 60 + 30
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

    @cached_property
    def by_id(self) -> Mapping[str, Event]:
        """The events by their ids."""
        return {event.id: event for event in self.events}

    @cached_property
    def _written(self) -> Mapping[str, list[Artefact]]:
        written: dict[str, list[Artefact]] = {}
        for artefact in self.artefacts:
            written.setdefault(artefact.event, []).append(artefact)
        return written

    @cached_property
    def _incidents(self) -> Mapping[str, dict[str, Event]]:
        incidents: dict[str, dict[str, Event]] = {}
        for event in self.events:
            if "incident" in event.facts:
                incidents.setdefault(event.facts["incident"], {})[event.kind] = event
        return incidents

    @cached_property
    def _restated(self) -> Mapping[str, list[str]]:
        """Of each repair, the later events whose texts state it."""
        restated: dict[str, list[str]] = {}
        for event in self.events:
            if event.cause is not None and event.kind in STATES_ITS_REPAIR:
                restated.setdefault(event.cause, []).append(event.id)
        return restated

    def of_event(self, event: str) -> list[Artefact]:
        """What was written down of an event."""
        return list(self._written.get(event, ()))

    def incident(self, number: str) -> dict[str, Event]:
        """The events of an incident by kind."""
        return dict(self._incidents.get(number, {}))

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
        later = self._restated.get(event, []) if self.by_id[event].kind == "fixed" else []
        found = [artefact for one in (event, *later) for artefact in self.of_event(one)]
        return sorted(found, key=lambda artefact: artefact.time)

    def seen(self, person: str, event: str, time: Time) -> list[Artefact]:
        """What states ``event`` and was seen by ``person`` by ``time``, while he or she was there."""
        gone = self.left.get(person)
        until = time if gone is None else min(time, gone)
        return [a for a in self.stating(event) if a.time <= until and person in a.audience]

    def depends_on(self, event: str, cause: str) -> bool:
        """Whether ``event`` would not have happened without ``cause``: it stands behind it in the chain of causes."""
        seen: str | None = event
        while seen is not None:
            if seen == cause:
                return True
            seen = self.by_id[seen].cause
        return False


def clock(time: Time) -> str:
    """A time as artefacts write it: ``day 3, 10:24``."""
    return f"day {time[0]}, {time[1] // 60:02}:{time[1] % 60:02}"
