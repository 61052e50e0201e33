"""ASearcher's synthesis over a FictionalWorld, without a model: its facts propose injections and prove them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from agentenv.data.synthesis.asearcher import EXIT, Draft, Kind, Link
from agentenv.data.synthesis.pages import Page
from agentenv.data.world_facts import Facts
from agentenv.data.world_grammar import RELATIONS, SUCCESSOR, TYPES, WORKS, Relation
from agentenv.data.world_questions import hop_of
from agentenv.data.world_solver import Entity, Solver


@dataclass(frozen=True)
class WorldEditor:
    """Proposes questions about one fact, and link questions whose answer is the name in a question.

    It makes no fuzzings: a vaguer detail could not be proved to leave one answer.
    """

    facts: Facts
    kinds: tuple[Kind, ...] = ("inject",)
    _solver: Solver = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_solver", Solver(self.facts))

    async def start(self, page: Page, rng: Random) -> Draft | None:
        """A question about a fact that ``page`` states; None where it states none that can be asked."""
        hops = [
            (relation, hop_of(self.facts, entity, relation))
            for entity in sorted(self._solver.entities(page.title))
            for relation in RELATIONS[entity[0]]
            if relation not in (WORKS, SUCCESSOR) and self._solver.value(entity, relation) is not None
        ]
        stated = [(relation, hop) for relation, hop in hops if hop["document"] in page.ids]
        if not stated:
            return None
        relation, hop = rng.choice(stated)
        question = self._form(relation.questions, rng).format(s=hop["entity"])
        return Draft(question, hop["answer"], (_said(hop),), (hop["document"],), (page.title,), (hop,))

    async def choose(self, draft: Draft, actions: Sequence[str], rng: Random) -> str:
        """The first of ``actions`` by chance."""
        return EXIT if actions[0] == EXIT else self.kinds[0]

    async def link(self, draft: Draft, rng: Random) -> Link | None:
        """A fact that leads to the one name in the question, asked for as a question; None where no fact leads there."""
        name = draft.path[0]["entity"]
        known = [
            (relation, hop)
            for entity in sorted(self._solver.entities(name))
            for relation, hop in self._leading_to(entity)
            if hop["entity"] not in draft.used
        ]
        if not known:
            return None
        relation, hop = rng.choice(known)
        page = Page(hop["entity"], "", (hop["document"],))
        question = self._form(relation.questions, rng).format(s=hop["entity"])
        phrase = self._form(relation.nouns, rng).format(s=hop["entity"])
        return Link(name, page, question, _said(hop), phrase, hop)

    async def substitute(self, draft: Draft, link: Link, rng: Random) -> str:
        """The question with the noun phrase of the link in the place of the name."""
        return draft.question.replace(link.written, link.phrase, 1)

    async def fuzz(self, draft: Draft, rng: Random) -> Draft | None:
        """Always None: no phrase of an invented world can be made vaguer."""
        return None

    def _leading_to(self, entity: Entity) -> Iterator[tuple[Relation, dict[str, str]]]:
        """The facts with ``entity`` as their value that a noun phrase can express."""
        kind, i = entity
        for other in TYPES:
            for relation in RELATIONS[other]:
                if relation.kind == kind and relation.nouns:
                    for subject in np.flatnonzero(self.facts.values[other][relation.name] == i).tolist():
                        yield relation, hop_of(self.facts, (other, subject), relation)

    def _form(self, forms: tuple[str, ...], rng: Random) -> str:
        return rng.choice(forms[: self.facts.config.paraphrase])


def _said(hop: dict[str, str]) -> str:
    return f"{hop['relation']} of {hop['entity']}: {hop['answer']}"


class WorldReviewer:
    """Answers questions from all facts: what it finds proves that a question has one answer.

    Args:
        facts: Of the world.
    """

    def __init__(self, facts: Facts) -> None:
        self._solver = Solver(facts)

    async def flaw(self, draft: Draft) -> str:
        """The other answers of the question, or that it has none."""
        found = self._solver.answers(draft.question)
        return "" if found == {draft.answer} else f"its answers are {sorted(found)[:3]}"

    async def is_covered(self, draft: Draft, statement: str) -> bool:
        """Whether ``statement`` is one of those of ``draft``: a world states each fact in one form."""
        return statement in draft.statements

    async def is_right(self, draft: Draft, answer: str) -> bool:
        """Whether the answer is the accepted one, whatever its case and white space."""
        return _plain(answer) == _plain(draft.answer)

    async def is_right_too(self, draft: Draft, answer: str) -> bool:
        """Whether the facts give ``answer`` too."""
        return _plain(answer) in map(_plain, self._solver.answers(draft.question))


def _plain(answer: str) -> str:
    return " ".join(answer.casefold().split())
