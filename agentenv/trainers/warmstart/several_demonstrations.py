"""Demonstrators of questions about several things, for a policy that reads several documents of one page.

A policy that has read only pages whose documents tell different things finds a value by what is asked, and never learns to
look whose value it is. Of three or four documents that all name a mayor, the shipped policy answers with one of these
mayors, and with the right one about as often as by guessing. So these demonstrators show pages of documents that tell the
same of different things: half of the lessons ask for what stands there, one thing at a time or all of them together, and
half are whole episodes.
What 500 steps teach is to go through the documents in the order of the queries; a single one is still not found by its name
(docs/lab.md).
"""

from collections.abc import Mapping, Sequence

from agentenv.data.world_grammar import LISTINGS, RELATIONS, SUCCESSOR, WORKS, Listing, Relation
from agentenv.data.world_questions import hop_of, listing_question
from agentenv.envs.search.page_format import as_question, format_passages, information
from agentenv.trainers.warmstart.demonstrations import (
    Demo,
    DemonstrationContext,
    Demonstrator,
    Piece,
    answered_with,
)

ONE_BY_ONE = "One by one: {question}"
"""The opening message where one query of a turn is run, so that a policy of both forms knows which is meant."""

_TOGETHER = 4
"""Questions about several things that a lesson asks of one page."""

Hops = Sequence[Mapping[str, str]]
"""Look-ups, each of what one relation says of one thing."""


def asked_singly(context: DemonstrationContext) -> Demo:
    """The documents of all things on one page, then a question for every fact that they tell.

    Whose fact it is has to be read off the name in the question, because the other documents tell the same of other things.
    """
    facts = [fact for hop in context.task.data["path"] for fact in _stated_facts(context, hop)]
    demo = [_page(context, context.task.data["path"])]
    for relation, fact in context.rng.sample(facts, len(facts)):
        forms = relation.questions[: context.solver.facts.config.paraphrase]
        question = context.rng.choice(forms).format(s=fact["entity"])
        demo += [Piece("question", question), answered_with(fact["answer"])]
    return demo


def asked_together(context: DemonstrationContext) -> Demo:
    """The same page, then questions for what several of its documents state, each about two or more of the things.

    They are named in an order of their own, so that the order of the documents tells nothing.
    """
    path, rng = context.task.data["path"], context.rng
    stated: dict[Relation, list[dict[str, str]]] = {}
    for hop in path:
        for relation, fact in _stated_facts(context, hop):
            stated.setdefault(relation, []).append(fact)
    rules = [rule for rule in _rules_of(context) if len(stated.get(rule.relation, ())) > 1]
    demo = [_page(context, path)]
    for rule in rng.choices(rules, k=_TOGETHER):
        facts = stated[rule.relation]
        asked = listing_question(rule, rng.sample(facts, rng.randint(2, len(facts))))
        demo += [Piece("question", asked.text), answered_with(asked.answer)]
    return demo


def side_by_side(context: DemonstrationContext) -> Demo:
    """An episode that asks for everything in one turn, a query a line, and reads one page."""
    path = context.task.data["path"]
    return [Piece("question", context.task.question), *_looked_up(context, path), _answer(context)]


def one_after_the_other(context: DemonstrationContext) -> Demo:
    """An episode that asks one query a turn, where the opening message says so."""
    turns = [piece for hop in context.task.data["path"] for piece in _looked_up(context, [hop])]
    opening = ONE_BY_ONE.format(question=as_question(context.task.question))
    return [Piece("opening", opening), *turns, _answer(context)]


SEVERAL_MIXTURE: Mapping[Demonstrator, float] = {
    asked_singly: 0.25,
    asked_together: 0.25,
    side_by_side: 0.25,
    one_after_the_other: 0.25,
}
"""Share of each demonstrator for a policy that reads what several documents tell of several things."""


def _rules_of(context: DemonstrationContext) -> list[Listing]:
    """What can be asked of several things of the kind that the task is about."""
    ((kind, _),) = context.solver.entities(context.task.data["path"][0]["entity"])
    return [rule for rule in LISTINGS if rule.type == kind]


def _stated_facts(
    context: DemonstrationContext, hop: Mapping[str, str]
) -> list[tuple[Relation, dict[str, str]]]:
    """What the document of ``hop`` tells of its thing, as far as one question asks for it."""
    ((kind, i),) = context.solver.entities(hop["entity"])
    stated = [
        (relation, hop_of(context.solver.facts, (kind, i), relation))
        for relation in RELATIONS[kind]
        if relation not in (WORKS, SUCCESSOR) and context.solver.value((kind, i), relation) is not None
    ]
    return [(relation, fact) for relation, fact in stated if fact["document"] == hop["document"]]


def _page(context: DemonstrationContext, path: Hops) -> Piece:
    """The documents of ``path``, in its order, as one search for all of them shows them."""
    found = context.library.documents([hop["document"] for hop in path])
    return Piece("page", information(format_passages(found)))


def _looked_up(context: DemonstrationContext, path: Hops) -> Demo:
    """A turn that asks for all of ``path``, and its page."""
    queries = "\n ".join(hop["query"] for hop in path)
    return [Piece("own", f"<search> {queries} </search>"), _page(context, path)]


def _answer(context: DemonstrationContext) -> Piece:
    return answered_with(context.task.answers[0])
