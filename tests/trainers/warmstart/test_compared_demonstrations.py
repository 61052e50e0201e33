"""Comparisons that a policy imitates: the pages are those of the environment, which pays the answer; numbers by hand."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from agentenv.core.types import Document, Passage, Query, Step, Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_solver import Solver
from agentenv.envs.search.local_search import LocalSearch
from agentenv.policies.policy_spec import make_policy
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.warmstart.compared_demonstrations import (
    all_at_once,
    asking_again,
    comparing,
    one_by_one,
)
from agentenv.trainers.warmstart.demonstrations import Demo, DemonstrationContext, Demonstrator, Library

WORLD = WorldConfig(seed=3, documents=200, questions=24, families=("match",), hops=(3, 4), split="train")
TASK = Task(
    "q",
    "Who works as a poet: Ann, Bea or Cid?",
    ("Bea",),
    data={
        "path": tuple(
            {
                "query": f"{name} occupation",
                "entity": name,
                "document": name,
                "relation": "occupation",
                "answer": work,
            }
            for name, work in (("Ann", "smith"), ("Bea", "poet"), ("Cid", "judge"))
        )
    },
)


class Shelf(InMemoryRetriever):
    """Finds what a demonstrator finds."""

    def __init__(self, library: Library) -> None:
        super().__init__([Document("d", "Nowhere", "Nothing is known of it.")])
        self.library = library

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        return [self.library.search(query if isinstance(query, str) else query.text) for query in queries]


def contexts() -> Iterator[DemonstrationContext]:
    world = FictionalWorld.generate(WORLD)
    library, solver = Library(world.documents, HashEncoder(), 1), Solver(generate_facts(WORLD))
    for task in world.questions:
        yield DemonstrationContext(task, library, world.questions, solver, Random(0))


@pytest.mark.parametrize(
    ("demonstrator", "queries"),
    [(all_at_once, 8), (asking_again, 1), (one_by_one, 1), (one_by_one, 8)],
)
def test_the_environment_shows_what_was_demonstrated(demonstrator: Demonstrator, queries: int) -> None:
    """Every page is that of the environment with so many queries a turn, the answer earns 1, and the turns fit."""
    run, played = load_config("lab-parallel"), 0
    tokenizer = make_policy("tiny").tokenizer

    def count(text: str) -> int:
        return len(tokenizer.encode(text))

    options = dict(run.env.options) | {"queries": queries, "count_tokens": count}
    for context in contexts():
        demo = demonstrator(context)
        if not demo:
            continue
        played += 1
        own = [piece.text for piece in demo if piece.kind == "own"]
        steps = asyncio.run(
            played_in(LocalSearch(tasks=[context.task], retriever=Shelf(context.library), **options), own)
        )
        shown = [message.text for step in steps for message in step.observation]
        assert shown == [piece.text for piece in demo if piece.kind == "page"]
        assert [step.reward for step in steps] == [0.0] * (len(own) - 1) + [1.0]
        assert max(map(count, own)) <= run.rollout.turn_tokens
    assert played > 6


async def played_in(env: LocalSearch, actions: Sequence[str]) -> list[Step]:
    await env.areset()
    return [await env.astep(action) for action in actions]


class Found:
    """Finds the documents that are named, each by its name."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def search(self, query: str) -> list[Passage]:
        return [Passage(name, name, "A page.", 1.0) for name in self.names if query.startswith(name)]


def asked_of(library: Any, task: Task = TASK, rng: Random | None = None) -> DemonstrationContext:
    nothing: Any = None
    return DemonstrationContext(task, library, others=(), solver=nothing, rng=rng or Random(0))


@pytest.mark.parametrize(
    ("found", "thought"),
    [
        (
            ("Ann", "Bea", "Cid"),
            "<think> Ann smith, Bea poet, Cid judge. poet </think><answer> Bea </answer>",
        ),
        (("Bea", "Cid"), "<think> Ann ?, Bea poet, Cid judge. poet </think><answer> Bea </answer>"),
        (("Bea",), "<think> Ann ?, Bea poet, Cid ?. poet </think><answer> Bea </answer>"),
        (("Ann", "Cid"), "<think> Ann smith, Bea ?, Cid judge. poet </think><answer> Bea </answer>"),
        (("Ann",), None),  # Bea or Cid: nothing tells
    ],
)
def test_nothing_is_answered_that_what_was_found_does_not_tell(
    found: Sequence[str], thought: str | None
) -> None:
    for demonstrator in (all_at_once, asking_again, one_by_one):
        demo = demonstrator(asked_of(Found(*found)))
        assert [piece.text for piece in demo[-1:]] == ([thought] if thought else [])


def test_turns_ask_for_everything_for_what_is_missing_or_for_one_thing() -> None:
    def lines(demo: Demo) -> list[int]:
        return [piece.text.count("\n") + 1 for piece in demo if piece.text.startswith("<search>")]

    context = asked_of(Found("Ann", "Bea", "Cid"))
    assert lines(all_at_once(context)) == [3]
    assert lines(asking_again(context)) == [3, 2, 1]
    assert lines(one_by_one(context)) == [1, 1, 1]


def comparison(task: Task, seed: int) -> tuple[str, list[str]]:
    """What is given first, and then each property with what is learned after it, in the order of the properties."""
    first, *rest = comparing(asked_of(None, task, Random(seed)))
    assert [piece.kind for piece in (first, *rest)] == ["page", *["page", "own"] * (len(rest) // 2)]
    texts = [piece.text for piece in rest]
    return first.text, sorted("".join(pair) for pair in zip(texts[::2], texts[1::2], strict=True))


def test_comparing_asks_for_each_property_whether_or_not_one_thing_is_unknown() -> None:
    told = {comparison(TASK, seed)[0] for seed in range(40)}
    assert told == {
        "<think> Ann smith, Bea poet, Cid judge.",
        "<think> Ann ?, Bea poet, Cid judge.",
        "<think> Ann smith, Bea ?, Cid judge.",
        "<think> Ann smith, Bea poet, Cid ?.",
    }
    for seed in range(40):
        assert comparison(TASK, seed)[1] == [
            " judge </think><answer> Cid </answer>",
            " poet </think><answer> Bea </answer>",
            " smith </think><answer> Ann </answer>",
        ]


def test_what_two_things_have_is_not_asked_for() -> None:
    path = [dict(hop) for hop in TASK.data["path"]]
    path[2]["answer"] = "smith"
    _, learned = comparison(replace(TASK, data={"path": tuple(path)}), 1)
    assert learned == [" poet </think><answer> Bea </answer>"]
