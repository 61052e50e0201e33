"""ASearcher's synthesis with language models: the editor, the reviewer and the solver that answers without a search."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.scoring.evidence import stands_in
from agentenv.core.scoring.scorers import get_scorer
from agentenv.data.synthesis.asearcher import Draft, Kind, substituted
from agentenv.data.synthesis.model_replies import LONGEST_PAGE, ModelWriter, is_yes
from agentenv.data.synthesis.pages import LinkedPages, Page
from agentenv.errors import ContextTooSmall, EndpointRefusal, SynthesisFault

START = """\
Here is a page titled {title}:
{text}

Write one question about a fact that the page states. It has one short answer, which is a name, a date or a number and does \
not stand in the question, and it can be understood without the page. Reply with one JSON object and nothing after it: \
{{"question": "...", "answer": "...", "statement": "the sentence of the page from which the answer follows, in full words"}}
"""
CHOOSE = """\
A question is made harder step by step, and its answer stays the same.
Question: {question}
It follows from: {statements}

What should be done next? {actions}
Reply with one JSON object and nothing after it: {{"action": "one of {names}"}}
"""
_ACTIONS = {
    "inject": "inject: a name in the question gives way to a fact that identifies it, so that one more search is needed.",
    "fuzz": "fuzz: one detail of the question, such as a date or a name, is described less exactly.",
    "exit": "exit: the question is hard and natural enough, and stays as it is.",
}
INJECT = """\
Question: {question}
Its answer: {answer}
The question names {written}. Here is a page titled {title}, which is linked with {entity}:
{text}

Find a fact on this page that identifies {written} and nothing else, and write the question again with a description by \
that fact in the place of the name. The name {written} no longer stands in the question, and the answer stays {answer}. The \
fact is none of these: {statements}
Reply with one JSON object and nothing after it: {{"question": "the new question", "statement": "the fact as one sentence"}}
If no fact on the page identifies it, write "none" for both.
"""
FUZZ = """\
Question: {question}
Its answer: {answer}
It follows from: {statements}

Write the question again with exactly one detail described less exactly: a date as a period, a number as a range, or a \
name as a description. The question must still have {answer} as its only answer.
Reply with one JSON object and nothing after it: {{"question": "the new question"}}
"""
REVIEW = """\
Question: {question}
Its answer: {answer}
What is known: {statements}

Is this a valid question? It is valid if it is one question and not two joined together, if it has a single answer, and if \
that answer follows from what is known. Reply with one JSON object and nothing after it: \
{{"reason": "in one sentence", "valid": "yes or no"}}
"""
SAME = """\
Question: {question}
Accepted answer: {answer}
Given answer: {given}

Do both answers say the same? Reply with one JSON object and nothing after it: {{"same": "yes or no"}}
"""
TOO = """\
Question: {question}
What is known: {statements}
One answer is {answer}. Somebody else answers {given}.

Is {given} a right answer to the question as well, be it by what is known or by what is known in general? Reply with one \
JSON object and nothing after it: {{"reason": "in one sentence", "right": "yes or no"}}
"""
DIRECT = """\
Answer this question from what you know; nothing can be searched. Give the answer that you think most likely.
Question: {question}
Reply with one JSON object and nothing after it: {{"answer": "short and without explanation"}}
"""


@dataclass(frozen=True)
class ModelEditor:
    """A language model that proposes questions and edits."""

    writer: ModelWriter
    pages: LinkedPages
    kinds: tuple[Kind, ...] = ("inject", "fuzz")

    async def start(self, page: Page, rng: Random) -> Draft | None:
        """A question about a fact of ``page``.

        Raises:
            SynthesisFault: no reply can be read.
            Fault: the model failed.
        """
        asked = START.format(title=page.title, text=page.text[:LONGEST_PAGE])
        made = await self.writer.write(
            asked, dict.fromkeys(("question", "answer", "statement"), str), _seed(rng)
        )
        return Draft(made["question"], made["answer"], (made["statement"],), page.ids, (page.title,))

    async def choose(self, draft: Draft, actions: Sequence[str], rng: Random) -> str:
        """The action that the model chooses; the first where it names none of them."""
        asked = CHOOSE.format(
            question=draft.question,
            statements=_known(draft),
            actions=" ".join(_ACTIONS[action] for action in actions),
            names=", ".join(actions),
        )
        try:
            chosen: str = (await self.writer.write(asked, {"action": str}, _seed(rng)))["action"].lower()
        except (SynthesisFault, EndpointRefusal, ContextTooSmall):
            return actions[0]
        return chosen if chosen in actions else actions[0]

    async def inject(self, draft: Draft, rng: Random) -> Draft | None:
        """The question with a fact of a page that was not used before in the place of a name; None where none is linked.

        Raises:
            SynthesisFault: no reply can be read.
            Fault: the model failed.
        """
        choices = [
            (entity, written, other)
            for entity, written in self.pages.mentioned(draft.question).items()
            for other in self.pages.linked(entity)
            if other not in draft.used
        ]
        if not choices:
            return None
        entity, written, other = rng.choice(choices)
        page = self.pages.pages[other]
        asked = INJECT.format(
            question=draft.question,
            answer=draft.answer,
            written=written,
            entity=entity,
            title=other,
            text=page.text[:LONGEST_PAGE],
            statements=_known(draft),
        )
        made = await self.writer.write(asked, {"question": str, "statement": str}, _seed(rng))
        if made["question"].lower() == "none" or made["statement"] in draft.statements:
            return None
        if stands_in(written, made["question"]):
            raise SynthesisFault(f"the name {written!r} still stands in {made['question']!r}")
        return substituted(draft, made["question"], made["statement"], page)

    async def fuzz(self, draft: Draft, rng: Random) -> Draft | None:
        """The question with one detail made vaguer.

        Raises:
            SynthesisFault: no reply can be read.
            Fault: the model failed.
        """
        asked = FUZZ.format(question=draft.question, answer=draft.answer, statements=_known(draft))
        made = await self.writer.write(asked, {"question": str}, _seed(rng))
        return replace(draft, question=made["question"])


@dataclass(frozen=True)
class ModelReviewer:
    """A language model that judges drafts, greedily."""

    writer: ModelWriter

    async def flaw(self, draft: Draft) -> str:
        """The model's reason against the question; empty where it is valid.

        Raises:
            SynthesisFault: no reply can be read.
            Fault: the model failed.
        """
        asked = REVIEW.format(question=draft.question, answer=draft.answer, statements=_known(draft))
        said = await self.writer.write(asked, {"reason": str, "valid": str}, 0)
        return "" if is_yes(said["valid"]) else f"not valid: {said['reason']}"

    async def is_right(self, draft: Draft, answer: str) -> bool:
        """Whether both answers are equal, else whether the model says that they are the same.

        Raises:
            SynthesisFault: no reply can be read.
            Fault: the model failed.
        """
        if get_scorer("em_squad")(answer, (draft.answer,)).value:
            return True
        asked = SAME.format(question=draft.question, answer=draft.answer, given=answer)
        return is_yes((await self.writer.write(asked, {"same": str}, 0))["same"])

    async def is_right_too(self, draft: Draft, answer: str) -> bool:
        """Whether the model takes ``answer`` for another right answer.

        Raises:
            SynthesisFault: no reply can be read.
            Fault: the model failed.
        """
        asked = TOO.format(
            question=draft.question, statements=_known(draft), answer=draft.answer, given=answer
        )
        return is_yes((await self.writer.write(asked, {"reason": str, "right": str}, 0))["right"])


@dataclass(frozen=True)
class ModelSolver:
    """A language model that answers without a search; ASearcher samples at a temperature of .6 and a top-p of .95."""

    writer: ModelWriter

    async def answers(self, question: str, count: int, seed: int) -> list[str]:
        """``count`` answers, those left out that could not be read.

        Raises:
            Fault: the model failed.
        """
        asked = DIRECT.format(question=question)

        async def one(number: int) -> list[str]:
            place = seed + number * self.writer.tries  # so that no request repeats the seed of another
            try:
                return [(await self.writer.write(asked, {"answer": str}, place))["answer"]]
            except SynthesisFault:
                return []

        return [
            answer for some in await gather_all(one(number) for number in range(count)) for answer in some
        ]


def _known(draft: Draft) -> str:
    return " ".join(draft.statements)


def _seed(rng: Random) -> int:
    return rng.getrandbits(31)
