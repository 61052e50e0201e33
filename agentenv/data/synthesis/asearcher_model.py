"""ASearcher's synthesis with language models: the editor, the reviewer and the solver that answers without a search."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.scoring.scorers import get_scorer
from agentenv.data.synthesis.asearcher import Draft, Kind, Link
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
    "inject": "inject: a name in the question gives way to what another page says of it, so that one more search is needed.",
    "fuzz": "fuzz: one detail of the question, such as a date or a name, is described less exactly.",
    "exit": "exit: the question is hard and natural enough, and stays as it is.",
}
SELECT = """\
A question is made harder: a name in it gives way to a description by a fact of another page, which has to be found first.
Question: {question}
Its answer: {answer}
It follows from: {statements}

Which of these names should give way? {names}
Reply with one JSON object and nothing after it: {{"name": "one of them, as it is written here"}}
"""
LINK = """\
Here is a page titled {title}, which is linked with {entity}:
{text}

Write one question about a fact that this page states. Its only answer is {written}, and no part of this name stands in the \
question. It names {title} or something else on the page by which the page can be found. The fact says \
nothing that is known already: {statements}
Reply with one JSON object and nothing after it: {{"question": "the question", "statement": "the fact of the page as one \
sentence, which names {written}"}}
If the page states no fact that identifies {written}, write "none" for both.
"""
SUBSTITUTE = """\
Question: {question}
Its answer: {answer}
It names {written}, which is the answer to this question: {link}

Write the first question again with a description in the place of the name {written}, namely what the second question asks \
for. The name {written} no longer stands in it, everything else stays as it is, and the answer is still {answer}.
Reply with one JSON object and nothing after it: {{"question": "the new question"}}
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
COVERED = """\
What is known: {statements}
A fact: {statement}

Is this fact a part of what is known, in whatever words? Reply with one JSON object and nothing after it: \
{{"covered": "yes or no"}}
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

    async def link(self, draft: Draft, rng: Random) -> Link | None:
        """A link question about a page drawn by chance; None where no name has an unused page, or the page has no such fact.

        The model chooses among the names whose pages are linked with a page that was not used before. What it names besides
        is taken for the first of them. One such page is drawn, and the model writes a question about it.

        Raises:
            SynthesisFault: no reply can be read.
            Fault: the model failed.
        """
        offered = {
            written: (entity, unused)
            for entity, written in self.pages.mentioned(draft.question).items()
            if (unused := [other for other in self.pages.linked(entity) if other not in draft.used])
        }
        if not offered:
            return None
        written = await self._select(draft, list(offered), rng)
        entity, unused = offered[written]
        page = self.pages.pages[rng.choice(unused)]
        asked = LINK.format(
            title=page.title,
            entity=entity,
            text=page.text[:LONGEST_PAGE],
            written=written,
            statements=_known(draft),
        )
        made = await self.writer.write(asked, {"question": str, "statement": str}, _seed(rng))
        if made["question"].lower().rstrip(".") == "none":
            return None
        return Link(written, page, made["question"], made["statement"])

    async def _select(self, draft: Draft, names: list[str], rng: Random) -> str:
        """The one of ``names`` that shall give way, which are shown in random order."""
        rng.shuffle(names)
        if len(names) == 1:
            return names[0]
        asked = SELECT.format(
            question=draft.question, answer=draft.answer, statements=_known(draft), names="; ".join(names)
        )
        said = str((await self.writer.write(asked, {"name": str}, _seed(rng)))["name"])
        return next((name for name in names if name.lower() == said.lower()), names[0])

    async def substitute(self, draft: Draft, link: Link, rng: Random) -> str:
        """The question with what the link question asks for in the place of the name.

        Raises:
            SynthesisFault: no reply can be read.
            Fault: the model failed.
        """
        asked = SUBSTITUTE.format(
            question=draft.question, answer=draft.answer, written=link.written, link=link.question
        )
        return str((await self.writer.write(asked, {"question": str}, _seed(rng)))["question"])

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

    async def is_covered(self, draft: Draft, statement: str) -> bool:
        """Whether the model takes ``statement`` for a part of what is known.

        Raises:
            SynthesisFault: no reply can be read.
            Fault: the model failed.
        """
        asked = COVERED.format(statements=_known(draft), statement=statement)
        return is_yes((await self.writer.write(asked, {"covered": str}, 0))["covered"])

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
