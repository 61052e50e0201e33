"""Demonstrators of retries that are advised what to look up, for a policy that reads advice and does as it says.

A policy reads advice only if nothing else tells what it is to do next. So the same turns of an episode are shown with
advice that names what the question needs, with advice that names something else, and without any: then the question is
followed, the other name is looked up, or a wrong name is looked up more often than the right one.
"""

from collections.abc import Mapping
from dataclasses import replace

from agentenv.core.types import Passage
from agentenv.trainers.strategies.step_verifiers import looking_up, reading_on
from agentenv.trainers.warmstart.demonstrations import (
    Demo,
    DemonstrationContext,
    Demonstrator,
    Piece,
    answered_with,
    careful,
    guessing,
    hasty,
    searched,
)


def advised(context: DemonstrationContext) -> Demo:
    """The careful demonstrator, who is advised before one of its turns, as a retry is that went wrong there.

    A retry goes on from before the turn that was wrong, so that nothing of the mistake is in its context: what stands there
    are right turns and the advice of the verifier ``evidence``.
    """
    demo, path = careful(context), context.task.data["path"]
    if not demo:
        return []
    turn = context.rng.randrange(len(path) + 1)
    advice = looking_up(path[turn]["entity"]) if turn < len(path) else reading_on(path[-1]["entity"])
    before = _before(demo, turn)
    return [*_given(before), _advice(advice), *demo[len(before) :]]


def misled(context: DemonstrationContext) -> Demo:
    """Is advised to look up another name, whether the question needs it or not, and does so; the demonstration ends there.

    Half of the names stand on the pages so far, where one does, and the others belong to questions about the world, hardly
    ever the same one.
    """
    demo, path = careful(context), context.task.data["path"]
    if not demo:
        return []
    turn = context.rng.randrange(len(path))
    seen = _other_names(context, turn)
    elsewhere = context.rng.choice(context.others).data["path"][0]["entity"]
    name = context.rng.choice(seen) if seen and context.rng.random() < 0.5 else elsewhere
    search, _ = searched(context, _query_about(name, path[turn]))
    return [*_given(_before(demo, turn)), _advice(looking_up(name)), search[0]]


def straying(context: DemonstrationContext) -> Demo:
    """Looks up a name of a page that the question does not need in place of one that it needs, and then answers too early.

    Both names stand in sight, so that no name is made up. Nothing to stray to leaves an empty demonstration.
    """
    demo, path = careful(context), context.task.data["path"]
    turn = context.rng.randrange(1, len(path)) if len(path) > 1 else 0
    seen = _other_names(context, turn)
    if not demo or not seen:
        return []
    wrong, _ = searched(context, _query_about(context.rng.choice(seen), path[turn]))
    return [*_before(demo, turn), *wrong, answered_with(path[turn - 1]["answer"])]


ADVICE_MIXTURE: Mapping[Demonstrator, float] = {
    careful: 0.15,
    advised: 0.3,
    misled: 0.2,
    straying: 0.25,
    hasty: 0.07,
    guessing: 0.03,
}
"""Share of each demonstrator for a policy that does as advice says, and goes wrong more often than not without."""


def _before(demo: Demo, turn: int) -> Demo:
    """``demo`` up to its turn ``turn``."""
    return demo[: [place for place, piece in enumerate(demo) if piece.kind == "own"][turn]]


def _given(demo: Demo) -> Demo:
    """``demo`` with its turns as they stand in the context of a retry: given, and not learned."""
    return [replace(piece, kind="page") if piece.kind == "own" else piece for piece in demo]


def _advice(text: str) -> Piece:
    return Piece("page", f"{text}\n")


def _query_about(name: str, hop: Mapping[str, str]) -> str:
    """The query of ``hop`` with another name."""
    return hop["query"].replace(hop["entity"], name)


def _other_names(context: DemonstrationContext, turn: int) -> list[str]:
    """Titles of the pages before ``turn`` of the careful demonstrator, but for what it looks up then."""
    path = context.task.data["path"]
    found: list[Passage] = [p for hop in path[:turn] for p in context.library.search(hop["query"])]
    return sorted({passage.title for passage in found} - {path[turn]["entity"]})
