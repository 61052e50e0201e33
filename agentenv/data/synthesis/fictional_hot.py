"""FictionalHot: questions of a real set about invented names, with documents rewritten alike (ReSeek, arXiv:2510.00568).

The names in a question, in its answers and in its supporting documents give way to invented ones, everywhere to the same.
What has to be found and combined stays as it was, and nobody can know it. Numbers, dates and common words stay. Where no
supporting document is known, a language model can write documents for the fictional question.
"""

import calendar
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol

from agentenv.core.types import Document, Task
from agentenv.data.synthesis.pages import FUNCTION_WORDS, LinkedPages
from agentenv.data.world_names import HEADS, MIDDLES, TAILS
from agentenv.errors import DatasetError

_WORD = re.compile(r"[^\W\d_]+")
_TOKEN = re.compile(r"[^\W_]+")  # with digits, as in "U2"
_SENTENCE_END = re.compile(r"[.!?:\"“(]\s*$|^\s*$")
KEPT = frozenset((*FUNCTION_WORDS, *calendar.month_name[1:], *calendar.day_name))
"""Words that begin sentences and questions, months and days: they name nothing that would have to be hidden."""


class WordStatistics:
    """How often the words of a corpus are written with a capital within a sentence, and how often without.

    Args:
        documents: The corpus.
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        self._capital, self._small = Counter[str](), Counter[str]()
        for document in documents:
            self._capital.update(word for word in _WORD.findall(document.title) if word[0].isupper())
            for match in _WORD.finditer(document.text):
                word = match[0]
                if not word[0].isupper():
                    self._small[word] += 1
                elif not _SENTENCE_END.search(document.text[max(0, match.start() - 3) : match.start()]):
                    self._capital[word] += 1

    def is_name(self, word: str) -> bool:
        """Whether ``word``, which begins with a capital, is a name and no common word.

        It is one where the corpus writes it with a capital within sentences more often than without, and where the corpus
        does not know it without one.
        """
        if len(word) < 2 or word in KEPT:
            return False
        small = self._small[word.lower()]
        return small == 0 or self._capital[word] > small

    def __contains__(self, word: str) -> bool:
        return word in self._capital or word.lower() in self._small


def invented_words(seed: int, known: WordStatistics) -> Iterator[str]:
    """Invented words, each once, none of which the corpus knows; some 65,000."""
    words = [head + middle + tail for head in HEADS for middle in MIDDLES for tail in TAILS]
    Random(f"{seed}/fictional-hot").shuffle(words)
    yield from (word for word in dict.fromkeys(words) if word[2] != word[3] and word not in known)


@dataclass(frozen=True)
class RealItem:
    """A question of a real set with its supporting documents."""

    task: Task
    documents: tuple[Document, ...]

    def texts(self) -> Iterator[str]:
        """Everything of it in which names may stand."""
        yield from (self.task.question, *self.task.answers)
        for document in self.documents:
            yield from (document.title, document.text)


@dataclass(frozen=True)
class NameMap:
    """An invented word for every word with a capital of a set of questions, the same wherever and however it is written."""

    statistics: WordStatistics
    """Word statistics of the corpus."""
    invented: Mapping[str, str]
    """By `spelling`."""
    inventions: frozenset[str]
    """The spellings of what was invented."""

    def with_words(self, chosen: Mapping[str, str]) -> "NameMap":
        """The map with the inventions that somebody else has chosen for words, by their `spelling`."""
        made = frozenset(map(spelling, chosen.values()))
        return replace(self, invented={**self.invented, **chosen}, inventions=self.inventions | made)

    @classmethod
    def of(cls, items: Iterable[RealItem], statistics: WordStatistics, seed: int) -> "NameMap":
        """Inventions for ``items``, whose order does not matter.

        Raises:
            DatasetError: there are more words than inventions.
        """
        texts = [text for item in items for text in item.texts()]
        capital = {spelling(word) for text in texts for word in _WORD.findall(text) if word[0].isupper()}
        words = sorted(capital.union(*(map(spelling, native_words(text)) for text in texts)))
        made = list(itertools.islice(invented_words(seed, statistics), len(words)))
        if len(made) < len(words):
            raise DatasetError(
                f"{len(words)} words may have to be replaced, and only {len(made)} can be invented; give a smaller --limit"
            )
        return cls(statistics, dict(zip(words, made, strict=True)), frozenset(map(spelling, made)))


def spelling(name: str) -> str:
    """``name`` without case and accents: "Beyoncé", "BEYONCÉ" and "Beyonce" are one name."""
    parts = unicodedata.normalize("NFKD", name)
    return "".join(part for part in parts if not unicodedata.combining(part)).casefold()


def native_words(text: str) -> frozenset[str]:
    """The words of ``text`` in a script without capitals, such as Arabic or Chinese, if most of its words are in another.

    An encyclopedia writes a name so beside its translation, as in "Mehmed IV (\u0645\u062d\u0645\u062f)".
    """
    words = _WORD.findall(text)
    native = [word for word in words if len(word) > 1 and word.lower() == word.upper()]
    return frozenset(native if 2 * len(native) < len(words) else ())


def _written_like(invented: str, real: str) -> str:
    """``invented`` in capitals where ``real`` is, which has more than one letter."""
    return invented.upper() if real.isupper() and len(real) > 1 else invented


@dataclass(frozen=True)
class FictionalItem:
    """The same with invented names."""

    seed: RealItem
    question: str
    answers: tuple[str, ...]
    documents: tuple[Document, ...]
    names: Mapping[str, str]
    """What stands in the place of each real name."""
    listed: tuple[str, ...] = ()
    """Real names that were found besides the titles and the answers."""
    kept_texts: int = 0
    """Documents whose rewriting was refused, so that only their names are others."""


@dataclass(frozen=True)
class FoundNames:
    """The names that somebody has found in an item."""

    listed: tuple[str, ...] = ()
    """As they are written; none of them may survive."""
    invented: Mapping[str, str] = field(default_factory=dict)
    """What shall stand in the place of those for which an invention can be used."""


class Replacer(Protocol):
    """Finds names and invents others for them."""

    @property
    def composes(self) -> bool:
        """Whether it writes documents for questions without any."""

    async def names(self, item: RealItem) -> FoundNames:
        """The names of ``item``."""

    async def rewrite(self, document: Document, needed: Sequence[str]) -> str | None:
        """Another wording of a document with invented names, which holds every text of ``needed``; None leaves it."""

    async def compose(self, question: str, answers: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Title and text of every document from which one of ``answers`` to the fictional question follows."""


class RuleReplacer:
    """Replaces word by word and leaves the wording of documents as it is; needs no model."""

    composes = False

    async def names(self, item: RealItem) -> FoundNames:
        """None: what is left of real names is replaced word by word anyway."""
        return FoundNames()

    async def rewrite(self, document: Document, needed: Sequence[str]) -> str | None:
        """None."""
        return None

    async def compose(self, question: str, answers: Sequence[str]) -> Sequence[tuple[str, str]]:
        """None."""
        return ()


def name_words(item: RealItem, pages: LinkedPages) -> frozenset[str]:
    """The words with a capital in titles, in answers, and in the question behind its first word.

    The titles are those of the supporting documents and those that the question names. Within these names common words are
    replaced as well, because "The Dark Knight" is a name, and so is a film that the question calls "Gentleman".
    """
    question = item.task.question
    texts = [*(document.title for document in item.documents), *item.task.answers]
    texts += pages.mentioned(question)
    return _capital_words([*texts, " ".join(_WORD.findall(question)[1:])])


def _capital_words(texts: Iterable[str]) -> frozenset[str]:
    words = (word for text in texts for word in _WORD.findall(text))
    return frozenset(word for word in words if word[0].isupper() and len(word) > 1 and word not in KEPT)


def left_out(item: RealItem, composes: bool = False) -> str:
    """Why no replacement can hide the answer; empty where one can.

    Args:
        item: The real one.
        composes: Whether documents are written where none is known.
    """
    answers = [answer.strip().lower() for answer in item.task.answers]
    if any(answer in ("yes", "no") for answer in answers):
        return "the answer is yes or no"
    if any(re.search(rf"(?<!\w){re.escape(a)}(?!\w)", item.task.question.lower()) for a in answers):
        return "the answer stands in the question"
    if not item.documents and not composes:
        return "no supporting document is known"
    return "a title holds no name" if not all(map(_has_name, item.documents)) else ""


def _has_name(document: Document) -> bool:
    return any(word[0].isupper() and word not in KEPT for word in _WORD.findall(document.title))


async def replace_names(
    item: RealItem, own: frozenset[str], names: NameMap, found: FoundNames, replacer: Replacer
) -> FictionalItem:
    """``item`` with invented names.

    Args:
        item: The real one, for which `left_out` says nothing.
        own: Its `name_words`.
        names: Of all sets together, so that questions share inventions.
        found: Names whose inventions come first; what they leave is replaced word by word.
        replacer: Puts the documents into other words.

    Raises:
        DatasetError: a real name survives.
        Fault: a model failed.
    """
    words = own | _capital_words(found.listed)
    used: dict[str, str] = {}
    small = _is_small(item.task.question)

    def fictional(text: str) -> str:
        phrased = _phrases_replaced(text, found.invented, used, small and _is_small(text))
        return _words_replaced(phrased, words, names, used, found.invented)

    question, answers = fictional(item.task.question), tuple(map(fictional, item.task.answers))
    documents = tuple(
        Document(f"{item.task.id}-{document.id}", fictional(document.title), fictional(document.text))
        for document in item.documents
    )
    done = FictionalItem(item, question, answers, documents, used, found.listed)
    done = await (_reworded(done, names.statistics, replacer) if documents else _composed(done, replacer))
    if survivor := surviving_name(done):
        raise DatasetError(f"{item.task.id}: the real name {survivor!r} survives")
    return done


def _is_small(text: str) -> bool:
    """Whether ``text`` is written without any capital, as the questions of NQ are, so that none tells a name."""
    return text == text.lower()


async def _composed(item: FictionalItem, replacer: Replacer) -> FictionalItem:
    """``item`` with documents that somebody writes for it.

    Raises:
        DatasetError: no name of the question was replaced, the documents hold no answer, or a real name comes back.
        Fault: a model failed.
    """
    name = item.seed.task.id
    if item.question == item.seed.task.question:
        raise DatasetError(f"{name}: no name in the question was replaced")
    written = await replacer.compose(item.question, item.answers)
    texts = "\n".join(f"{title}\n{text}" for title, text in written)
    if not any(answer in texts for answer in item.answers):
        raise DatasetError(f"{name}: none of the documents that were written holds the answer")
    listed = frozenset(word for one in item.listed for word in _WORD.findall(one) if len(word) > 2)
    gone = {spelling(word) for word in listed | _capital_words(item.names)} - {
        word.casefold() for word in KEPT
    }
    if back := [word for word in _WORD.findall(texts) if word[0].isupper() and spelling(word) in gone]:
        raise DatasetError(f"{name}: a document that was written names {back[0]!r}")
    documents = (Document(f"{name}-{n}", title, text) for n, (title, text) in enumerate(written, 1))
    return replace(item, documents=tuple(documents))


async def _reworded(item: FictionalItem, known: WordStatistics, replacer: Replacer) -> FictionalItem:
    """``item`` with its documents in other words, where those have no flaw.

    Raises:
        Fault: a model failed.
    """
    real = _capital_words([*item.names, *item.listed])
    documents, kept = [], 0
    for document in item.documents:
        needed = [answer for answer in item.answers if answer in document.text]
        wording = await replacer.rewrite(document, needed)
        if wording is not None and not wording_flaw(wording, document, needed, known, real):
            document = replace(document, text=wording)
        else:
            kept += wording is not None
        documents.append(document)
    return replace(item, documents=tuple(documents), kept_texts=kept)


def wording_flaw(
    wording: str, document: Document, needed: Sequence[str], known: WordStatistics, real: Collection[str] = ()
) -> str:
    """What is wrong with a rewriting of ``document``; empty where nothing is.

    Args:
        wording: The other words.
        document: What they say again.
        needed: Answers that must stand in them, letter by letter.
        known: Of the corpus; none of its names may come in.
        real: Words of names that were replaced, none of which may come back.
    """
    had = set(map(spelling, _WORD.findall(f"{document.title} {document.text}")))
    gone = set(map(spelling, real))
    new = (word for word in _WORD.findall(wording) if word[0].isupper() and spelling(word) not in had)
    if names := [word for word in new if spelling(word) in gone or (word in known and known.is_name(word))]:
        return f"it names {names[0]}"
    return "" if all(answer in wording for answer in needed) else "it lost an answer"


def _phrases_replaced(text: str, chosen: Mapping[str, str], used: dict[str, str], small: bool) -> str:
    """``text`` with the inventions of ``chosen``, also where a name stands in capitals.

    What begins small is no name, but in a text without capitals (``small``).
    """
    for name in sorted(chosen, key=len, reverse=True):

        def one(match: re.Match[str], new: str = chosen[name]) -> str:
            if not (small or match[0][0].isupper()):
                return match[0]
            used[match[0]] = _written_like(new, match[0])
            return used[match[0]]

        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", one, text, flags=re.IGNORECASE)
    return text


def words_of_phrases(invented: Mapping[str, str]) -> dict[str, str]:
    """What stands for a word of a name that stands alone, by its `spelling`.

    This is the word in its place of an invention with as many words, and otherwise the whole invention, so that the word
    still names the same. A word that two names would give different inventions is left out.
    """
    found: dict[str, set[str]] = {}
    for name, new in invented.items():
        real, made = _WORD.findall(name), _WORD.findall(new)
        for word, invention in zip(real, made if len(made) == len(real) else [new] * len(real), strict=True):
            found.setdefault(spelling(word), set()).add(invention)
    return {word: inventions.pop() for word, inventions in found.items() if len(inventions) == 1}


def _words_replaced(
    text: str, own: frozenset[str], names: NameMap, used: dict[str, str], invented: Mapping[str, str]
) -> str:
    ours = {spelling(word) for invention in invented.values() for word in _WORD.findall(invention)}
    alone, known = words_of_phrases(invented), {spelling(word) for word in own}
    native = native_words(text)

    def one(match: re.Match[str]) -> str:
        word, form = match[0], spelling(match[0])
        is_written_as_name = word[0].isupper() or word in native
        if form in ours or form in names.inventions or not is_written_as_name or word in KEPT:
            return word
        new = alone.get(form)
        if new is None and (form in known or word in native or names.statistics.is_name(word)):
            new = names.invented.get(form)
        if new is None:
            return word
        used[word] = _written_like(new, word)
        return used[word]

    return _WORD.sub(one, text)


def surviving_name(item: FictionalItem) -> str | None:
    """A title, an answer or a listed name of the real question that stands in the fictional one.

    Names are looked for whole, whatever their case and accents, in the question, the answers and the documents. What holds
    no word with a capital (a number, a common word) is no name, but among the names that were listed of a question without
    capitals.
    """
    parts = [item.question, *item.answers, *(f"{d.title}\n{d.text}" for d in item.documents)]
    text = spelling("\n".join(parts))
    real = [*(document.title for document in item.seed.documents), *item.seed.task.answers, *item.listed]
    small = set(item.listed) if _is_small(item.seed.task.question) else set[str]()
    for name in real:
        held = any(
            (word != word.lower() or (name in small and word.isalpha()))
            and word not in KEPT
            and len(word) > 1
            for word in _TOKEN.findall(name)
        )
        if held and re.search(rf"(?<!\w){re.escape(spelling(name))}(?!\w)", text):
            return name
    return None


def items_of(tasks: Iterable[Task], documents: Iterable[Document]) -> list[RealItem]:
    """Every question with those of its supporting documents that ``documents`` holds."""
    known = {document.id: document for document in documents}
    return [
        RealItem(task, tuple(known[i] for i in task.data.get("supporting_ids", ()) if i in known))
        for task in tasks
    ]


def as_task(item: FictionalItem, further: Mapping[str, Any]) -> Task:
    """The fictional question as a task; ``data`` names the real one and every replacement."""
    real = item.seed.task
    data = {
        "seed_id": real.id,
        "family": "fictional-hot",
        "hops": real.data.get("hops", len(item.documents)),
        "supporting_ids": [document.id for document in item.documents],
        "map": dict(item.names),
        **further,
    }
    return Task(f"fictional-{real.id}", item.question, item.answers, "", data)


def shared_haystack(items: Iterable[FictionalItem], real: Iterable[Document]) -> Iterator[Document]:
    """The documents of ``items`` and behind them ``real`` ones, as in the paper, which puts the former into Wikipedia.

    The originals of rewritten documents are among the real ones there. They are close to their rewritings and tell nothing
    of the invented names, so that a search has to pass over them.
    """
    for item in items:
        yield from item.documents
    yield from real
