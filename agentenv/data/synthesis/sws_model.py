"""SwS with language models: concepts of failed questions, a new question of them, two judges, and answers that agree."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.types import Task
from agentenv.data.synthesis.asearcher_model import ModelSolver
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.sws import RATINGS, Rating, agreed_answer, is_accepted, share_right
from agentenv.errors import DatasetError, SynthesisFault

CONCEPTS = """\
Question: {question}
Which concepts does somebody need to answer it? Name one to five, each in a few words and in general terms, without names \
or numbers of the question. Reply with one JSON object and nothing after it: {{"concepts": ["...", "..."]}}
"""
WRITE = """\
Write one new question of the kind "{category}" that needs all of these concepts together: {concepts}.
An example of the kind, which the new question must not repeat: {example}
It has one short answer, can be understood by itself, and asks for no proof. Reply with one JSON object and nothing after \
it: {{"question": "the new question"}}
"""
RATE = """\
Question: {question}
It was written to combine these concepts: {concepts}.
Rate it. "perfect": it is clear, complete and consistent, and has one answer. "acceptable": it has small flaws that change \
nothing about its answer. "bad": anything else. Reply with one JSON object and nothing after it: \
{{"reason": "in one sentence", "rating": "perfect, acceptable or bad"}}
"""
LONGEST_BYTES = 8000
"""Bytes of a question in UTF-8 from which on it is refused. SwS bounds questions by 4,000 tokens. Text has two bytes a token
or more unless it is made of digits, so what is shorter has fewer tokens; English prose is refused from some 2,000 on."""
_PROOF = re.compile(r"\b(?:prove|proof|show that|demonstrate that)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Order:
    """A question to write."""

    id: str
    category: str
    concepts: tuple[str, ...]
    example: str
    seed: int


@dataclass(frozen=True)
class WeaknessWriter:
    """Writes questions of weak categories and keeps those that both judges and the answers agree on."""

    writer: ModelWriter
    judges: tuple[ModelWriter, ModelWriter]
    """Rate a question, each with seeds of its own; one model may be both where the second samples."""
    solver: ModelSolver
    samples: int = 8
    """Answers that have to agree."""
    student: ModelSolver | None = None
    """Whose accuracy has to lie within ``band``; None asks nobody."""
    band: tuple[float, float] = (0.125, 0.875)

    async def concepts(self, question: str, seed: int) -> list[str]:
        """The concepts that ``question`` needs, in small letters.

        Raises:
            SynthesisFault: no reply can be read.
            Fault: the model failed.
        """
        said = await self.writer.write(CONCEPTS.format(question=question), {"concepts": list}, seed)
        return list(dict.fromkeys(concept.lower().rstrip(".") for concept in said["concepts"][:5]))

    async def write(self, order: Order) -> Task:
        """The question of ``order`` with the answer that the solver's samples agree on.

        Raises:
            DatasetError: it is refused; says by whom.
            Fault: a model failed.
        """
        listed = ", ".join(order.concepts)
        asked = WRITE.format(category=order.category, concepts=listed, example=order.example)
        question = (await self.writer.write(asked, {"question": str}, order.seed))["question"]
        if flaw := question_flaw(question, order.example):
            raise DatasetError(f"{order.id}: {question[:200]!r} is refused: {flaw}")
        first, second = await gather_all(
            self._rating(judge, question, listed, place * judge.tries)
            for place, judge in enumerate(self.judges)
        )
        if not is_accepted(first, second):
            raise DatasetError(f"{order.id}: {question!r} is refused: the judges say {first} and {second}")
        answers = await self.solver.answers(question, self.samples, order.seed)
        answer = agreed_answer(answers, self.samples)
        if answer is None:
            raise DatasetError(f"{order.id}: {question!r} is refused: {self.samples} answers do not agree")
        data = {
            "family": order.category,
            "concepts": list(order.concepts),
            "ratings": [first, second],
            "agreement": share_right(answers, answer, self.samples),
        }
        if self.student is not None:
            tried = await self.student.answers(question, self.samples, order.seed)
            accuracy = share_right(tried, answer, self.samples)
            if not self.band[0] <= accuracy <= self.band[1]:
                raise DatasetError(
                    f"{order.id}: {question!r} is refused: the student solves it in {accuracy:.3f} of its samples"
                )
            data["accuracy"] = accuracy
        return Task(order.id, question, (answer,), data=data)

    async def _rating(self, judge: ModelWriter, question: str, concepts: str, seed: int) -> Rating:
        asked = RATE.format(question=question, concepts=concepts)
        said = (await judge.write(asked, {"reason": str, "rating": str}, seed))["rating"].lower().rstrip(".")
        rating = next((one for one in RATINGS if one == said), None)
        if rating is None:
            raise SynthesisFault(f"{judge.chat.model} rated a question {said[:40]!r}, which is no rating")
        return rating


def question_flaw(question: str, example: str) -> str:
    """What is wrong with a question, as far as a program sees it; empty where nothing is."""
    if _PROOF.search(question):
        return "it asks for a proof"
    if len(question.encode()) >= LONGEST_BYTES:
        return "it is too long"
    same = " ".join(question.lower().split()) == " ".join(example.lower().split())
    return "it repeats the example" if same else ""


def concept_sets(found: Sequence[tuple[str, Sequence[str]]]) -> dict[str, list[list[str]]]:
    """The concepts of each failed question by category, of those that have some."""
    sets: dict[str, list[list[str]]] = {}
    for category, concepts in found:
        if concepts:
            sets.setdefault(category, []).append(list(concepts))
    return sets
