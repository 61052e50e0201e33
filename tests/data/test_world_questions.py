"""Questions of invented worlds, and the solver that proves them.

Behaviours covered: the solver reads English as written; every question of every family has one answer;
no question holds its own answer; families, hops and paraphrases follow the dials.
"""

import re
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from agentenv.core.types import Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.data.world_config import FAMILY_HOPS, ONLY_IF_NAMED
from agentenv.data.world_facts import NOWHERE, PAGE_1, Facts, generate_facts
from agentenv.data.world_grammar import RELATIONS, TYPES
from agentenv.data.world_questions import generate_questions
from agentenv.data.world_solver import Solver, unfold
from agentenv.envs.search.local_search import as_turns
from agentenv.errors import ConfigurationError

CELLS = [(family, hops) for family, (low, high) in FAMILY_HOPS.items() for hops in range(low, high + 1)]


def test_a_form_unfolds_in_every_possible_way() -> None:
    assert list(unfold("Where was {s} born?", "Where was the author of X born?")) == [["the author of X"]]
    assert list(unfold("Where was {s} born?", "Where was born?")) == []
    assert list(unfold("{a} or {b}?", "x or y or z?")) == [["x", "y or z"], ["x or y", "z"]]
    assert list(unfold("Who followed {b} as head of {a}?", "Who followed P as head of O?")) == [["O", "P"]]


@cache
def tiny() -> Facts:
    """Two people, two towns, two works, one organisation and one event, all facts drawn by hand.

    Ann was born in Lo in 1900 and works for Org; Bob was born in Hi in 1910. Ann taught Bob. Both works are
    by Bob and about Hi. Org is based in Lo and was led by Ann, then by Bob. The mayor of both towns is Ann.
    """
    facts = generate_facts(WorldConfig(documents=200, questions=0))
    names = {
        "person": ["Ann", "Bob"],
        "place": ["Lo", "Hi"],
        "work": ["W1", "W2"],
        "organisation": ["Org"],
        "event": ["Cup"],
    }
    stated = {
        "person": {"birthplace": [0, 1], "birth_year": [1900, 1910], "employer": [0, -1], "mentor": [-1, 0]},
        "work": {"author": [1, 1], "subject": [1, 1]},
        "organisation": {"seat": [0], "successor": [1]},
        "place": {"mayor": [0, 0]},
        "event": {"winner": [1]},
    }
    values = {
        kind: {r.name: np.array(stated[kind].get(r.name, [-1] * len(names[kind]))) for r in RELATIONS[kind]}
        for kind in TYPES
    }
    return replace(facts, names={**facts.names, **names}, values=values, first_head=np.array([0]))


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("Where was Ann born?", {"Lo"}),
        ("When was Bob born?", {"1910"}),
        ("Which organisation does Bob work for?", set()),  # not stated
        ("Where was the author of W1 born?", {"Hi"}),
        ("Who taught the author of W2?", {"Ann"}),
        ("Who is the mayor of the town where the mentor of the winner of Cup was born?", {"Ann"}),
        ("Where was the author of Ann born?", set()),  # a person has no author
        ("How many works did Bob write?", {"2"}),
        ("How many works are by Ann?", {"0"}),
        ("Which work about Hi is by Bob?", {"W1", "W2"}),  # two fit: never emitted
        ("Which person born in Lo works for Org?", {"Ann"}),
        ("Which person born in Hi works for Org?", set()),
        ("Who was born earlier, Ann or Bob?", {"Ann"}),
        ("Who was born later, Ann or the author of W1?", {"Bob"}),
        ("Who was born first, Ann or Bob?", {"Ann"}),
        ("Who was born last, Ann, W1 or Bob?", set()),  # a work is not born
        ("Were Ann and Bob born in the same town?", {"no"}),
        ("Were W1 and W2 written by the same person?", {"yes"}),
        ("Who led Org directly after Ann?", {"Bob"}),
        ("Who led Org directly after Bob?", set()),
        ("Who followed Ann as head of the organisation that Ann works for?", {"Bob"}),
        ("What is love?", set()),
    ],
)
def test_the_solver_answers_from_the_facts(question: str, answers: set[str]) -> None:
    assert Solver(tiny()).answers(question) == answers


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("Who was born first, Ann, Bob or Cy?", {"Cy"}),
        ("Who was born last, Cy, Ann or Bob?", {"Bob"}),
        ("Who was born first, Cy, Dan or Bob?", {"Cy", "Dan"}),  # two are: never emitted
        ("Who was born first, Cy, Eve or Bob?", set()),  # not stated
    ],
)
def test_the_solver_compares_a_list(question: str, answers: set[str]) -> None:
    facts = tiny()
    people = {name: np.append(column, [-1, -1, -1]) for name, column in facts.values["person"].items()} | {
        "birth_year": np.array([1900, 1910, 1890, 1890, -1])
    }
    names = {**facts.names, "person": ["Ann", "Bob", "Cy", "Dan", "Eve"]}
    listed = replace(facts, names=names, values={**facts.values, "person": people})
    assert Solver(listed).answers(question) == answers


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("Where were Ann, Bob and Cy born?", {"Ann: Lo, Bob: Hi, Cy: Lo"}),
        ("Where were Cy, Bob and Ann born?", {"Cy: Lo, Bob: Hi, Ann: Lo"}),
        ("Where were Bob, Cy and Ann born?", {"Bob: Hi, Cy: Lo, Ann: Lo"}),  # in the order of the question
        ("Where were Ann, Bob and Dan born?", set()),  # not stated of Dan
        ("Where were Ann, Bob and Lo born?", set()),  # a town
        ("Where were Ann, Bob and Ann born?", set()),  # twice the same: never emitted
    ],
)
def test_the_solver_lists_the_value_of_each(question: str, answers: set[str]) -> None:
    facts = tiny()
    people = {name: np.append(column, [-1, -1]) for name, column in facts.values["person"].items()} | {
        "birthplace": np.array([0, 1, 0, -1])
    }
    names = {**facts.names, "person": ["Ann", "Bob", "Cy", "Dan"]}
    listed = replace(facts, names=names, values={**facts.values, "person": people})
    assert Solver(listed).answers(question) == answers


@pytest.mark.parametrize("family", ONLY_IF_NAMED)
def test_a_family_that_must_be_named_changes_no_other_world(family: str) -> None:
    """Each look-up of its questions has an entity of its own, and none waits for another."""
    named = FictionalWorld.generate(WorldConfig(hops=(3, 4), families=(family,), questions=60))
    assert {task.data["hops"] for task in named.questions} == {3, 4}
    for task in named.questions:
        entities = [hop["entity"] for hop in task.data["path"]]
        assert len(set(entities)) == len(entities)
        told = ", ".join(hop["answer"] for hop in task.data["path"])
        assert task.answers[1] == told if family == "list" else task.answers[0] in entities
        assert as_turns(task.data["path"], 4) == [[hop["query"] for hop in task.data["path"]]]
    others = FictionalWorld.generate(WorldConfig(hops=(3, 4), questions=60)).questions
    assert not set(ONLY_IF_NAMED) & {task.data["family"] for task in others}


@pytest.mark.parametrize(
    ("name", "relation", "told"),
    [
        ("Ann", "birthplace", "Lo"),
        ("Bob", "birth_year", "1910"),
        ("Bob", "employer", None),  # not stated
        ("Ann", "author", None),  # a person has no author
        ("Nobody", "birthplace", None),
    ],
)
def test_the_solver_says_what_is_stated_of_a_name(name: str, relation: str, told: str | None) -> None:
    assert Solver(tiny()).stated(name, relation) == told


def asked(facts: Facts, family: str, hops: int | None = None) -> set[str]:
    """Every question of ``family`` with ``hops``, or as few as it can have, that is asked of a world of these facts."""
    values = {kind: {**columns} for kind, columns in facts.values.items()}
    where = {
        kind: {name: np.where(column >= 0, PAGE_1, NOWHERE) for name, column in columns.items()}
        for kind, columns in values.items()
    }
    start = {kind: np.zeros(len(facts.names[kind]), dtype=np.int64) for kind in TYPES}
    low = hops or FAMILY_HOPS[family][0]
    config = WorldConfig(documents=200, questions=1000, families=(family,), hops=(low, low), paraphrase=1)
    found: set[str] = set()
    tasks = generate_questions(replace(facts, config=config, where=where, start=start))
    with pytest.raises(ConfigurationError):  # it is asked for more than there are
        found.update(task.question for task in tasks)
    return found


def test_a_question_that_two_entities_answer_is_never_asked() -> None:
    """Both works are by Bob and about Hi. With another author of the second work each question has one answer."""
    assert asked(tiny(), "intersection") == {"Which person born in Lo works for Org?"}
    works = tiny().values["work"] | {"author": np.array([1, 0])}
    apart = replace(tiny(), values=tiny().values | {"work": works})
    assert {"Which work about Hi is by Bob?", "Which work about Hi is by Ann?"} <= asked(
        apart, "intersection"
    )


def test_a_question_that_holds_its_answer_is_never_asked() -> None:
    """Ann Lo was born in Lo; in lower case and as a part of a word it is no answer."""
    start_version = "Where was {} born?"
    assert {start_version.format("Ann"), start_version.format("Bob")} <= asked(tiny(), "lookup")
    for name, leaks in {"Ann Lo": True, "Ann lo": True, "Ann Log": False}.items():
        told = replace(tiny(), names=tiny().names | {"person": [name, "Bob"]})
        assert (start_version.format(name) in asked(told, "lookup")) is not leaks
        assert start_version.format("Bob") in asked(told, "lookup")


def test_only_a_comparison_of_two_plain_names_may_hold_its_answer() -> None:
    """Its form names both candidates. With a phrase for one of them, the name of the other must not be the answer."""
    earlier, later = "Who was born earlier, {} or {}?", "Who was born later, {} or {}?"
    plain = asked(tiny(), "comparison")
    assert {earlier.format("Ann", "Bob"), later.format("Ann", "Bob")} & plain  # the same facts are asked once
    nested = asked(tiny(), "comparison", 3)
    assert later.format("Ann", "the author of W1") in nested  # Bob
    solver = Solver(tiny())
    assert not [one for one in nested if any(answer in one.split(",")[-1] for answer in solver.answers(one))]
    start_version = "Where was the author of {} born?"
    assert start_version.format("W1") in asked(tiny(), "bridge")
    told = replace(tiny(), names=tiny().names | {"work": ["Hi Saga", "W2"]})
    assert start_version.format("Hi Saga") not in asked(told, "bridge")  # Hi, by two hops as well
    assert start_version.format("W2") in asked(told, "bridge")


def test_no_question_is_asked_twice() -> None:
    """One fact is one question, however often it is drawn: a world has no more than it has facts."""
    lookups = sum(
        int((column >= 0).sum())
        for kind, columns in tiny().values.items()
        for name, column in columns.items()
        if (kind, name) != ("organisation", "successor")
    )
    assert len(asked(tiny(), "lookup")) == lookups


@pytest.mark.parametrize(("family", "hops"), CELLS)
@pytest.mark.parametrize("seed", range(4))
def test_every_question_has_one_answer_and_does_not_tell_it(family: str, hops: int, seed: int) -> None:
    config = WorldConfig(seed=seed, documents=1000, hops=(hops, hops), families=(family,), questions=25)
    world, solver = FictionalWorld.generate(config), Solver(generate_facts(config))
    assert (
        len({task.question for task in world.questions}) == len({task.id for task in world.questions}) == 25
    )
    for task in world.questions:
        assert solver.answers(task.question) == {task.answers[0]}
        assert (task.data["hops"], task.data["family"]) == (hops, family)
        assert len(task.data["path"]) == hops
        assert task.split == "test"
        if family not in ONLY_IF_NAMED and (family, hops) != ("comparison", 2):  # these name all candidates
            assert not any(
                re.search(rf"\b{re.escape(a)}\b", task.question, re.IGNORECASE) for a in task.answers
            )


def recount(world: FictionalWorld, task: Task) -> str:
    """The number of works as the list in the supporting document tells it."""
    text = {document.id: document.text for document in world.documents}[task.data["path"][-1]["document"]]
    titles = {document.title for document in world.documents if document.title.split()[-1] in WORK_NOUNS}
    last = [line for line in text.split(".") if re.search(r" wrote | is the author of |^ ?From ", line)]
    return str(sum(title in " ".join(last) for title in titles))


WORK_NOUNS = ("Ballad", "Saga", "Novel", "Opera", "Sonnet", "Diary")


def test_counts_can_be_read_off_the_supporting_document() -> None:
    world = FictionalWorld.generate(WorldConfig(families=("count",), questions=60))
    for task in world.questions:
        assert task.answers[0] == recount(world, task)
    assert len({task.answers[0] for task in world.questions}) == 3


def test_yes_and_no_are_balanced() -> None:
    world = FictionalWorld.generate(WorldConfig(families=("yes_no",), hops=(2, 2), questions=300))
    share = sum(task.answers == ("yes",) for task in world.questions) / 300
    assert share == pytest.approx(0.5, abs=0.02)


def test_families_get_equal_shares_and_hops_stay_in_range() -> None:
    world = FictionalWorld.generate(WorldConfig(hops=(1, 3), questions=140))
    assert Counter(task.data["family"] for task in world.questions) == {
        name: 20 for name in FAMILY_HOPS if name not in ONLY_IF_NAMED
    }
    assert {task.data["hops"] for task in world.questions} == {1, 2, 3}


def test_one_paraphrase_asks_and_states_in_one_way() -> None:
    config = WorldConfig(families=("lookup",), paraphrase=1, questions=200)
    world = FictionalWorld.generate(config)
    first = {r.questions[0] for kind in TYPES for r in RELATIONS[kind]}
    for task in world.questions:
        entity = task.data["path"][0]["entity"]
        assert task.question.replace(entity, "{s}") in first


def test_numbers_are_accepted_with_and_without_separator() -> None:
    world = FictionalWorld.generate(WorldConfig(families=("lookup",), questions=300))
    large = [task.answers for task in world.questions if task.data["path"][0]["relation"] == "population"]
    assert large
    assert all(answers == (answers[0], f"{int(answers[0]):,}") for answers in large)


def test_an_exhausted_world_says_how_much_it_has() -> None:
    with pytest.raises(ConfigurationError, match=r"\b500\b"):
        FictionalWorld.generate(
            WorldConfig(documents=200, hops=(1, 1), families=("temporal",), questions=500)
        )


def test_an_exhausted_family_leaves_the_others_their_turn() -> None:
    config = WorldConfig(documents=200, hops=(1, 1), families=("count", "lookup"), questions=150)
    counts = Counter(task.data["family"] for task in FictionalWorld.generate(config).questions)
    assert 0 < counts["count"] < 75 < counts["lookup"]
    assert counts.total() == 150
