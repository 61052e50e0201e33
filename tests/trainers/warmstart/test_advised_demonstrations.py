"""What a policy sees that is to read advice: the words of the verifier, given turns, and actions that advice decides."""

import asyncio
from collections.abc import Iterator
from random import Random

from agentenv.core.chat import InlineFormat
from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import EndReason, ToolResult, ToolStatus
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_solver import Solver
from agentenv.policies.policy_spec import make_policy
from agentenv.retrievers.encoder import HashEncoder
from agentenv.trainers.strategies.guidance import place_guidance
from agentenv.trainers.strategies.step_verifiers import EvidenceVerifier
from agentenv.trainers.warmstart.advised_demonstrations import advised, misled, straying
from agentenv.trainers.warmstart.demonstrations import (
    Demo,
    DemonstrationContext,
    Library,
    careful,
    to_tokens,
)

WORLD = WorldConfig(seed=3, documents=200, questions=24, families=("bridge",), hops=(1, 3), split="train")


def contexts() -> Iterator[DemonstrationContext]:
    """The questions of a world that the careful demonstrator answers, with a document for each hop."""
    world = FictionalWorld.generate(WORLD)
    library, solver = Library(world.documents, HashEncoder(), 2), Solver(generate_facts(WORLD))
    for number, task in enumerate(world.questions):
        context = DemonstrationContext(task, library, world.questions, solver, Random(number))
        if careful(context) and len(task.data["supporting_ids"]) == len(task.data["path"]):
            yield context


def texts(demo: Demo) -> list[str]:
    return [piece.text for piece in demo]


def place_of_advice(demo: Demo) -> int:
    (place,) = [place for place, text in enumerate(texts(demo)) if text.endswith(".\n")]
    return place


def test_the_advised_demonstrator_follows_what_the_verifier_says_of_a_retry() -> None:
    """Its advice stands where a retry has it, in the words of the verifier, and what is done after it is careful."""
    chat, turns = InlineFormat(make_policy("tiny").tokenizer), set()
    for context in contexts():
        demo = advised(context)
        place = place_of_advice(demo)
        assert [*texts(demo)[:place], *texts(demo)[place + 1 :]] == texts(careful(context))
        assert all(piece.kind != "own" for piece in demo[:place])  # given, and not learned
        assert demo[place + 1].kind == "own"
        hops = context.task.data["path"]
        turn = sum(text.startswith("<search>") for text in texts(demo)[:place])
        turns.add(turn == len(hops))
        found = [
            Turn(
                "right",
                tool_results=(ToolResult("search", ToolStatus.OK, "q", data={"ids": [[hop["document"]]]}),),
            )
            for hop in hops[:turn]
        ]
        failed = Trajectory(context.task, (), (*found, Turn("wrong")), 0.0, EndReason.ANSWERED)
        flaw = asyncio.run(EvidenceVerifier().first_flaw(failed, 1.0))
        assert flaw is not None
        assert demo[place].text == f"{flaw.advice}\n"
        row, _ = to_tokens(chat, demo[:place])
        at, added = place_guidance(chat, row, flaw.advice)
        assert to_tokens(chat, demo[: place + 1])[0] == [*row[:at], *added, *row[at:]]
    assert turns == {True, False}


def test_what_advice_names_is_looked_up_though_the_question_needs_another_name() -> None:
    """The turns before it are those of the careful demonstrator, so that the advice alone tells what comes next."""
    in_sight, needed = set(), 0
    for context in contexts():
        demo, whole = misled(context), careful(context)
        place = place_of_advice(demo)
        assert texts(demo)[:place] == texts(whole)[:place]
        assert [piece.kind for piece in demo].count("own") == 1
        name = demo[place].text.removeprefix("Look up ").removesuffix(".\n")
        assert demo[-1].kind == "own"
        assert demo[-1].text.startswith("<search> ")
        assert name in demo[-1].text
        needed += demo[-1].text == whole[place].text
        in_sight.add(any(name in text for text in texts(demo)[:place]))
    assert in_sight == {True, False}
    assert needed <= 1


def test_who_strays_makes_no_name_up_and_answers_wrong() -> None:
    strayed = 0
    for context in contexts():
        demo, whole = straying(context), careful(context)
        if not demo:
            continue
        strayed += 1
        wrong = max(place for place, text in enumerate(texts(demo)) if text.startswith("<search>"))
        shown = "".join(texts(demo)[:wrong])
        assert texts(demo)[:wrong] == texts(whole)[:wrong]
        assert demo[wrong].text != whole[wrong].text
        names = [title for title in titles(context) if title in demo[wrong].text]
        assert names
        assert all(name in shown for name in names)
        answer = demo[-1].text.removeprefix("<answer> ").removesuffix(" </answer>")
        assert answer in shown
        assert answer not in context.task.answers
    assert strayed


def titles(context: DemonstrationContext) -> list[str]:
    """The titles of the documents that its path names, and of what a search for them finds."""
    found = (p.title for hop in context.task.data["path"] for p in context.library.search(hop["query"]))
    return [*found]
