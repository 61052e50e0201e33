"""Harder questions by edits that are checked: ASearcher's data synthesis (Gao et al. 2025, arXiv:2508.07976).

A question about one page is edited again and again. An *injection* writes a link question about another page, whose answer
is an entity that the question names, and puts it in the place of that name, so that one search more is needed; a *fuzzing*
makes one detail vaguer. The first answer stays. An edit counts only if the question is still valid, and if no direct answer
to it is another right one. Once no direct answer to an edit that counts is right, the agent may stop.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, Protocol, get_args

from agentenv.core.scoring.evidence import contains_phrase
from agentenv.core.scoring.normalize import squad, squad_words
from agentenv.core.types import Task
from agentenv.data.synthesis.pages import LinkedPages, Page
from agentenv.errors import ConfigurationError, ContextTooSmall, EndpointRefusal, SynthesisFault

Kind = Literal["inject", "fuzz"]
EXIT = "exit"
COVERED = "its statement is covered already"


@dataclass(frozen=True, slots=True)
class Draft:
    """A question, and everything that it stands on."""

    question: str
    answer: str
    statements: tuple[str, ...]
    """The facts from which the answer follows."""
    documents: tuple[str, ...]
    """Ids of the passages that state them, in the order in which they have to be found."""
    used: tuple[str, ...] = ()
    """Titles of the pages that were used; none is used twice."""
    path: tuple[Mapping[str, str], ...] = ()
    """One entry a hop, where a program made the question; see `FictionalWorld`."""


@dataclass(frozen=True, slots=True)
class Link:
    """A question about a further page whose answer is an entity that the question names: the first step of an injection."""

    written: str
    """The entity, as the question writes it; the answer of the link question."""
    page: Page
    """The further page."""
    question: str
    statement: str
    """The fact of that page from which the answer of the link question follows."""
    phrase: str = ""
    """The link question as a noun phrase, where a program made it."""
    hop: Mapping[str, str] | None = None
    """The fact as an entry of `Draft.path`, where a program made the link."""


@dataclass(frozen=True, slots=True)
class EditRecord:
    """An edit that was tried."""

    kind: Kind
    question: str
    """What it would make of the question; empty where the editor found none."""
    flaw: str
    """Why it was refused; empty where it counts."""
    right: int = 0
    """How many of the direct answers that could be read were right."""
    read: int = 0
    """Direct answers that could be read."""
    link: str = ""
    """The link question of an injection; empty where the editor wrote none."""


class Editor(Protocol):
    """Proposes questions and edits of them. Each returns None where it finds nothing to propose."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The edits that it can make."""

    async def start(self, page: Page, rng: Random) -> Draft | None:
        """An easy question about ``page``."""

    async def choose(self, draft: Draft, actions: Sequence[str], rng: Random) -> str:
        """Chooses one of ``actions``, which stand in random order."""

    async def link(self, draft: Draft, rng: Random) -> Link | None:
        """A link question whose answer is an entity of ``draft``, about a page that was not used before."""

    async def substitute(self, draft: Draft, link: Link, rng: Random) -> str:
        """The question of ``draft`` with ``link`` in the place of the name that answers it."""

    async def fuzz(self, draft: Draft, rng: Random) -> Draft | None:
        """``draft`` with one detail made vaguer."""


class Reviewer(Protocol):
    """Judges drafts of questions."""

    async def flaw(self, draft: Draft) -> str:
        """What is wrong with it: two questions glued together, no single answer, not to be solved from its statements."""

    async def is_covered(self, draft: Draft, statement: str) -> bool:
        """Whether the statements of ``draft`` say what ``statement`` says."""

    async def is_right(self, draft: Draft, answer: str) -> bool:
        """Whether ``answer`` says the same as the accepted one."""

    async def is_right_too(self, draft: Draft, answer: str) -> bool:
        """Whether ``answer``, which says something else, answers the question as well."""


class DirectSolver(Protocol):
    """Answers without a search."""

    async def answers(self, question: str, count: int, seed: int) -> list[str]:
        """``count`` answers, those left out that could not be read."""


@dataclass(frozen=True)
class SynthesisConfig:
    """The budgets, as ASearcher's program has them.

    Raises:
        ConfigurationError: one is out of range.
    """

    turns: int = 16
    """Edits that are tried for a question."""
    direct: int = 8
    """Direct answers after each edit."""
    fewest: int = 1
    """Edits that a question needs to be kept."""
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.turns, self.fewest) < 1 or self.direct < 0:
            raise ConfigurationError(
                f"turns={self.turns} and fewest={self.fewest} must be at least 1, direct={self.direct} at least 0"
            )


@dataclass(frozen=True, slots=True)
class Synthesis:
    """What became of one page."""

    page: str
    draft: Draft | None
    """The question; None where the editor found none in the page."""
    edits: tuple[EditRecord, ...]
    right: int
    """Direct answers to the question that are right."""
    read: int
    """Direct answers to the question that could be read; 0 where nobody was asked."""

    def committed(self) -> list[str]:
        """The kinds of the edits that count."""
        return [edit.kind for edit in self.edits if not edit.flaw]

    def flaw(self, fewest: int) -> str:
        """Why the question is not kept, of ASearcher's final filters; empty where it is.

        Uniqueness is a part of each edit: a direct answer that is right too refuses it.
        """
        if self.draft is None:
            return "no question"
        if len(self.committed()) < fewest:
            return "too few edits"
        return "answered without a search" if self.right else ""


def form_flaw(draft: Draft) -> str:
    """Quality, as far as a program sees it: one question that does not hold its answer and is not endless."""
    question = draft.question.strip()
    if not question.endswith("?") or question.count("?") > 1 or "\n" in question:
        return "it is not one question"
    if re.search(rf"(?<!\w){re.escape(draft.answer)}(?!\w)", question, re.IGNORECASE):
        return "it holds its answer"
    return "it is longer than 1500 characters" if len(question) > 1500 else ""


def link_flaw(draft: Draft, link: Link) -> str:
    """What is wrong with a link question, as far as a program sees it; empty where nothing is."""
    asked = Draft(link.question, link.written, (link.statement,), link.page.ids)
    if flaw := form_flaw(asked):
        return f"the link question: {flaw}"
    if not contains_phrase(link.written, link.statement):
        return f"the statement does not name {link.written!r}"
    known = {squad(statement) for statement in draft.statements}
    return COVERED if squad(link.statement) in known else ""


def substitution_flaw(draft: Draft, link: Link, question: str) -> str:
    """Whether ``question`` still names what the link question asks for, or says nothing of the link question."""
    if contains_phrase(link.written, question):
        return f"the name {link.written!r} still stands in it"
    added = set(squad_words(question)) - set(squad_words(draft.question))
    return "" if added & set(squad_words(link.question)) else "it says nothing of the link question"


async def synthesize(
    page: Page, editor: Editor, reviewer: Reviewer, solver: DirectSolver | None, config: SynthesisConfig
) -> Synthesis:
    """Makes a question about ``page`` and edits it.

    Args:
        page: The root.
        editor: Proposes.
        reviewer: Judges.
        solver: Answers without a search; with None every question counts as hard, as nobody knows an invented world.
        config: The budgets.

    Raises:
        Fault: a model failed.
        SynthesisFault: the editor wrote no question that can be read, or the solver too few answers to the first one.
    """
    rng = Random(f"{config.seed}/{page.title}")
    draft = await editor.start(page, rng)
    if draft is None or form_flaw(draft) or await reviewer.flaw(draft):
        return Synthesis(page.title, None, (), 0, 0)
    direct = await _direct(draft, reviewer, solver, config, rng)
    edits: list[EditRecord] = []
    for _ in range(config.turns):
        is_ready = not direct.right and any(not edit.flaw for edit in edits)
        actions = [*editor.kinds, *([EXIT] if is_ready else [])]
        rng.shuffle(actions)
        chosen = await editor.choose(draft, actions, rng)
        if chosen == EXIT:
            break
        kind = chosen if chosen in get_args(Kind) else editor.kinds[0]
        made, edit = await _edit(draft, kind, editor, reviewer, solver, config, rng)
        edits.append(edit)
        if made is not None:
            draft, direct = made, _Direct(edit.right, edit.read)
    return Synthesis(page.title, draft, tuple(edits), direct.right, direct.read)


@dataclass(frozen=True, slots=True)
class _Direct:
    """What came of asking without a search."""

    right: int
    read: int
    other_answer: str | None = None
    """An answer that is not the accepted one and right too."""


async def _edit(
    draft: Draft,
    kind: Any,
    editor: Editor,
    reviewer: Reviewer,
    solver: DirectSolver | None,
    config: SynthesisConfig,
    rng: Random,
) -> tuple[Draft | None, EditRecord]:
    """One edit and what became of it; None where it does not count. A reply that is of no use refuses the edit alone."""
    question = link = ""
    try:
        if kind == "inject":
            made, link, flaw = await _injected(draft, editor, reviewer, rng)
        else:
            made, flaw = await editor.fuzz(draft, rng), "the editor found none"
        if made is None:
            return None, EditRecord(kind, "", flaw, link=link)
        question = made.question
        if made.answer != draft.answer or question == draft.question:
            return None, EditRecord(kind, question, "it changes nothing, or the answer", link=link)
        if flaw := form_flaw(made) or await reviewer.flaw(made):
            return None, EditRecord(kind, question, flaw, link=link)
        direct = await _direct(made, reviewer, solver, config, rng)
    except (SynthesisFault, EndpointRefusal, ContextTooSmall) as error:
        return None, EditRecord(kind, question, f"{type(error).__name__}: {error}", link=link)
    flaw = "" if direct.other_answer is None else f"{direct.other_answer!r} answers it too"
    return None if flaw else made, EditRecord(kind, question, flaw, direct.right, direct.read, link)


async def _injected(
    draft: Draft, editor: Editor, reviewer: Reviewer, rng: Random
) -> tuple[Draft | None, str, str]:
    """The draft after both steps of an injection, the link question, and why there is no such draft."""
    link = await editor.link(draft, rng)
    if link is None:
        return None, "", "the editor found none"
    flaw = link_flaw(draft, link)
    if not flaw and await reviewer.is_covered(draft, link.statement):
        flaw = COVERED
    if flaw:
        return None, link.question, flaw
    question = await editor.substitute(draft, link, rng)
    if flaw := substitution_flaw(draft, link, question):
        return None, link.question, f"{question!r}: {flaw}"
    return with_link(draft, link, question), link.question, ""


async def _direct(
    draft: Draft, reviewer: Reviewer, solver: DirectSolver | None, config: SynthesisConfig, rng: Random
) -> _Direct:
    """How many direct answers are right, and one of the others that is right too.

    Raises:
        SynthesisFault: fewer than half of the answers can be read, so nobody knows how hard the question is.
    """
    if solver is None or not config.direct:
        return _Direct(0, 0)
    answers = await solver.answers(draft.question, config.direct, rng.getrandbits(31))
    if 2 * len(answers) < config.direct:
        raise SynthesisFault(
            f"only {len(answers)} of {config.direct} direct answers of the solver could be read"
        )
    verdicts = {answer: await reviewer.is_right(draft, answer) for answer in dict.fromkeys(answers)}
    right = sum(verdicts[answer] for answer in answers)
    for answer, same in verdicts.items():
        if not same and await reviewer.is_right_too(draft, answer):
            return _Direct(right, len(answers), answer)
    return _Direct(right, len(answers))


def as_task(made: Synthesis, number: int) -> Task:
    """The question as a task, whose ``data`` holds its statements, its documents, its edits and its difficulty.

    Raises:
        ConfigurationError: there is no question.
    """
    draft = made.draft
    if draft is None:
        raise ConfigurationError(f"no question was made of the page {made.page!r}")
    kinds = made.committed()
    data: dict[str, Any] = {
        "hops": 1 + kinds.count("inject"),
        "family": "asearcher",
        "supporting_ids": list(draft.documents),
        "statements": list(draft.statements),
        "edits": [
            {
                "kind": edit.kind,
                "link": edit.link,
                "question": edit.question,
                "flaw": edit.flaw,
                "right": edit.right,
                "read": edit.read,
            }
            for edit in made.edits
        ],
        "direct_right": made.right,
        "direct_asked": made.read,
    }
    if draft.path:
        data["path"] = [dict(hop) for hop in draft.path]
    return Task(f"asearcher-{number}", draft.question, (draft.answer,), "train", data)


def roots_of(pages: LinkedPages, count: int, seed: int) -> list[Page]:
    """``count`` pages that link to others, drawn by ``seed`` in random order; fewer where there are not so many."""
    titles = list(pages.pages)
    Random(f"{seed}/roots").shuffle(titles)
    found: list[Page] = []
    for title in titles:
        if len(found) == count:
            break
        if pages.linked(title):
            found.append(pages.pages[title])
    return found


def with_link(draft: Draft, link: Link, question: str) -> Draft:
    """``draft`` with ``question``, which leans on the page of ``link`` as well."""
    return replace(
        draft,
        question=question,
        statements=(*draft.statements, link.statement),
        documents=tuple(dict.fromkeys((*link.page.ids, *draft.documents))),
        used=(*draft.used, link.page.title),
        path=draft.path if link.hop is None else (link.hop, *draft.path),
    )
