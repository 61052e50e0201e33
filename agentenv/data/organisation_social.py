"""What an organisation with ``social`` writes beside its work: incidents that come again, burnout, complaints on their way.

Every such event states what `agentenv.data.organisation_graph` computes from the events before it.
"""

from collections.abc import Sequence

from agentenv.data.organisation_engine import Engine
from agentenv.data.organisation_graph import HIGH, betweenness, named_root, shortest_paths
from agentenv.data.organisation_log import Event

_PARTS = tuple(
    words.split()
    for words in (
        "requests logins uploads reports invoices searches messages payments backups exports",
        "stall vanish repeat fail crash hang double expire loop freeze",
        "silently slowly rarely often suddenly partly visibly twice again briefly",
        "overnight mornings weekly hourly daily lately today since-Monday at-noon monthly",
        "everywhere abroad locally upstream downstream remotely internally externally offline online",
    )
)
"""Five words of ten each: two in common are a score of .4, three are .6."""


def symptom(engine: Engine) -> str:
    """What is seen of an incident, drawn from parts, so that some incidents look alike."""
    return " ".join(engine.rng.choice(words) for words in _PARTS)


def on_call(engine: Engine, staff: Sequence[str]) -> str:
    """Who of a team repairs what fails in this week: its people take turns (this project's)."""
    week = (max(time[0] for time in engine.cursors.values()) - 1) // 5
    return staff[week % len(staff)]


def recognise(engine: Engine, found: Event, staff: Sequence[str]) -> None:
    """The team notes which earlier incident this one looks like, if it looks like one."""
    earlier = [
        (event.facts["incident"], event.facts["symptom"])
        for event in engine.events
        if event.kind == "detected" and event.id != found.id
    ]
    root = named_root(found.facts["symptom"], earlier)
    if root is not None:
        number, (named, score) = found.facts["incident"], root
        sure = "surely" if score >= HIGH else "perhaps"
        text = f"{staff[0]} notes that {number} is {sure} {named} again."
        facts = {"incident": number, "root": named, "sure": sure}
        engine.happen(
            "recurrence",
            [staff[0]],
            facts,
            [("tickets", f"{number} looks familiar", text, staff)],
            cause=found.id,
        )


def exhaust(engine: Engine, looked: Event, staff: Sequence[str]) -> None:
    """The lead tells the team who has burnt out by an incident, once for each of them."""
    announced = {event.facts["person"] for event in engine.events if event.kind == "burnout"}
    burnt = engine.state.burnt_out()
    for person in dict.fromkeys(looked.actors):
        if person in burnt and person not in announced:
            number = looked.facts["incident"]
            text = f"{person} has burnt out with {number} and needs rest, writes {staff[0]}."
            engine.happen(
                "burnout",
                [staff[0]],
                {"person": person, "incident": number},
                [("mail", f"Rest for {person}", text, staff)],
                cause=looked.id,
            )


def escalate(engine: Engine, complaint: Event, lead: str) -> None:
    """A complaint goes to the lead of the team by the path of the closest colleagues, if there are others between them."""
    (reporter,) = complaint.actors
    path = shortest_paths(engine.state, reporter).get(lead, ())
    if len(path) > 2 and not any(person in engine.left for person in path):
        number, way = complaint.facts["incident"], " to ".join(path)
        text = f"The complaint about {number} went from {way}."
        engine.happen(
            "passed-on",
            [lead],
            {"incident": number, "way": way, "by": path[-2], "person": lead},
            [("mail", f"The way of the complaint about {number}", text, path)],
            cause=complaint.id,
        )


def centrality(engine: Engine, gone: str, lead: str, notice: Event) -> None:
    """The lead notes how many pairs of colleagues somebody who leaves stood between."""
    between = betweenness(engine.state)
    pairs = str(int(between[gone]))
    text = f"{gone} stood between {pairs} pairs of colleagues, writes {lead}."
    staff = [person for people in engine.teams.values() for person in people if person != gone]
    engine.happen(
        "centrality",
        [lead],
        {"person": gone, "pairs": pairs},
        [("mail", f"Who {gone} has connected", text, staff)],
        cause=notice.id,
    )
