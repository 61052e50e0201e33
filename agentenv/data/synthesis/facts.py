"""Facts of passages as triples of subject, relation and object: read from a file, or by rule from the titles in texts.

HippoRAG (Gutierrez et al. 2024, arXiv:2405.14831) lets a language model extract them; `agentenv retriever facts` does.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agentenv.core.types import Document
from agentenv.data.dataset_files import read_records
from agentenv.data.synthesis.model_replies import LONGEST_PAGE, ModelWriter
from agentenv.data.synthesis.pages import LinkedPages
from agentenv.errors import DatasetError

EXTRACT = """\
Passage titled {title}:
{text}

List the facts that it states, each as one line of subject, relation and object with a bar between them, such as \
"Ada Stone | was born in | Ulm". Write names in full and no pronouns. Reply with one JSON object and nothing after it: \
{{"facts": ["... | ... | ...", "..."]}}
If it states no fact, write "none" as the only one.
"""
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class Fact(NamedTuple):
    """What one passage states."""

    document: str
    """Id of the passage."""
    subject: str
    relation: str
    object: str

    @property
    def text(self) -> str:
        """The fact as a line of words."""
        return f"{self.subject} {self.relation} {self.object}"


@dataclass(frozen=True)
class FactExtractor:
    """A language model that lists the facts of passages."""

    writer: ModelWriter
    seed: int = 0

    async def extract(self, document: Document) -> list[Fact]:
        """The facts of ``document``; lines that are no triple are left out.

        Raises:
            SynthesisFault: no reply can be read.
            Fault: the model failed.
        """
        asked = EXTRACT.format(title=document.title, text=document.text[:LONGEST_PAGE])
        lines = (await self.writer.write(asked, {"facts": list}, self.seed))["facts"]
        return [fact for line in dict.fromkeys(lines) for fact in _of_line(document.id, line)]


def _of_line(document: str, line: str) -> list[Fact]:
    parts = [part.strip() for part in line.split("|")]
    return [Fact(document, parts[0], parts[1], parts[2])] if len(parts) == 3 and all(parts) else []


def facts_of_titles(documents: Iterable[Document]) -> Iterator[Fact]:
    """A fact for each title that stands in a sentence of another page: title, the other words of the sentence, title.

    It needs no model, and misses every fact about what is no title.
    """
    documents = tuple(documents)
    pages = LinkedPages(documents)
    for document in documents:
        for sentence in _SENTENCE.split(document.text):
            for title, written in pages.mentioned(sentence).items():
                if title != document.title:
                    words = sentence.replace(document.title, " ").replace(written, " ")
                    yield Fact(document.id, document.title, " ".join(words.split()).strip(" .,;"), title)


def facts_line(document: Document, facts: Iterable[Fact]) -> str:
    """The line of a file of facts: the passage's id and its triples."""
    row = {"id": document.id, "facts": [[f.subject, f.relation, f.object] for f in facts]}
    return json.dumps(row, ensure_ascii=False) + "\n"


def read_facts(path: Path) -> list[Fact]:
    """The facts of a file with one passage a line, ``{"id", "facts": [[subject, relation, object], ...]}``.

    Raises:
        DatasetError: the file cannot be read, or a fact is no triple of text.
    """
    found: list[Fact] = []
    for row in read_records(path):
        document, facts = row.id("id"), row.fields.get("facts")
        for fact in facts if isinstance(facts, list) else [facts]:
            found.append(_triple(document, fact, row.place))
    return found


def _triple(document: str, fact: Any, place: str) -> Fact:
    texts = fact if isinstance(fact, list) else []
    if len(texts) != 3 or not all(isinstance(part, str) and part.strip() for part in texts):
        raise DatasetError(f"{place}: a fact is a list of three texts, not {str(fact)[:60]!r}.")
    return Fact(document, texts[0], texts[1], texts[2])
