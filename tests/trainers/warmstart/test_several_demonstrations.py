"""Lessons on several documents of a page: answers by the solver, pages of the environment, which pays the episodes."""

import asyncio
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from agentenv.core.types import Step
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_solver import Solver
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.page_format import as_question
from agentenv.policies.policy_spec import make_policy
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.encoder import HashEncoder
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.warmstart.demonstrations import Demo, DemonstrationContext, Demonstrator, Library
from agentenv.trainers.warmstart.several_demonstrations import (
    ONE_BY_ONE,
    asked_singly,
    asked_together,
    one_after_the_other,
    side_by_side,
)

WORLD = WorldConfig(
    seed=3, documents=200, questions=24, families=("list",), hops=(3, 4), indirect=0, split="train"
)


def contexts() -> Iterator[DemonstrationContext]:
    world = FictionalWorld.generate(WORLD)
    library, solver = Library(world.documents, HashEncoder(), 1), Solver(generate_facts(WORLD))
    for number, task in enumerate(world.questions):
        yield DemonstrationContext(task, library, world.questions, solver, Random(number))


def asked_of(demo: Demo) -> list[tuple[str, str]]:
    """Each question of a lesson with its answer; a page stands before them."""
    assert [piece.kind for piece in demo] == ["page", *["question", "own"] * (len(demo) // 2)]
    answers = [piece.text.removeprefix("<answer> ").removesuffix(" </answer>") for piece in demo[2::2]]
    return list(zip([piece.text for piece in demo[1::2]], answers, strict=True))


def lines_of(demo: Demo) -> list[str]:
    """The documents on the page of a lesson."""
    return demo[0].text.strip().split("\n")


def test_each_thing_is_asked_for_by_its_name_and_answered_from_its_own_document() -> None:
    for context in contexts():
        demo = asked_singly(context)
        names = [hop["entity"] for hop in context.task.data["path"]]
        lines = dict(zip(names, lines_of(demo), strict=True))
        asked = asked_of(demo)
        for question, answer in asked:
            (name,) = [one for one in names if one in question]
            assert context.solver.answers(question) == {answer}
            assert answer in lines[name]
        assert {name for name in names for question, _ in asked if name in question} == set(names)
        assert {hop["answer"] for hop in context.task.data["path"]} <= {answer for _, answer in asked}


def test_several_things_are_asked_for_together_in_an_order_of_their_own() -> None:
    orders = set()
    for context in contexts():
        demo = asked_together(context)
        asked = asked_of(demo)
        assert len(asked) == 4
        page = demo[0].text
        for question, answer in asked:
            assert context.solver.answers(question) == {answer}
            named = [part.split(": ")[0] for part in answer.split(", ")]
            assert len(named) >= 2
            assert all(part.split(": ")[1] in page for part in answer.split(", "))
            orders.add(named == sorted(named, key=page.index))
    assert orders == {True, False}


@pytest.mark.parametrize(
    ("demonstrator", "preset"), [(side_by_side, "lab-parallel"), (one_after_the_other, "lab-sequential")]
)
def test_the_environment_shows_what_was_demonstrated(demonstrator: Demonstrator, preset: str) -> None:
    """Opening, pages and budgets are those of the run, and its reward is 1, wherever its searches find the documents."""
    run = load_config(preset)
    tokenizer = make_policy("tiny").tokenizer

    def count(text: str) -> int:
        return len(tokenizer.encode(text))

    retriever = BM25Retriever.build(FictionalWorld.generate(WORLD).documents)
    options = dict(run.env.options) | {"count_tokens": count}
    played = 0
    for context in contexts():
        path = context.task.data["path"]
        found = asyncio.run(retriever.search([hop["query"] for hop in path], 1))
        if [passage.id for (passage,) in found] != [hop["document"] for hop in path]:
            continue  # of a thing with two pages, the other one
        played += 1
        demo = demonstrator(context)
        own = [piece.text for piece in demo if piece.kind == "own"]
        env = LocalSearch(tasks=[context.task], retriever=retriever, **options)
        opening, steps = asyncio.run(played_in(env, own))
        assert opening == (as_question(demo[0].text) if demo[0].kind == "question" else demo[0].text)
        shown = [message.text for step in steps for message in step.observation]
        assert shown == [piece.text for piece in demo if piece.kind == "page"]
        assert [step.reward for step in steps] == [0.0] * (len(own) - 1) + [1.0]
        assert max(map(count, own)) <= run.rollout.turn_tokens
    assert played > 12


async def played_in(env: LocalSearch, actions: Sequence[str]) -> tuple[str, list[Step]]:
    opening, _ = await env.areset()
    return opening[0].text, [await env.astep(action) for action in actions]


def test_the_preset_asks_as_the_demonstrator_does() -> None:
    assert load_config("lab-sequential").env.options["prompt"] == ONE_BY_ONE
    assert load_config("lab-parallel").env.options["prompt"] == "{question}"
