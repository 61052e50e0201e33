"""FictionalHot with a language model: it names the entities, invents others of the same kind, and writes the documents."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentenv.core.types import Document
from agentenv.data.synthesis.fictional_hot import FoundNames, RealItem, WordStatistics
from agentenv.data.synthesis.model_replies import LONGEST_PAGE, ModelWriter
from agentenv.errors import SynthesisFault

NAMES = """\
A question and its documents shall be about invented entities. List every real person, place, organisation, work, event and \
product that they name, exactly as it is written, each form of its own (a surname alone as well), and invent for each a \
plausible name of the same kind that no real entity has. A part of a name keeps its invention in the longer name. Numbers, \
dates and common words stay.
Question: {question}
Answer: {answers}
{documents}

Reply with one JSON object and nothing after it; both lists have the same length: \
{{"real": ["...", "..."], "invented": ["...", "..."]}}
"""
REWRITE = """\
Write this document again in other words, as an encyclopaedia would put it. Every fact stays, and nothing is added. Names \
stay as they are written.{needed}
Title: {title}
{text}

Reply with one JSON object and nothing after it: {{"text": "the document"}}
"""
COMPOSE = """\
This question is about invented entities, of which nobody has written yet.
Question: {question}
Answer: {answer}

Write the articles of an encyclopaedia from which this answer follows: one article for each entity that has to be looked \
up, four at most, each of a few sentences. They name nothing that exists; whatever they name besides is invented. The \
article that states the answer holds it letter by letter: {answer}
Reply with one JSON object and nothing after it; both lists have the same length: \
{{"titles": ["...", "..."], "texts": ["...", "..."]}}
"""


@dataclass(frozen=True)
class ModelReplacer:
    """A language model that replaces entities."""

    writer: ModelWriter
    statistics: WordStatistics
    rewrites: bool = True
    """Whether documents are put into other words."""
    seed: int = 0
    composes: bool = True
    """Whether it writes documents for questions without any."""

    async def names(self, item: RealItem) -> FoundNames:
        """The entities that the model sees, and those of its inventions that can be used.

        An invention that it gives twice would make one entity of two, and one whose words the corpus knows may be real. The
        names for which there are such inventions are replaced word by word.

        Raises:
            SynthesisFault: no reply can be read, or its lists have different lengths.
            Fault: the model failed.
        """
        shown = "\n".join(f"{d.title}: {d.text}" for d in item.documents)[:LONGEST_PAGE]
        asked = NAMES.format(
            question=item.task.question, answers=" / ".join(item.task.answers), documents=shown
        )
        said = await self.writer.write(asked, {"real": list, "invented": list}, self.seed)
        real, invented = said["real"], said["invented"]
        if len(real) != len(invented):
            raise SynthesisFault(
                f"the model listed {len(real)} real and {len(invented)} invented names for {item.task.id}, not equally "
                "many"
            )
        pairs = dict(zip(real, invented, strict=True))
        times = Counter(pairs.values())
        small = item.task.question == item.task.question.lower()
        usable = {
            name: new for name, new in pairs.items() if times[new] == 1 and self._is_new(name, new, small)
        }
        return FoundNames(tuple(pairs), usable)

    async def rewrite(self, document: Document, needed: Sequence[str]) -> str | None:
        """The document in other words.

        Raises:
            Fault: the model failed.
        """
        if not self.rewrites:
            return None
        must = f" The text holds, letter by letter: {'; '.join(needed)}." if needed else ""
        asked = REWRITE.format(needed=must, title=document.title, text=document.text[:LONGEST_PAGE])
        try:
            return str((await self.writer.write(asked, {"text": str}, self.seed))["text"])
        except SynthesisFault:
            return None

    async def compose(self, question: str, answers: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Articles from which the first of ``answers`` follows.

        Raises:
            SynthesisFault: no reply can be read, or its lists are empty or have different lengths.
            Fault: the model failed.
        """
        asked = COMPOSE.format(question=question, answer=answers[0])
        said = await self.writer.write(asked, {"titles": list, "texts": list}, self.seed)
        titles, texts = said["titles"], said["texts"]
        if len(titles) != len(texts) or not titles:
            raise SynthesisFault(
                f"the model wrote {len(titles)} titles and {len(texts)} texts for {question!r}, not equally many, at "
                "least one"
            )
        return list(zip(titles, texts, strict=True))

    def _is_new(self, name: str, invented: str, small: bool) -> bool:
        """Whether ``name`` can be replaced and no word of the invention is a name that the corpus knows.

        In a question without capitals (``small``) a name begins small.
        """
        words = [word for word in invented.split() if word[:1].isupper()]
        names = [word for word in words if self.statistics.is_name(word)]
        is_name = name[:1].isupper() or (small and name[:1].isalpha())
        return is_name and bool(names) and not any(word in self.statistics for word in names)
