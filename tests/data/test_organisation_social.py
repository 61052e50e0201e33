"""Closeness, stress and recurrence in organisations: formulas by hand, and every stated fact computed again from the log."""

import re
from collections import Counter
from statistics import fmean

import pytest

from agentenv.data.organisation import invent_organisation
from agentenv.data.organisation_graph import (
    FLOOR,
    SocialState,
    betweenness,
    bleed,
    is_key_player,
    named_root,
    shortest_paths,
    social_state,
    text_score,
)
from agentenv.data.organisation_log import Event, Organisation, OrganisationConfig
from agentenv.data.organisation_questions import NOBODY, organisation_tasks, questions_about

MADE = [invent_organisation(OrganisationConfig(seed=seed, followups=3, social=True)) for seed in range(4)]
each = pytest.mark.parametrize("made", MADE, ids=lambda made: f"seed {made.config.seed}")
TEAMS = {"t": ("Ada", "Bob", "Cyd"), "u": ("Dan", "Eve")}


def in_order(made: Organisation) -> list[Event]:
    """The log as the engine has made it."""
    return sorted(made.events, key=lambda event: int(event.id.removeprefix("event-")))


def looked(number: int, day: int, *actors: str) -> Event:
    return Event(f"event-{number}", "investigating", (day, 600), actors, {"incident": f"INC-{number}"})


def test_an_incident_strengthens_an_edge_by_four_and_a_night_lets_it_fade_to_the_floor() -> None:
    """.5 + 4 = 4.5 and 1.5 more for a talk; a night later 6 * .97 = 5.82; other edges stay at their floor."""
    talk = Event("event-2", "hr-checkin", (1, 700), ("Bob", "Ada"), {"person": "Bob"})
    state = social_state(TEAMS, [looked(1, 1, "Ada", "Bob"), talk])
    assert (state.weight("Ada", "Bob"), state.weight("Bob", "Ada")) == (6.0, 6.0)
    state.pass_day()
    assert state.weight("Ada", "Bob") == pytest.approx(5.82)
    assert state.weight("Ada", "Cyd") == state.weight("Ada", "Dan") == FLOOR  # leads know each other
    assert state.weight("Bob", "Eve") == 0.0


def test_stress_rises_by_twenty_an_incident_and_falls_by_three_a_night() -> None:
    """Two incidents on day 1, one on day 3: 40 - 6 + 20 = 54. The same incident counts once; 100 is the most."""
    events = [looked(1, 1, "Ada", "Bob"), looked(1, 1, "Ada"), looked(2, 1, "Ada"), looked(3, 3, "Ada")]
    assert social_state(TEAMS, events).stress == {"Ada": 54, "Bob": 14}
    many = social_state(TEAMS, [looked(n, 1, "Ada") for n in range(9)])
    assert many.stress == {"Ada": 100}
    assert many.burnt_out() == ["Ada"]
    assert social_state(TEAMS, [looked(1, 9, "Ada"), looked(2, 30, "Bob")]).stress["Ada"] == 0


def test_seventy_two_is_burnt_out() -> None:
    state = SocialState({}, {"Ada": 71, "Bob": 72})
    assert state.burnt_out() == ["Bob"]


def test_a_burnt_out_key_player_passes_a_quarter_of_the_excess_on_by_the_strength_of_edges() -> None:
    """Excess 100 - 72 = 28, a quarter is 7: by 3 : 1 that is int(5.25) = 5 and int(1.75) = 1."""
    assert bleed(100, {"Bob": 3.0, "Cyd": 1.0}) == {"Bob": 5, "Cyd": 1}
    assert bleed(72, {"Bob": 1.0}) == {"Bob": 0}
    star = {("Ada", "Bob"): 3.0, ("Ada", "Cyd"): 1.0}
    state = SocialState(star, {"Ada": 100, "Bob": 90})  # Bob stands between nobody
    state.pass_day()
    assert state.stress == {"Ada": 97, "Bob": 92, "Cyd": 0}  # 90 + 5 - 3, and 1 - 3 ends at 0


def test_complaints_go_by_strong_edges_and_over_six_edges_at_most() -> None:
    """A direct edge of .5 costs 2; by way of Bob it costs 1/4 + 1/2 = .75. Seven weak edges in a row are too many."""
    state = SocialState({("Ada", "Bob"): 4.0, ("Bob", "Cyd"): 2.0, ("Ada", "Cyd"): 0.5})
    assert shortest_paths(state, "Ada")["Cyd"] == ("Ada", "Bob", "Cyd")
    line = SocialState(dict.fromkeys(zip("abcdefg", "bcdefgh", strict=True), 1.0))
    assert "".join(shortest_paths(line, "a")["g"]) == "abcdefg"
    assert "h" not in shortest_paths(line, "a")


def test_of_equal_paths_the_first_by_name_is_taken() -> None:
    square = {("Ada", "Bob"): 1.0, ("Ada", "Cyd"): 1.0, ("Bob", "Dan"): 1.0, ("Cyd", "Dan"): 1.0}
    assert shortest_paths(SocialState(square), "Ada")["Dan"] == ("Ada", "Bob", "Dan")


def test_betweenness_counts_the_pairs_whose_path_leads_through_somebody() -> None:
    """On the line a - b - c - d: ac, ad lead through b, and ad, bd through c."""
    between = betweenness(SocialState({("a", "b"): 1.0, ("b", "c"): 1.0, ("c", "d"): 1.0}))
    assert between == {"a": 0, "b": 2, "c": 2, "d": 0}
    assert is_key_player("b", between)  # twice the median of 1
    assert not is_key_player("a", between)
    assert not is_key_player("x", {"x": 3.0, "y": 2.0, "z": 2.0})
    assert not is_key_player("x", {"x": 0.0, "y": 0.0})


def test_the_earliest_incident_that_looks_alike_is_named_even_where_a_later_one_is_equal() -> None:
    """Two of five words in common: 4/10 = .4, which is accepted. One: .2."""
    assert text_score("a b c d e", "A b x y z") == 0.4
    assert text_score("", "a") == 0.0
    earlier = [("INC-1", "a v w x y"), ("INC-2", "a b x y z"), ("INC-3", "a b c d e")]
    assert named_root("a b c d e", earlier) == ("INC-2", 0.4)  # the pitfall of the rule: INC-3 is the same
    assert named_root("a b c d e", earlier[:1]) is None


@each
def test_what_is_said_of_recurrence_follows_from_the_messages_alone(made: Organisation) -> None:
    """A reader who compares the messages names the same incidents, and knows where none was named."""
    texts = "\n".join(document.text for document in made.documents)
    seen = dict(re.findall(r"This is incident (INC-\d+)\.(?:.*?) What is seen: ([\w -]+)\.", texts))
    said = {n: (root, sure) for n, sure, root in re.findall(r"(INC-\d+) is (\w+) (INC-\d+) again", texts)}
    order = sorted(seen, key=lambda number: int(number.removeprefix("INC-")))
    for place, number in enumerate(order):
        root = named_root(seen[number], [(other, seen[other]) for other in order[:place]])
        expected = None if root is None else (root[0], "surely" if root[1] >= 0.6 else "perhaps")
        assert said.get(number) == expected
    for task in questions_about(made):
        if task.data["family"].startswith("recurrence"):
            (number,) = re.findall(r"INC-\d+", task.question)
            assert task.answers == ((said[number][0],) if number in said else (NOBODY,))


@each
def test_burnout_paths_and_centrality_are_what_the_log_before_them_gives(made: Organisation) -> None:
    log = in_order(made)
    burnt: set[str] = set()
    for place, event in enumerate(log):
        before = log[:place]
        if event.kind == "burnout":
            state, person = social_state(made.teams, before), event.facts["person"]
            assert state.stress[person] >= 72
            assert person not in burnt
            burnt.add(person)
        elif event.kind == "passed-on":
            (reporter,) = next(one for one in before if one.id == event.cause).actors
            path = shortest_paths(social_state(made.teams, before), reporter)[event.facts["person"]]
            assert event.facts["way"] == " to ".join(path)
            assert (event.facts["by"], len(path) > 2) == (path[-2], True)
        elif event.kind == "centrality":
            between = betweenness(social_state(made.teams, before))
            assert event.facts["pairs"] == str(int(between[event.facts["person"]]))


@each
def test_whoever_burns_out_at_an_incident_is_written_of(made: Organisation) -> None:
    """Nobody who took part is left out, so that the absence of such a mail proves something."""
    log = in_order(made)
    for place, event in enumerate(log):
        if event.kind == "investigating":
            burnt = social_state(made.teams, log[: place + 1]).burnt_out()
            told = {e.facts["person"] for e in log[: place + 3] if e.kind == "burnout"}
            assert {person for person in event.actors if person in burnt} <= told


@each
def test_who_leaves_hands_over_first_and_says_farewell_last(made: Organisation) -> None:
    kinds = ("handover", "reassigned", "centrality", "knowledge-gap", "departure")
    order = [event.kind for event in in_order(made) if event.kind in kinds]
    assert order == sorted(order, key=kinds.index)
    assert {"handover", "centrality", "departure"} <= set(order)
    (told,) = (event for event in made.events if event.kind == "departure")
    assert max(event.time for event in made.events if event.kind in kinds) == told.time
    assert made.left == {told.facts["person"]: told.time}


def test_questions_about_it_are_balanced_and_their_proofs_state_the_answers() -> None:
    families: Counter[str] = Counter()
    for made in MADE:
        text = {document.id: document.text for document in made.documents}
        for task in questions_about(made):
            families[task.data["family"]] += 1
            if task.data["family"] in ("recurrence, present", "way", "centrality", "burnout, yes"):
                (proof,) = task.data["supporting_ids"]
                named = re.search(r"that (\w+ \w+) had burnt", task.question)
                assert (named[1] if named else task.answers[0]) in text[proof]
    for kind, answers in (("recurrence", "present absent"), ("burnout", "yes no")):
        counts = [families[f"{kind}, {answer}"] for answer in answers.split()]
        assert counts[0] == counts[1] > 0
    assert families["way"] > 0
    assert families["centrality"] == len(MADE)


def test_neither_a_small_number_nor_always_no_tells_an_answer() -> None:
    """Nobody burns out in some organisations, and the first incidents are no other ones again."""
    answers: Counter[str] = Counter()
    numbers: dict[str, list[int]] = {"present": [], "absent": []}
    for seed in range(12):
        for task in questions_about(
            invent_organisation(OrganisationConfig(seed=seed, followups=3, social=True))
        ):
            kind, _, answer = task.data["family"].partition(", ")
            if kind == "burnout":
                answers[answer] += 1
            if kind == "recurrence":
                numbers[answer].append(int(task.question.split("INC-")[1].split()[0]))
    assert answers["yes"] == answers["no"] > 0
    assert len(numbers["present"]) == len(numbers["absent"]) > 12
    assert abs(fmean(numbers["present"]) - fmean(numbers["absent"])) < 1.5


def test_the_answer_about_burnout_depends_on_the_time_of_the_mail() -> None:
    for made in MADE:
        told = {e.facts["person"]: e.time for e in made.events if e.kind == "burnout"}
        for task in questions_about(made):
            if task.data["family"].startswith("burnout"):
                found = re.match(r"By day (\d+), (\d\d):(\d\d), .* that (\w+ \w+) had", task.question)
                assert found is not None
                time = (int(found[1]), 60 * int(found[2]) + int(found[3]))
                assert task.answers == ("yes" if told.get(found[4], (999, 0)) <= time else "no",)


def test_without_the_option_nothing_of_it_happens_and_a_task_carries_it() -> None:
    plain = invent_organisation(OrganisationConfig(seed=0, followups=3))
    assert not {"recurrence", "burnout", "passed-on", "handover", "centrality"} & {
        e.kind for e in plain.events
    }
    assert not any("What is seen" in document.text for document in plain.documents)
    (task,) = organisation_tasks(1, seed=0, split="train", social=True)
    assert task.data["organisation"]["social"] is True
    (task,) = organisation_tasks(1, seed=0, split="train")
    assert "social" not in task.data["organisation"]
