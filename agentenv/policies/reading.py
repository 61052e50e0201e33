"""What a reader knows of an episode, from its text, and actions as texts: which byte may follow which.

An episode is text: the prompt, then the policy's actions, each but the last followed by what the search found. A reader
chooses whole actions, and the record holds bytes. Both are one distribution: the probability of a byte after a prefix is
that of all actions that begin with prefix and byte over that of all that begin with the prefix. The product over the bytes
of an action is then the probability of the action, with spans of the same text counted together.

Shapes: C candidates, W bytes of the longest, K bytes of one action.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentenv.core.io.model_files import read_settings
from agentenv.core.tool_results import read_passage_lines

MODEL_TYPE = "passage_reader"
END = 256
"""The id that follows a complete action."""
SEARCH, ANSWER = "search", "answer"

_QUESTION = re.compile(rb"^Question: ", re.MULTILINE)
_ASKED = re.compile(rb"\n(?=<(?:search|answer)>|<[a-z]{0,6}\Z|\Z)")
"""Where a question ends, which may have several lines: an action follows, the beginning of one, or nothing."""
_OBSERVED = re.compile(
    rb"\n\n<information>((?:(?!\n\n<information>).)*?)</information>\n\n"
    rb"|\nMy last action was not valid\.(?:(?!\nMy last action).)*?Let me try again\.\n",
    re.DOTALL,
)
_YEAR = re.compile(r"(?<!\d)(?:1\d|20)\d\d(?!\d)")
_ROLE = re.compile(r"\b(?!younger|earlier)([a-z]{5,})[eo]rs?\b")
_DOING = re.compile(r"\b([a-z]{5,}?)(?:[eo]rs?|ed)\b")
_ROLE_WORDS = 4  # "directed and produced by"
_ROLE_CHARS = 200  # before a name within which these words stand


def is_reader(folder: Path) -> bool:
    """Whether the model in ``folder`` is a reader of passages."""
    path = folder / "config.json"
    return path.is_file() and read_settings(path).get("model_type") == MODEL_TYPE


class FoundPassage(NamedTuple):
    """A passage as a search showed it."""

    query: str
    """What was searched; empty where it was the question itself."""
    title: str
    text: str


@dataclass(frozen=True)
class Reading:
    """All that a reader knows when it acts."""

    question: str
    found: tuple[FoundPassage, ...] = ()
    """Passages of all searches so far, each once for each query."""
    searches: int = 0
    """Searches so far."""


class Compared(NamedTuple):
    """Something that the question names, with the passage that is compared with those of the others."""

    name: str
    """As the question writes it."""
    place: int
    """In ``Reading.found``, of the passage that bears the name."""
    compared: int
    """In ``Reading.found``, of the passage that is compared: the same, or one that was searched for from there."""
    years: tuple[int, ...]
    """The first two in that passage, such as of a birth and a death."""


def compared(known: Reading) -> list[Compared]:
    """The passages that the question names, or those that they lead to; none where it names fewer than two.

    A question about the directors of two films names the films. Where the pages of somebody whom the passage of each names
    have been found, these two are compared, and the films remain the answers.
    """
    named = _named(known)
    if len(named) < 2:
        return []
    own = list(named.values())
    linked = [_led_to(known, place, own) for place in own]
    # Two films may be by one director, but only where both passages say so.
    pages = {link.place for link in linked if link is not None}
    clear = len(pages) == len(own) or all(link is not None and link.in_role for link in linked)
    linked = linked if clear else [None] * len(own)
    return [
        Compared(name, place, page, _years(known.found[page].text))
        for (name, place), link in zip(named.items(), linked, strict=True)
        for page in [place if link is None or None in linked else link.place]
    ]


def _named(known: Reading) -> dict[str, int]:
    """What the question names, as it writes it, each with the place of the passage that bears the name."""
    asked = known.question.lower()
    # Of several passages of one name the first whose whole title stands in the question, or else the first.
    places = sorted(range(len(known.found)), key=lambda place: known.found[place].title.lower() not in asked)
    named: dict[str, tuple[int, list[re.Match[str]]]] = {}
    for place in places:
        mentions = _mentions(bare(known.found[place].title), known.question)
        if mentions:
            named.setdefault(mentions[0][0], (place, mentions))
    spans = [one.span() for _, mentions in named.values() for one in mentions]
    return {
        name: place
        for name, (place, mentions) in named.items()
        if not all(_within_another(one.span(), spans) for one in mentions)
    }


def _within_another(span: tuple[int, int], spans: Sequence[tuple[int, int]]) -> bool:
    """Whether ``span`` is a part of a longer one, as "Rocky" is within "Rocky II"."""
    return any(start <= span[0] and span[1] <= end and (start, end) != span for start, end in spans)


def _mentions(name: str, text: str) -> list[re.Match[str]]:
    """Where ``name`` stands in ``text`` as whole words."""
    if not name or name.lower() not in text.lower():
        return []
    return list(re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE))


class _Link(NamedTuple):
    """The page of a person whom another passage names."""

    place: int
    """In ``Reading.found``."""
    in_role: bool
    """Whether the passage names him or her in the role that the question asks for: "directed by" where it asks for the
    director."""


def _led_to(known: Reading, place: int, own: Sequence[int]) -> _Link | None:
    """The passage about a person whom the passage at ``place`` names, found by a search for the name or named in the role.

    Of several the first that is named in the role counts, or else the first that is named.

    Args:
        known: What the reader knows.
        place: Of a passage that the question names.
        own: Places of all passages that the question names; these are no pages of somebody else.
    """
    text, roles = known.found[place].text, _roles(known.question)
    links: list[tuple[bool, int, int]] = []
    for other, passage in enumerate(known.found):
        name = bare(passage.title)
        if other in own or _mentions(name, known.question):
            continue
        mentions = _mentions(name, text)
        in_role = [one for one in mentions if _before(text, one.start()) & roles]
        if in_role or (mentions and passage.query.lower() == name.lower()):
            links.append((not in_role, (in_role or mentions)[0].start(), other))
    if not links:
        return None
    without_role, _, other = min(links)
    return _Link(other, not without_role)


def _roles(question: str) -> frozenset[str]:
    """The stems of nouns such as "director" or "performers" in a question."""
    return frozenset(_ROLE.findall(question.lower()))


def _before(text: str, end: int) -> frozenset[str]:
    """The stems of words such as "director" or "directed" among the last few before ``end``."""
    words = text[max(end - _ROLE_CHARS, 0) : end].lower().split()[-_ROLE_WORDS:]
    return frozenset(stem for word in words for stem in _DOING.findall(word))


def _years(text: str) -> tuple[int, ...]:
    return tuple(int(year) for year in _YEAR.findall(text)[:2])


def bare(title: str) -> str:
    """A title without what tells it from others of its name: ``Jaws (film)`` is ``Jaws``."""
    return title.partition(" (")[0].strip()


class ActionSpan(NamedTuple):
    """One action of the policy within the ids of an episode."""

    start: int
    end: int
    known: Reading


def turns_of(ids: Sequence[int]) -> list[ActionSpan]:
    """Every action in ``ids``, the last of which may be empty or incomplete; none where no question is asked."""
    data = bytes(i if i < END else 0 for i in ids)
    head = _QUESTION.search(data)
    asked = _ASKED.search(data, head.end()) if head else None
    if head is None or asked is None:
        return []
    question = " ".join(_text(data[head.end() : asked.start()]).split())
    turns, known, start = [], Reading(question), asked.end()
    for observed in _OBSERVED.finditer(data, start):
        turns.append(ActionSpan(start, observed.start(), known))
        known = _after(known, data[start : observed.start()], observed[1])
        start = observed.end()
    return [*turns, ActionSpan(start, len(data), known)]


def _after(known: Reading, action: bytes, page: bytes | None) -> Reading:
    _, _, opened = action.partition(b"<search>")
    query, closing, _ = opened.partition(b"</search>")
    if not closing or page is None:
        return known
    asked = " ".join(_text(query).split())
    own = "" if _plain(asked) == _plain(known.question) else asked
    found = [
        FoundPassage(own, " ".join(title.split()).strip('"'), " ".join(body.split()))
        for title, body in read_passage_lines(_text(page))
    ]
    return Reading(known.question, tuple(dict.fromkeys((*known.found, *found))), known.searches + 1)


def _plain(text: str) -> str:
    return text.strip(" ?").lower()


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def action(tag: str, text: str) -> bytes:
    """An action as its bytes."""
    return f"<{tag}>{text}</{tag}>".encode()


def lowered(one: bytes) -> bytes:
    """An action in lower case, letters with accents included, which ``bytes.lower`` leaves as they are."""
    return one.decode().lower().encode()


class Candidates:
    """Actions to choose among; several may be the same text."""

    def __init__(self, actions: Sequence[bytes]) -> None:
        self.actions = np.array(actions, dtype=np.bytes_)
        self.letters = self.actions.view(np.uint8).reshape(len(actions), -1)  # [C, W], 0 behind the end
        self.lengths = np.array([len(one) for one in actions], dtype=np.int64)

    def begun(self, prefix: bytes) -> NDArray[np.bool_]:
        """Which of them begin with ``prefix``, bool[C]."""
        begun: NDArray[np.bool_] = self.shared(prefix) == len(prefix)
        return begun

    def shared(self, text: bytes) -> NDArray[np.int64]:
        """How many first bytes each has in common with ``text``, int64[C]."""
        width = min(len(text), self.letters.shape[1])
        equal = self.letters[:, :width] == np.frombuffer(text[:width], np.uint8)
        # Long actions are kept for each candidate, so nothing wider than a bit stands beside them.
        first = np.where(equal.all(axis=1), width, np.argmin(equal, axis=1)) if width else 0
        shared: NDArray[np.int64] = np.minimum(
            first, self.lengths
        )  # a byte 0 is none of those behind the end
        return shared

    def next_bytes(self, text: bytes, probabilities_C: Tensor) -> Tensor:
        """Log-probs [K + 1, 257] of what follows each of the first 0 to K bytes of ``text``, float64.

        A row is uniform where no candidate begins with what stands before it.

        Args:
            text: K bytes.
            probabilities_C: Of the candidates, float64[C].
        """
        shared = self.shared(text)
        padded = np.concatenate([self.letters, np.zeros((len(self.letters), 1), np.uint8)], axis=1)
        following = padded[np.arange(len(shared)), shared].astype(np.int64)
        following[shared == self.lengths] = END
        parts = torch.from_numpy(shared * (END + 1) + following)
        size = (len(text) + 1) * (END + 1)
        table = probabilities_C.new_zeros(size).index_add(0, parts, probabilities_C)
        # Whatever shares more than k bytes goes on with byte k of the text.
        sums = probabilities_C.new_zeros(len(text) + 1).index_add(
            0, torch.from_numpy(shared), probabilities_C
        )
        beyond = sums.flip(0).cumsum(0).flip(0)[1:]
        own = torch.arange(len(text)) * (END + 1) + torch.tensor(list(text), dtype=torch.long)
        table = table.index_add(0, own, beyond).view(len(text) + 1, END + 1)
        return table.clamp_min(_LEAST).log().log_softmax(-1)


_LEAST = 1e-290  # the logarithm of 0 is none
