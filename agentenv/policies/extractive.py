"""A baseline without a language model: one search with the question, then a span of the passages picked by rules.

It reads nothing but the text that a language model would read. A span is a date, a number or a run of capitalised words,
whichever the question asks for; it scores by the rare words of the question that stand near it. The rules were written
down once, from how questions are worded, and are not fitted to any set.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import log
from typing import NamedTuple

from agentenv.core.grammar import between
from agentenv.core.tool_results import read_passage_lines
from agentenv.core.types import Completion, Sampling
from agentenv.policies.card import EpisodeCard
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import complete

EXTRACTIVE = "scripted:extractive"
EXTRACTIVE_CARD = EpisodeCard(k=5, max_turns=1, observation_tokens=4000)

_QUESTION = re.compile(r"^Question: (.*)$", re.MULTILINE)
_FIRST = "Doc 1(Title: "
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(])")
_WORD = re.compile(r"\w+(?:['\u2019.\-]\w+)*")

_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_YEAR = r"\b(?:1[0-9]|20)\d\d\b"
_NUMERAL = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|twenty|thirty"
)
_SPANS = {
    "year": re.compile(_YEAR),
    "date": re.compile(rf"\b(?:\d{{1,2}} {_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}}, \d{{4}}|{_MONTH} \d{{4}})\b|{_YEAR}"),
    "number": re.compile(
        rf"[$\u00a3\u20ac]?\b\d[\d,]*(?:\.\d+)?(?:\s?%| (?:percent|million|billion|trillion))?|\b(?:{_NUMERAL})\b", re.I
    ),
    "name": re.compile(
        r"\b[A-Z][\w'\u2019.\-]*(?:(?: (?:of|the|de|van|von|and|&|for|in|la|du))? [A-Z0-9][\w'\u2019.\-]*)*", re.UNICODE
    ),
}  # fmt: skip
_KINDS = (
    ("year", re.compile(r"\b(?:what|which) year\b")),
    (
        "number",
        re.compile(r"\bhow (?:many|much|old|long|far|tall|high)\b|\bwhat (?:number|percent|population)"),
    ),
    ("date", re.compile(r"\bwhen\b|\bwhat (?:\w+ )?(?:date|day)\b")),
)
_YES_NO = re.compile(
    r"^(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b(?!.*\b(?:who|what|which|when|where)\b)"
)
_CHOICE = re.compile(
    r"(?:[,:?]|\bfirst\b|\bearlier\b|\bolder\b|\blater\b|\byounger\b)\s*(?:between\s+)?"
    r"([A-Z\"'][^,:?]*?),?\s+or\s+([A-Z\"'][^,?]*?)\s*\??$"
)
_LATER = re.compile(r"\b(?:later|younger|latest|last|recently|newer|after)\b")
_EARLIER = re.compile(r"\b(?:first|earlier|older|earliest|before|oldest)\b")
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an the of in on at to for from by with and or is are was were be been do does did has have had what which "
        "who whom whose when where why how many much that this these those it its as s name called",
    )
)


class Page(NamedTuple):
    """One passage that a search showed."""

    title: str
    text: str


class ExtractivePolicy:
    """Searches with the question, then answers with a span of what came back. Always the same for the same text."""

    version = 0

    def __init__(self) -> None:
        self.tokenizer = ByteTokenizer()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """The next action, from the text of ``prompt_ids`` alone."""
        return complete(act(self.tokenizer.decode(prompt_ids)), self.tokenizer, sampling)

    def release(self, episode: str) -> None:
        """Nothing is kept."""

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """A log-prob of 0 for each id."""
        return [0.0] * len(ids)


def act(text: str) -> str:
    """What to write after ``text``: a search with the question, or an answer where one was made or pages are shown."""
    asked = _QUESTION.search(text)
    question = (asked[1] if asked else text.strip().splitlines()[0]).strip()
    pages = pages_of(text)
    if not pages and f"<search>{question}</search>" not in text:
        return f"<search>{question}</search>"
    return f"<answer>{answer(question, pages)}</answer>"


def pages_of(text: str) -> list[Page]:
    """The passages in the observations of ``text``, in order."""
    found = between(text, f"<information>{_FIRST}", "</information>")
    bodies = "\n".join(_FIRST + body for body in found)
    return [Page(title.strip('"'), " ".join(body.split())) for title, body in read_passage_lines(bodies)]


def answer(question: str, pages: Sequence[Page]) -> str:
    """The best span for ``question``; empty where the passages hold none."""
    lowered = question.lower()
    choice = _CHOICE.search(question)
    if choice and (picked := _choose(lowered, [choice[1].strip(" \"'"), choice[2].strip(" \"'")], pages)):
        return picked
    if _YES_NO.search(lowered):
        return "yes"
    kind = next((kind for kind, pattern in _KINDS if pattern.search(lowered)), "name")
    scores: dict[str, float] = {}
    for span, score in _spans(kind, question, pages):
        known = scores.get(span, 0.0)
        scores[span] = max(known, score) + 0.25 * min(known, score)
    return max(scores, key=scores.__getitem__, default="")


def _choose(question: str, options: Sequence[str], pages: Sequence[Page]) -> str:
    """The one of two named things whose page has the earlier or later year; "" where the question asks something else."""
    later = _LATER.search(question)
    if not later and not _EARLIER.search(question):
        return ""
    years = []
    for option in options:
        own = [page.text for page in pages if option.lower() in page.title.lower()]
        own = own or [page.text for page in pages if option.lower() in page.text.lower()]
        found = re.search(_YEAR, " ".join(own))
        years.append(int(found[0]) if found else 9999)
    return options[years.index((max if later else min)(years))]


def _spans(kind: str, question: str, pages: Sequence[Page]) -> Iterator[tuple[str, float]]:
    """Every candidate of a kind with its score, which is the nearness of the question's words in its sentence."""
    asked = _words(question)
    sentences = [(rank, page, text) for rank, page in enumerate(pages) for text in _SENTENCE.split(page.text)]
    weight = _rarity([set(_words(text)) for _, _, text in sentences], asked)
    common = {word for _, _, text in sentences for word in _WORD.findall(text) if word.islower()}
    for rank, page, text in sentences:
        about = sum(weight.get(word, 0.0) for word in set(_words(page.title)))
        places = [(found.start(), weight.get(found[0].lower(), 0.0)) for found in _WORD.finditer(text)]
        for found in _SPANS[kind].finditer(text):
            span = found[0].strip(" .,-'")
            fit = (
                1.0 if kind != "name" else _fit(span, question.lower(), asked, common, text[: found.start()])
            )
            near = sum(w / (1 + abs(at - found.start()) / 40) for at, w in places if w)
            if span and fit:
                yield span, fit * (near + 0.5 * about) - 0.3 * rank
        if kind == "name" and (fit := _fit(page.title, question.lower(), asked, common, "")):
            yield page.title, fit * 0.6 * sum(w for _, w in places) - 0.3 * rank


def _fit(span: str, question: str, asked: Sequence[str], common: Collection[str], before: str) -> float:
    """How well a run of capitalised words answers a question; 0 where it cannot."""
    words = _words(span)
    new = [word for word in words if word not in asked]
    if not new or _SPANS["date"].fullmatch(span) or re.fullmatch(rf"{_MONTH}(?: \d+)?", span):
        return 0.0
    if len(words) == 1 and words[0] in common:  # a common word that only begins a sentence
        return 0.0
    fit = len(new) / len(words)
    if question.startswith("who") or " who " in question:
        return fit * (1.3 if 2 <= len(words) <= 4 else 1.0)
    if "where" in question or re.search(r"\b(?:city|country|state|place|town|county)\b", question):
        return fit * (1.5 if re.search(r"\b(?:in|at|near|from|to|of) $", before) else 1.0)
    return fit


def _rarity(sentences: Sequence[set[str]], asked: Sequence[str]) -> Mapping[str, float]:
    """How telling each word of the question is: the logarithm of in how few of the sentences it stands."""
    seen = Counter(word for words in sentences for word in words)
    return {word: log(1 + len(sentences) / (1 + seen[word])) for word in set(asked)}


def _words(text: str) -> list[str]:
    return [word for word in (found.lower() for found in _WORD.findall(text)) if word not in _STOP_WORDS]
