"""Organisations: clocks, rules, causes, who saw what, and answers that are proved from the log and from the texts alone."""

import re
import sys
from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from agentenv.core.types import Document, Task
from agentenv.data.organisation import invent_organisation
from agentenv.data.organisation_engine import COOLDOWN, KINDS, Engine
from agentenv.data.organisation_graph import social_state
from agentenv.data.organisation_log import (
    CLOSES,
    OPENS,
    Artefact,
    Event,
    Organisation,
    OrganisationConfig,
    clock,
)
from agentenv.data.organisation_questions import NOBODY, organisation_tasks, questions_about
from agentenv.errors import ConfigurationError, UnknownName

MADE = [invent_organisation(OrganisationConfig(seed=seed)) for seed in range(4)]
SOCIAL = invent_organisation(OrganisationConfig(seed=4, followups=3, social=True))


@pytest.mark.parametrize("made", [*MADE, SOCIAL], ids=lambda made: f"seed {made.config.seed}")
def test_the_log_keeps_its_rules(made: Organisation) -> None:
    by_id = {event.id: event for event in made.events}
    assert [event.time for event in made.events] == sorted(event.time for event in made.events)
    for event in made.events:
        assert OPENS <= event.time[1] <= CLOSES + 90
        assert all(event.time <= made.left[actor] for actor in event.actors if actor in made.left)
        if event.cause is not None:
            assert by_id[event.cause].time < event.time
    for kind, days in COOLDOWN.items():
        for team in (None, *made.teams):
            alike = [e for e in made.events if e.kind == kind and e.facts.get("team") == team]
            assert all(later.time[0] - earlier.time[0] >= days for earlier, later in pairwise(alike))
    progress = Counter((e.actors[0], e.time[0]) for e in made.events if e.kind == "progress")
    assert max(progress.values()) == 1
    assert made.refused["one progress a day"] > 0  # what breaks a rule is proposed, and refused
    assert made.refused["cooldown"] > 0


PUBLISHED_MINUTES = {
    "investigating": (1, 4),
    "resolved": (2, 5),
    "stability-update": (10, 35),
    "post-mortem": (10, 35),
}
"""Of OrgForge: messages about incidents, of the ticket system, and those that nobody waits for."""


@pytest.mark.parametrize("kind", PUBLISHED_MINUTES)
def test_a_message_takes_the_published_minutes(kind: str) -> None:
    """From the latest of its cause and of what its people did before, where both lie on the same day."""
    low, high = PUBLISHED_MINUTES[kind]
    taken = []
    for made in MADE:
        times: dict[str | None, tuple[int, int]] = {}  # of events by id, and of the latest of each person
        for event in made.events:
            before = max((times[one] for one in (event.cause, *event.actors) if one in times), default=(0, 0))
            times |= dict.fromkeys((event.id, *event.actors), event.time)
            if event.kind == kind and event.time[0] == before[0]:
                taken.append(event.time[1] - before[1])
    assert low <= min(taken) <= max(taken) <= high
    assert len(taken) > 5


@pytest.mark.parametrize("made", [*MADE, SOCIAL], ids=lambda made: f"seed {made.config.seed}")
def test_what_is_written_states_its_event_and_reaches_nobody_who_has_left(made: Organisation) -> None:
    by_id = {event.id: event for event in made.events}
    for artefact in made.artefacts:
        event = by_id[artefact.event]
        assert all(value in artefact.document.text or key == "team" for key, value in event.facts.items())
        assert artefact.document.title.startswith(f"[{artefact.channel}] {clock(artefact.time)}: ")
        assert all(artefact.time <= made.left[person] for person in artefact.audience if person in made.left)
    assert len({document.id for document in made.documents}) == len(made.documents)


def test_what_the_engine_does_not_know_happens_only_if_its_name_tells_the_channel() -> None:
    kinds = {event.kind for made in MADE for event in made.events}
    assert sum(made.refused.get("novel kind", 0) for made in MADE) > 0
    assert sum(made.refused.get("morale", 0) for made in MADE) > 0
    assert kinds - KINDS == {"mail-digest"}
    social = {"recurrence", "burnout", "passed-on", "handover", "centrality"}
    assert KINDS - kinds - social <= {"hackathon"}  # invented in few organisations
    assert not kinds & social


def test_equal_configs_give_equal_organisations_and_splits_share_no_name() -> None:
    config = OrganisationConfig(seed=9, split="dev")
    assert invent_organisation(config) == invent_organisation.__wrapped__(config)
    people = {person for team in invent_organisation(config).teams.values() for person in team}
    others = {person for team in MADE[0].teams.values() for person in team}
    words = [{word for person in some for word in person.split()} for some in (people, others)]
    assert words[0].isdisjoint(words[1])


def small() -> Organisation:
    """Ada wrote to Bob on day 2 that something was fixed; Cyd, who was in no audience, left on day 1."""
    events = (
        Event("e0", "detected", (1, 600), ("Ada",), {"incident": "INC-1"}),
        Event("e1", "fixed", (2, 600), ("Ada",), {"incident": "INC-1"}, "e0"),
        Event("e2", "detected", (2, 700), ("Bob",), {"incident": "INC-2"}),
    )
    mail = Artefact(
        Document("m", "[mail] day 2, 10:00: x", "x"), "mail", (2, 600), frozenset({"Ada", "Bob"}), "e1"
    )
    return Organisation(
        OrganisationConfig(), "O", {"t": ("Ada", "Bob", "Cyd")}, {"Bob": (3, 0)}, events, (mail,), {}
    )


@pytest.mark.parametrize(
    ("person", "time", "knows"),
    [
        ("Bob", (2, 600), True),
        ("Bob", (2, 599), False),
        ("Bob", (9, 0), True),  # it was seen before leaving
        ("Cyd", (9, 0), False),
    ],
)
def test_who_could_know_what_when(person: str, time: tuple[int, int], knows: bool) -> None:
    assert bool(small().seen(person, "e1", time)) is knows


def test_what_is_written_after_somebody_left_is_not_known_to_them() -> None:
    made = small()
    gone = Organisation(made.config, "O", made.teams, {"Bob": (2, 500)}, made.events, made.artefacts, {})
    assert not gone.seen("Bob", "e1", (9, 0))


def test_what_depends_on_what() -> None:
    made = small()
    assert made.depends_on("e1", "e0")
    assert made.depends_on("e0", "e0")
    assert not made.depends_on("e0", "e1")
    assert not made.depends_on("e1", "e2")


@pytest.mark.parametrize(
    ("kind", "actors", "facts", "rule"),
    [
        ("sprint", ["Eve"], {}, "unknown person"),
        ("sprint", ["Cyd"], {}, "departed person"),
        ("celebration", ["Ada"], {}, "health"),
        ("hackathon", ["Ada"], {}, "health"),
        ("fire-drill", ["Ada"], {}, "novel kind"),
        ("mail-digest", ["Ada"], {}, ""),
        ("stability-update", ["Ada"], {"incident": "INC-7"}, "no incident"),
        ("morale-intervention", ["Ada"], {}, "morale"),
        ("post-mortem", ["Ada"], {"incident": "INC-7"}, "no incident"),
        ("post-mortem", ["Ada"], {"incident": "INC-1"}, ""),
        ("retrospective", ["Ada"], {}, "cooldown"),
        ("sprint", ["Ada"], {"team": "t"}, "cooldown"),
        ("sprint", ["Ada"], {"team": "u"}, ""),
        ("progress", ["Ada"], {}, "one progress a day"),
        ("progress", ["Bob"], {}, ""),
    ],
)
def test_the_first_rule_against_an_event(
    kind: str, actors: list[str], facts: dict[str, str], rule: str
) -> None:
    engine = Engine(
        OrganisationConfig(),
        Random(0),
        {"t": ("Ada", "Bob", "Cyd")},
        {},
        {"Ada": (5, OPENS), "Bob": (5, OPENS), "Cyd": (5, OPENS)},
        left={"Cyd": (4, 0)},
        health=39,
    )
    for event in (
        Event("e0", "detected", (1, 600), ("Ada",), {"incident": "INC-1"}),
        Event("e1", "retrospective", (4, 600), ("Ada",), {}),
        Event("e2", "progress", (5, 600), ("Ada",), {}),
        Event("e3", "sprint", (1, 600), ("Ada",), {"team": "t"}),
    ):
        engine.record(event)
    assert engine.refusal(kind, actors, facts) == rule


@pytest.mark.parametrize("social", [False, True])
def test_an_event_costs_no_more_the_longer_the_log_is(social: bool) -> None:
    """Calls of Python functions and generators for an event that is proposed, in organisations of 30 and of 120 days."""

    def calls(days: int) -> float:
        counted = Counter[str]()
        sys.setprofile(lambda _frame, what, _argument: counted.update((what,)))
        try:
            made = invent_organisation.__wrapped__(OrganisationConfig(days=days, social=social))
            questions_about(made)
        finally:
            sys.setprofile(None)
        return counted["call"] / (len(made.events) + sum(made.refused.values()))

    assert calls(120) < 1.5 * calls(30)


def test_the_state_of_the_engine_is_that_of_its_log() -> None:
    engine = Engine(
        OrganisationConfig(social=True),
        Random(0),
        {"t": ("Ada", "Bob")},
        {},
        {"Ada": (1, OPENS), "Bob": (1, OPENS)},
    )
    for day in (1, 4, 4):
        engine.record(
            Event(f"e{day}", "investigating", (day, 600), ("Ada", "Bob"), {"incident": f"INC-{day}"})
        )
    assert engine.state == social_state(engine.teams, engine.events)
    assert engine.state.stress == {
        "Ada": 31,
        "Bob": 31,
    }  # 20, three nights of 3, and 20 of the second incident, once


def test_a_team_is_thanked_only_where_morale_is_low() -> None:
    engine = Engine(OrganisationConfig(), Random(0), {"t": ("Ada",)}, {}, {"Ada": (5, OPENS)}, morale=0.6)
    assert engine.refusal("morale-intervention", ["Ada"], {}) == ""
    engine.feel(0.01)
    assert engine.refusal("morale-intervention", ["Ada"], {}) == "morale"
    engine.feel(7.0)
    assert engine.morale == 1.0
    engine.feel(-7.0)
    assert engine.morale == 0.0


def test_what_a_leaver_has_fixed_and_nobody_described_is_told_to_the_team() -> None:
    gaps = 0
    for seed in range(12):
        made = invent_organisation(OrganisationConfig(seed=seed))
        (gone, left), *_ = made.left.items()
        fixed = [e.facts["incident"] for e in made.events if e.kind == "fixed" and e.facts["person"] == gone]
        missing = [number for number in fixed if "post-mortem" not in made.incident(number)]
        told = [e for e in made.events if e.kind == "knowledge-gap"]
        assert bool(told) is bool(missing)
        for event in told:
            gaps += 1
            assert event.time > left
            assert event.facts["missing"].split(", ") == missing
            assert event.facts["share"] == f"{len(missing)} of {len(fixed)}"
            (mail,) = made.of_event(event.id)
            assert gone not in mail.audience
    assert gaps > 0


def test_the_answers_follow_from_the_texts_alone() -> None:
    """A reader who knows nothing of the engine finds who fixed an incident and who wrote of it, or that nobody did."""
    for made in MADE:
        texts = "\n".join(document.text for document in made.documents)
        asked = {"fact": 0, "silence, absent": 0, "silence, present": 0}
        for task in questions_about(made):
            number = re.search(r"INC-\d+", task.question)
            if task.data["family"] not in asked or number is None:
                continue
            asked[task.data["family"]] += 1
            pattern = {
                "Who fixed": rf"(\w+ \w+): I have fixed the service \w+, {number[0]} can",
                "Who wrote": rf"(\w+ \w+) has written the post-mortem of {number[0]}:",
                "Who reported": rf"(\w+ \w+) reports that a customer complains about {number[0]} ",
            }[" ".join(task.question.split()[:2])]
            found = re.findall(pattern, texts)
            assert task.answers == ((found[0],) if found else (NOBODY,))
        assert all(asked.values())


def test_the_answers_of_each_kind_are_balanced() -> None:
    families = Counter(task.data["family"] for made in FOLLOWED for task in questions_about(made))
    for kind, answers in (
        ("perspective", "yes no"),
        ("counterfactual", "yes no"),
        ("silence", "present absent"),
    ):
        counts = [families[f"{kind}, {answer}"] for answer in answers.split()]
        assert counts[0] == counts[1] > 0
    tasks = organisation_tasks(60, seed=0, split="train")
    assert len({task.id for task in tasks}) == 60


@pytest.mark.parametrize("changes", [{"people": 5}, {"days": 9}, {"seed": -1}], ids=str)
def test_numbers_out_of_range_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(changes))}={next(iter(changes.values()))}"):
        OrganisationConfig(**changes)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="'tst'"):
        OrganisationConfig(split="tst")  # type: ignore[arg-type]


FOLLOWED = [invent_organisation(OrganisationConfig(seed=seed, followups=3)) for seed in range(4)]


@pytest.mark.parametrize("made", FOLLOWED, ids=lambda made: f"seed {made.config.seed}")
def test_an_incident_leads_to_others_by_way_of_its_repair(made: Organisation) -> None:
    by_id = {event.id: event for event in made.events}
    lengths = set()
    for event in made.events:
        if event.kind == "detected":
            behind = made.led_to(event.facts["incident"])
            lengths.add(len(behind))
            if behind:
                cause = by_id[event.cause or ""]
                assert (cause.kind, cause.facts["incident"]) == ("fixed", behind[0])
                assert cause.time < event.time
                root = made.incident(behind[-1])["detected"]
                assert made.depends_on(event.id, root.id)
    assert lengths <= {0, 1, 2, 3}
    assert max(lengths) >= 1


def test_questions_go_back_along_incidents_and_the_texts_alone_answer_them() -> None:
    depths = set()
    for made in FOLLOWED:
        texts = "\n".join(document.text for document in made.documents)
        behind = dict(re.findall(r"This is incident (INC-\d+)\. The change that fixed (INC-\d+) has", texts))
        fixer = {
            n: p for p, n in re.findall(r"(\w+ \w+): I have fixed the service \w+, (INC-\d+) can", texts)
        }
        for task in questions_about(made):
            if task.data["family"] == "chain":
                (number,) = re.findall(r"INC-\d+", task.question)
                depth = task.question.count("that led to")
                for _ in range(depth):
                    number = behind[number]
                assert task.answers == (fixer[number],)
                assert (task.data["hops"], len(task.data["path"])) == (depth + 1, depth + 1)
                depths.add(depth)
    assert depths == {1, 2, 3}


def test_the_numbers_of_incidents_do_not_tell_what_would_not_be_without_one() -> None:
    """Of each difference of numbers half of the answers are no, and the messages that a question names tell which."""
    told: Counter[tuple[int, str]] = Counter()
    for made in FOLLOWED:
        behind = dict(
            re.findall(
                r"This is incident (INC-\d+)\. The change that fixed (INC-\d+) has",
                "\n".join(document.text for document in made.documents),
            )
        )
        texts = {document.id: document.text for document in made.documents}
        for task in questions_about(made):
            if not task.data["family"].startswith("counterfactual"):
                continue
            other, number = re.findall(r"INC-\d+", task.question)
            passed, one = [other], other
            while (one := behind.get(one, "")) and one != number:
                passed.append(one)
            assert task.answers == ("no" if one == number else "yes",)
            shown = "\n".join(texts[name] for name in task.data["supporting_ids"])
            assert re.findall(r"This is incident (INC-\d+)\.", shown) == passed
            assert [step["query"] for step in task.data["path"]] == [
                f"chat: This is incident {name}" for name in passed
            ]
            told[int(other[4:]) - int(number[4:]), task.answers[0]] += 1
    assert {distance for distance, _ in told} >= {1, 2}
    assert all(distance > 0 and told[distance, "yes"] == told[distance, "no"] for distance, _ in [*told])
    alone = invent_organisation(OrganisationConfig(seed=0))  # where no incident leads to another
    assert not any(task.data["family"].startswith("counterfactual") for task in questions_about(alone))


SAYS = {
    "was fixed": (
        r"I have fixed the service \w+, {0} can|{0} of the service \w+ is resolved; .* has fixed it|that fixed {0} has|"
        r"tells everybody that {0} of the service \w+ was fixed"
    ),
    "was resolved": r"{0} of the service \w+ is resolved",
    "was written": r"has written the post-mortem of {0}:",
    "complained": r"a customer complains about {0} of",
}
"""What a text says by which somebody knows of an event, by what a question says of the event."""


def read_by(made: Organisation, task: Task) -> list[str]:
    """The ids of the texts that state what a question of perspective asks for, and that the person had seen in time."""
    asked = re.match(r"On day (\d+), (\d\d):(\d\d), could (\w+ \w+) know", task.question)
    number = re.search(r"INC-\d+", task.question)
    assert asked is not None
    assert number is not None
    person, time = asked[4], (int(asked[1]), 60 * int(asked[2]) + int(asked[3]))
    pattern = next(text for words, text in SAYS.items() if words in task.question).format(number[0])
    until = min(time, made.left.get(person, time))
    return [
        artefact.document.id
        for artefact in made.artefacts
        if person in artefact.audience
        and artefact.time <= until
        and re.search(pattern, artefact.document.text)
    ]


@pytest.mark.parametrize("followups", [0, 3])
def test_no_text_that_somebody_had_seen_contradicts_what_they_could_know(followups: int) -> None:
    """Who saw the message of an incident that a repair has caused knows of the repair, whoever wrote of it before."""
    counts: Counter[str] = Counter()
    told_later = told_all = 0
    for seed in range(8):
        made = invent_organisation(OrganisationConfig(seed=seed, followups=followups))
        for task in questions_about(made):
            if task.data["family"].startswith("perspective"):
                read = read_by(made, task)
                assert task.answers == ("yes" if read else "no",), task.question
                counts[task.answers[0]] += 1
                if read:
                    (proof,) = task.data["supporting_ids"]
                    assert proof == read[0]
                    text = next(document.text for document in made.documents if document.id == proof)
                    told_later += "has caused it" in text
                    told_all += "tells everybody" in text
    assert counts["yes"] == counts["no"] >= 50
    assert (told_later > 0) is (followups > 0)
    assert told_all > 0


def test_an_organisation_without_followups_is_as_it_was() -> None:
    assert not any("has caused it" in document.text for made in MADE for document in made.documents)
    assert all(
        made.led_to(e.facts["incident"]) == [] for made in MADE for e in made.events if e.kind == "detected"
    )
    assert not any(task.data["family"] == "chain" for made in MADE for task in questions_about(made))
    with pytest.raises(ConfigurationError, match="followups=11"):
        OrganisationConfig(followups=11)
