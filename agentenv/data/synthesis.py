"""Harder questions from easier ones and a corpus (ASearcher): facts are injected, details fuzzed, and all of it checked.

An *injection* replaces a name in the question by what a document says of its bearer, so that one search more is needed. A
*fuzzing* makes a detail vaguer. An edit counts only if every check holds for the question that it gives; the answer never
changes.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from agentenv.core.types import Document, Task
from agentenv.data.world_grammar import RELATIONS
from agentenv.errors import DatasetError


@dataclass(frozen=True, slots=True)
class Edit:
    """A question made from another one."""

    kind: str
    """``inject`` or ``fuzz``."""
    question: str
    document: str
    """Id of the document that it leans on; empty for none."""


class Editor(Protocol):
    """Proposes edits."""

    def edits(self, question: str, rng: Random) -> Iterator[Edit]:
        """Edits of ``question``, the best first; each may turn out to be wrong."""


Check = Callable[[Task], str]
"""What is wrong with a question, in words; empty where nothing is."""


@dataclass(frozen=True)
class Synthesized:
    """A question that passed every check, and how it came about."""

    task: Task
    edits: tuple[Edit, ...]
    rejected: tuple[str, ...]
    """What was wrong with edits that were given up."""


def synthesize(
    seed: Task, editor: Editor, checks: Sequence[Check], *, rounds: int = 2, random_seed: int = 0
) -> Synthesized:
    """Edits ``seed`` again and again, keeping of each round the first edit that passes every check.

    Args:
        seed: An easy question with its answers.
        editor: Who proposes edits.
        checks: What must hold, the cheapest first.
        rounds: Edits at most.
        random_seed: Of the editor's choices.

    Returns:
        The last question that passed; ``seed`` itself where none did. ``data`` gains the documents that the edits lean on.

    Raises:
        DatasetError: ``seed`` itself fails a check.
    """
    if wrong := _first_flaw(seed, checks):
        raise DatasetError(f"question {seed.id!r} cannot be a seed: {wrong}")
    rng, task = Random(f"{random_seed}/{seed.id}"), seed
    kept: list[Edit] = []
    rejected: list[str] = []
    for _ in range(rounds):
        for edit in editor.edits(task.question, rng):
            made = replace(task, question=edit.question, data=_leaning(task, edit))
            if wrong := _first_flaw(made, checks):
                rejected.append(f"{edit.question}: {wrong}")
                continue
            task = replace(made, id=f"{seed.id}+{len(kept) + 1}")
            kept.append(edit)
            break
        else:
            break
    return Synthesized(task, tuple(kept), tuple(rejected))


def _first_flaw(task: Task, checks: Sequence[Check]) -> str:
    return next((wrong for check in checks if (wrong := check(task))), "")


def _leaning(task: Task, edit: Edit) -> dict[str, object]:
    """The task's data with the edit's document before the others; a path of the old question is none of the new one."""
    ids = task.data.get("supporting_ids", ())
    added = (edit.document,) if edit.document else ()
    kept = {key: value for key, value in task.data.items() if key not in ("path", "hops", "family")}
    return kept | {"supporting_ids": tuple(dict.fromkeys((*added, *ids)))}


class GrammarEditor:
    """Edits in the language of a FictionalWorld, without a model: names become noun phrases, years become decades.

    Args:
        documents: The corpus.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self._facts = list(_facts(documents))

    def edits(self, question: str, rng: Random) -> Iterator[Edit]:
        """Every injection that the corpus allows, in random order, then every fuzzing."""
        fitting = [fact for fact in self._facts if re.search(rf"\b{re.escape(fact.value)}\b", question)]
        rng.shuffle(fitting)
        for fact in fitting:
            phrase = rng.choice(fact.nouns).format(s=fact.subject)
            yield Edit("inject", question.replace(fact.value, phrase, 1), fact.document)
        for match in re.finditer(r"\bin (\d{3})\d\b", question):
            yield Edit("fuzz", question.replace(match[0], f"in the {match[1]}0s", 1), "")


@dataclass(frozen=True, slots=True)
class _Fact:
    subject: str
    nouns: tuple[str, ...]
    value: str
    document: str


def _facts(documents: Sequence[Document]) -> Iterator[_Fact]:
    """What the first sentences of pages say of their subjects, of relations that a noun phrase can name."""
    forms = [
        (relation, re.compile(re.escape(form).replace(r"\{s\}", "(?P<s>.+)").replace(r"\{v\}", "(?P<v>.+)")))
        for relations in RELATIONS.values()
        for relation in relations
        if relation.nouns
        for form in relation.sentences
        if "{a}" not in form
    ]
    for document in documents:
        for sentence in re.split(r"(?<=\.) ", document.text):
            for relation, form in forms:
                match = form.fullmatch(sentence)
                if match and match["s"] == document.title and match["v"][0].isupper():
                    yield _Fact(document.title, relation.nouns, match["v"], document.id)


def keeps_the_answer_hidden(task: Task) -> str:
    """Quality: the question is one, and does not hold its answer."""
    if not task.question.strip().endswith("?") or task.question.count("{"):
        return "it is no question"
    held = [a for a in task.answers if re.search(rf"\b{re.escape(a)}\b", task.question, re.IGNORECASE)]
    return f"it holds its answer {held[0]!r}" if held else ""


def unanswered_by(answer: Callable[[str], str | None], score: Callable[[str, Sequence[str]], float]) -> Check:
    """Difficulty: whoever answers directly, without a search, is wrong (a reasoning model in the paper)."""

    def check(task: Task) -> str:
        given = answer(task.question)
        right = given is not None and score(given, task.answers) > 0
        return f"it was answered without a search: {given!r}" if right else ""

    return check


def unique_by(answers: Callable[[str], set[str]]) -> Check:
    """Uniqueness: whoever knows everything finds one answer, and it is the accepted one."""

    def check(task: Task) -> str:
        found = answers(task.question)
        return (
            "" if len(found) == 1 and found <= set(task.answers) else f"its answers are {sorted(found)[:3]}"
        )

    return check
