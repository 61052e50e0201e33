"""Who is close to whom in an organisation, who is under stress, and which incidents look alike, after OrgForge.

All of it is a pure function of the log: `social_state` of the events before an event gives what that event may state, so
that every such fact can be computed again and proved. The constants are those of OrgForge (aeriesec/orgforge, no arXiv id)
unless a line says that they are this project's.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

from agentenv.core.scoring.likeness import dice
from agentenv.data.organisation_log import Event

INCIDENT_STRESS, MOST_STRESS, RECOVERY, BURNOUT = 20, 100, 3, 72
BLEED = 0.25
KEY_PLAYER = 2.0
"""Times the median of betweenness from which on somebody is a key player."""
DECAY, FLOOR = 0.97, 0.5
BOOSTS = {"hr-checkin": 1.5, "hackathon": 1.5, "investigating": 4.0}
"""What an event adds to the edges between those who take part: 1.5 for a talk in chat, 4 for an incident."""
MOST_HOPS = 6
ACCEPTED, HIGH = 0.4, 0.6
"""Likeness of two texts from which an incident counts as the same one again, and from which that is nearly certain."""

Edge = tuple[str, str]


@dataclass
class SocialState:
    """Edges, stress and the day, as the log has made them so far."""

    weights: dict[Edge, float]
    stress: dict[str, int] = field(default_factory=dict)
    day: int = 1
    stressed: set[tuple[str, str]] = field(default_factory=set)
    """Each person with each incident that has stressed him or her."""

    def weight(self, one: str, other: str) -> float:
        """The strength of an edge; 0 where there is none."""
        return self.weights.get(edge(one, other), 0.0)

    def neighbours(self) -> dict[str, dict[str, float]]:
        """Of each person, everybody who has an edge with him or her, with its strength; in the order of the alphabet."""
        near: dict[str, dict[str, float]] = {}
        for (a, b), weight in sorted(self.weights.items()):
            near.setdefault(a, {})[b] = weight
            near.setdefault(b, {})[a] = weight
        return near

    def burnt_out(self) -> list[str]:
        """Everybody whose stress is at least 72."""
        return sorted(person for person, stress in self.stress.items() if stress >= BURNOUT)

    def follow(self, event: Event) -> None:
        """Takes in the next event of the log, with the nights before it."""
        while self.day < event.time[0]:
            self.pass_day()
        for a, b in combinations(sorted(set(event.actors)), 2):
            if event.kind in BOOSTS:
                self.weights[edge(a, b)] = self.weight(a, b) + BOOSTS[event.kind]
        for person in event.actors if event.kind == "investigating" else ():
            if (person, event.facts["incident"]) not in self.stressed:
                self.stressed.add((person, event.facts["incident"]))
                self.stress[person] = min(MOST_STRESS, self.stress.get(person, 0) + INCIDENT_STRESS)

    def pass_day(self) -> None:
        """A night: burnt-out key players pass stress on, then everybody recovers by 3, and every edge fades."""
        for person, more in self._bled().items():
            self.stress[person] = min(MOST_STRESS, self.stress.get(person, 0) + more)
        self.stress = {person: max(0, stress - RECOVERY) for person, stress in self.stress.items()}
        self.weights = {pair: max(FLOOR, weight * DECAY) for pair, weight in self.weights.items()}
        self.day += 1

    def _bled(self) -> dict[str, int]:
        gained: dict[str, int] = {}
        between = betweenness(self) if self.burnt_out() else {}
        for person in self.burnt_out():
            if is_key_player(person, between):
                for other, more in bleed(self.stress[person], self.neighbours()[person]).items():
                    gained[other] = gained.get(other, 0) + more
        return gained


def edge(one: str, other: str) -> Edge:
    """The two ends of an edge in a fixed order."""
    return (one, other) if one < other else (other, one)


def bleed(stress: int, neighbours: Mapping[str, float]) -> dict[str, int]:
    """What each neighbour of a burnt-out key player gains: int(excess * .25 * w / sum of w), excess over 72."""
    total = sum(neighbours.values())
    return {person: int((stress - BURNOUT) * BLEED * w / total) for person, w in neighbours.items()}


def first_edges(teams: Mapping[str, Sequence[str]]) -> dict[Edge, float]:
    """The weakest edges between the people of each team and between the leads (this project's)."""
    groups = [*teams.values(), [people[0] for people in teams.values()]]
    return {edge(a, b): FLOOR for group in groups for a, b in combinations(group, 2)}


def social_state(teams: Mapping[str, Sequence[str]], events: Iterable[Event]) -> SocialState:
    """The state after ``events``, which stand in the order in which the engine has made them."""
    state = SocialState(first_edges(teams))
    for event in events:
        state.follow(event)
    return state


def shortest_paths(state: SocialState, start: str) -> dict[str, tuple[str, ...]]:
    """The path to everybody who can be reached: Dijkstra's over the cost 1 / w of each edge, at most 6 edges.

    Of equal paths the one whose names come first.
    """
    near = state.neighbours()
    queue: list[tuple[float, tuple[str, ...]]] = [(0.0, (start,))]
    settled: set[tuple[str, int]] = set()
    found: dict[str, tuple[str, ...]] = {}
    while queue:
        cost, path = heapq.heappop(queue)
        person = path[-1]
        found.setdefault(person, path)
        if (person, len(path)) in settled or len(path) > MOST_HOPS:
            continue
        settled.add((person, len(path)))
        for other, weight in near.get(person, {}).items():
            if other not in path:
                heapq.heappush(queue, (cost + 1 / weight, (*path, other)))
    return found


def betweenness(state: SocialState) -> dict[str, float]:
    """How many shortest paths between two others lead through each person: one path for each pair, of at most 6 edges."""
    people = sorted({person for pair in state.weights for person in pair})
    counted = dict.fromkeys(people, 0.0)
    for start in people:
        for end, path in shortest_paths(state, start).items():
            if start < end:
                for person in path[1:-1]:
                    counted[person] += 1.0
    return counted


def is_key_player(person: str, between: Mapping[str, float]) -> bool:
    """Whether somebody's betweenness is at least twice the median, and above 0."""
    own = between.get(person, 0.0)
    return own > 0 and own >= KEY_PLAYER * median(between.values())


def text_score(one: str, other: str) -> float:
    """How alike two descriptions are: 2 |A and B| / (|A| + |B|) over their words (this project's measure)."""
    return dice(set(one.lower().split()), set(other.lower().split()))


def named_root(symptom: str, earlier: Sequence[tuple[str, str]]) -> tuple[str, float] | None:
    """The earliest incident whose text scores at least .4, with its score: OrgForge's rule; None where there is none.

    The rule names a wrong root where families of incidents look alike, as OrgForge says itself. What is claimed here is
    therefore what was named, and never what has caused an incident.

    Args:
        symptom: Of the present incident.
        earlier: Number and symptom of each incident before it, the earliest first.
    """
    scored = ((number, text_score(symptom, text)) for number, text in earlier)
    return next(((number, score) for number, score in scored if score >= ACCEPTED), None)
