"""A proposal of self-play: a question with its answer and the searches for it, and the rules that it has to satisfy."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentenv.core.grammar import between
from agentenv.core.scoring.evidence import contains_phrase
from agentenv.core.scoring.normalize import apart, squad
from agentenv.core.types import Document
from agentenv.errors import ConfigurationError

UNKNOWN = "unknown"
"""A verifier's answer if the documents do not contain the answer. It must not be a gold answer: a proposer of questions that
cannot be answered would agree with every honest verifier."""

_WORD = re.compile(r"\d+(?:[.,:/]\d+)+|\w+")
_NUMBERED = re.compile(r"^Doc \d+(?=\(Title: )", re.MULTILINE)


@dataclass(frozen=True)
class Proposal:
    """What a proposer submits."""

    question: str
    """Empty if there is no complete question."""
    answer: str
    """The gold answer: the given one, or the proposer's own; empty if there is none."""
    queries: tuple[str, ...] = ()
    """The search queries, in order."""
    documents: tuple[str, ...] = ()
    """The passages exactly as they were shown, without duplicates and numbers."""
    thoughts: tuple[str, ...] = ()
    """The thoughts before its actions, between ``<think>`` and ``</think>``."""


@dataclass(frozen=True)
class QuestionRules:
    """Limits of the rules; the published ones (SSP) are 10 characters, 1000 characters, 10 words and 2 searches.

    Raises:
        ConfigurationError: a limit is below 0, or the upper one is below the lower one.
    """

    min_chars: int = 10
    """Smallest number of characters of a question."""
    max_chars: int = 1000
    """Largest number of characters of a question."""
    min_words: int = 4
    """Smallest number of words of a question; questions of a FictionalWorld have as few as 4."""
    searches: int = 1
    """Smallest number of searches of an episode; questions with one hop need 1."""
    searched_answer: bool = False
    """Whether an answer that a query contains is refused."""
    quotes: bool = False
    """Whether there must be thoughts, all of them quotes of what was shown: ``TITLE: words of that document``."""

    def __post_init__(self) -> None:
        if min(self.min_chars, self.min_words, self.searches) < 0 or self.max_chars < self.min_chars:
            raise ConfigurationError(
                f"rules need bounds of at least 0 and max_chars >= min_chars, not {self.min_chars}, {self.max_chars}, "
                f"{self.min_words} and {self.searches}"
            )


Filter = Callable[[Proposal, QuestionRules], bool]
"""A function that returns True if a proposal violates the rule."""

FILTERS: Mapping[str, Filter] = {
    "no_question": lambda p, _: not p.question.strip(),
    "no_answer": lambda p, _: squad(p.answer) in ("", UNKNOWN),
    "too_short": lambda p, rules: len(p.question) < rules.min_chars,
    "too_long": lambda p, rules: len(p.question) > rules.max_chars,
    "few_words": lambda p, rules: len(apart(p.question).split()) < rules.min_words,
    "leaked": lambda p, _: _names(p.question, p.answer),
    "no_information": lambda p, _: not p.documents,
    "few_searches": lambda p, rules: len(p.queries) < rules.searches,
    "repeated_search": lambda p, _: len({squad(query) for query in p.queries}) < len(p.queries),
    "searched_answer": lambda p, rules: (
        rules.searched_answer and any(_names(query, p.answer) for query in p.queries)
    ),
    "misquoted": lambda p, rules: rules.quotes and not _quotes(p.thoughts, p.documents),
    "copied": lambda p, _: any(contains_phrase(as_read(p.question), as_read(one)) for one in p.documents),
}
"""The rules by name, in the order in which they are checked."""


def refusal(proposal: Proposal, rules: QuestionRules) -> str | None:
    """Returns the name of the first rule that ``proposal`` violates; None if it satisfies all rules."""
    return next((name for name, refuses in FILTERS.items() if refuses(proposal, rules)), None)


def as_read(text: str) -> str:
    """Returns ``text`` as a reader sees it: without invisible characters, and with normalised letters (NFKC)."""
    return "".join(
        letter for letter in unicodedata.normalize("NFKC", text) if unicodedata.category(letter) != "Cf"
    )


def _names(text: str, answer: str) -> bool:
    """Whether ``text`` contains the words of ``answer``, also next to punctuation: "Ely" in "Ely's" and "Ely-born".

    A number is a single word: 5 is not in "3.5", and 10 is not in "10,000" or "10:30".
    """
    text, answer = as_read(text), as_read(answer)
    words, wanted = (" ".join(_WORD.findall(one.lower())) for one in (text, answer))
    return contains_phrase(answer, text) or bool(wanted and f" {wanted} " in f" {words} ")


def _quotes(thoughts: Sequence[str], documents: Sequence[str]) -> bool:
    """Whether there are thoughts, each of which is the title of a document, a colon and an exact quote of it."""
    pairs = [(document.title, document.text) for document in as_documents(documents)]
    return bool(thoughts) and all(
        any(title == named and words and words in text for title, text in pairs)
        for named, _, words in (thought.partition(": ") for thought in thoughts)
    )


def documents_shown(observations: Sequence[str]) -> tuple[str, ...]:
    """Returns the passages in the observations of a search environment, without duplicates, in order of appearance.

    They are taken as they were shown, because the proposer has not seen what was cut off.
    """
    bodies = [body for text in observations for body in between(text, "<information>", "</information>")]
    passages = [part.strip() for body in bodies for part in _NUMBERED.split(body)[1:]]
    return tuple(dict.fromkeys(passages))


def as_documents(passages: Sequence[str]) -> list[Document]:
    """Makes a corpus of passages from `documents_shown`: ids count from 0; passages without a title are dropped."""
    parts = [re.fullmatch(r"(?s)\(Title: (.*?)\) (.*)", passage) for passage in passages]
    return [Document(str(i), part[1], part[2]) for i, part in enumerate(parts) if part]


def as_page(documents: Sequence[str]) -> str:
    """Returns ``documents``, numbered from 1, between information tags."""
    lines = "\n".join(f"Doc {number}{document}" for number, document in enumerate(documents, 1))
    return f"<information>{lines}</information>"
