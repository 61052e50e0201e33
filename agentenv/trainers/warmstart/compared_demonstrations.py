"""Demonstrators of questions which of several things has a property, for a policy that compares what it reads.

A small policy does not compare what stands on pages of several hundred tokens. So every demonstrator first writes down each
thing with what was found of it, in one line, then what is asked for, and answers with the thing that has it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from agentenv.core.types import Passage
from agentenv.envs.search.page_format import format_passages, information
from agentenv.trainers.warmstart.demonstrations import (
    Demo,
    DemonstrationContext,
    Demonstrator,
    Piece,
    answered_with,
)

Hops = Sequence[Mapping[str, str]]
"""The look-ups of a question."""
_UNKNOWN = "?"
_HIDDEN = 0.3
"""Share of the lessons without a search in which one thing is unknown."""


def all_at_once(context: DemonstrationContext) -> Demo:
    """Asks for everything in one turn, a query a line, and is answered together."""
    return _looked_up(context, lambda missing: (missing, len(missing)))


def asking_again(context: DemonstrationContext) -> Demo:
    """Asks for everything that is missing in every turn, where an environment runs the first query of a turn alone."""
    return _looked_up(context, lambda missing: (missing, 1))


def one_by_one(context: DemonstrationContext) -> Demo:
    """Asks for one thing a turn."""
    return _looked_up(context, lambda missing: (missing[:1], 1))


def comparing(context: DemonstrationContext) -> Demo:
    """Compares alone: what is written down and what is asked for are given, without a question and a search.

    Every property is asked for in turn that one thing alone has. An episode asks for one in about 300 tokens.
    """
    path, rng = context.task.data["path"], context.rng
    unknown = {rng.choice(path)["entity"]} if rng.random() < _HIDDEN else set()
    demo = [Piece("page", _listed(path, unknown))]
    answers = [hop["answer"] for hop in path]
    for hop in rng.sample(path, len(path)):
        if answers.count(hop["answer"]) == 1:
            demo += [Piece("page", f" {hop['answer']}"), Piece("own", _concluded(hop["entity"]))]
    return demo


COMPARISON_MIXTURE: Mapping[Demonstrator, float] = {
    comparing: 0.5,
    all_at_once: 0.2,
    asking_again: 0.15,
    one_by_one: 0.15,
}
"""Share of each demonstrator for a policy that compares three or four things, however many queries of a turn are run."""


def _looked_up(context: DemonstrationContext, ask: Callable[[Hops], tuple[Hops, int]]) -> Demo:
    """Searches until nothing is missing, writes down what was found and answers.

    Of one thing the document may be missed: either it is not needed, or nothing else has the property. Where more is missed,
    and what is asked for among it, the demonstration is empty.

    Args:
        context: What the demonstrator may look at.
        ask: From the look-ups that are missing to those that a turn asks for, and how many of these are run.
    """
    task, missing = context.task, list(context.task.data["path"])
    demo = [Piece("question", task.question)]
    unknown: set[str] = set()
    while missing:
        queried, run = ask(missing)
        found: dict[str, Passage] = {
            passage.id: passage for hop in queried[:run] for passage in context.library.search(hop["query"])
        }
        unknown |= {hop["entity"] for hop in queried[:run] if hop["document"] not in found}
        queries = "\n ".join(hop["query"] for hop in queried)
        page = information(format_passages(list(found.values())))
        demo += [Piece("own", f"<search> {queries} </search>"), Piece("page", page)]
        missing = missing[run:]
    right = task.answers[0]
    if right in unknown and len(unknown) > 1:
        return []
    (asked,) = (hop["answer"] for hop in task.data["path"] if hop["entity"] == right)
    return [*demo, Piece("own", f"{_listed(task.data['path'], unknown)} {asked}{_concluded(right)}")]


def _listed(path: Hops, unknown: Collection[str]) -> str:
    """The beginning of a thought: each thing with what was found of it."""
    found = {hop["entity"]: _UNKNOWN if hop["entity"] in unknown else hop["answer"] for hop in path}
    return f"<think> {', '.join(map(' '.join, found.items()))}."


def _concluded(answer: str) -> str:
    """What comes after what is asked for."""
    return f" </think>{answered_with(answer).text}"
