"""The pages of a corpus and what links them: a page links to another whose title stands in its text.

A title of one word stands for much else, so it counts only where no other name is next to it ("United" is no link in "Leeds
United"), and not at all where its title tells it apart from something better known, as in "Chicago (2002 film)".
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from agentenv.core.types import Document

_WORD = re.compile(r"\w+")
_FUNCTION_WORDS = """
A An And Are As At But By Did Do Does For From Had Has Have He Her His How I If In Is It Its Not Of On Or She So That The
Their There These They This Those To Was Were What When Where Which While Who Whom Whose Why With
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Words that begin sentences and questions and name nothing."""
_FURTHER = re.compile(r"\s{0,50}\([^()]*\)$")  # of a title such as "Kiss and Tell (1945 film)"


@dataclass(frozen=True, slots=True)
class Page:
    """All passages under one title."""

    title: str
    text: str
    ids: tuple[str, ...]
    """Ids of its passages."""


class LinkedPages:
    """The pages of ``documents`` by title."""

    def __init__(self, documents: Iterable[Document]) -> None:
        parts: dict[str, list[Document]] = defaultdict(list)
        for document in documents:
            parts[document.title].append(document)
        self.pages = {
            title: Page(title, " ".join(part.text for part in some), tuple(part.id for part in some))
            for title, some in parts.items()
        }
        self._named: dict[tuple[str, ...], str] = {}
        self._lengths: dict[str, set[int]] = defaultdict(set)
        for title in self.pages:
            bare = _FURTHER.sub("", title)
            words = tuple(_WORD.findall(bare))
            is_vague = len(words) == 1 and (bare != title or words[0] in FUNCTION_WORDS)
            if words and words[0][0].isupper() and len("".join(words)) > 2 and not is_vague:
                self._named.setdefault(words, title)
                self._lengths[words[0]].add(len(words))

    def mentioned(self, text: str) -> dict[str, str]:
        """The titles that stand in ``text`` and how each is written there, in order; a longer one hides those within it."""
        found: dict[str, str] = {}
        matches = list(_WORD.finditer(text))
        words = [match[0] for match in matches]
        at = 0
        while at < len(words):
            for length in sorted(self._lengths.get(words[at], ()), reverse=True):
                title = self._named.get(tuple(words[at : at + length]))
                if title is not None and at + length <= len(words):  # at the end a slice is shorter
                    if length == 1 and _is_part_of_a_name(text, matches, at):
                        break
                    found.setdefault(title, text[matches[at].start() : matches[at + length - 1].end()])
                    at += length - 1
                    break
            at += 1
        return found

    def linked(self, title: str) -> list[str]:
        """The titles of the pages that link to ``title`` or that it links to, in the order of the corpus."""
        both = self._links[title] | self._links_to[title]
        return sorted(both, key=self._places.__getitem__)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {title: place for place, title in enumerate(self.pages)}

    @cached_property
    def _links(self) -> dict[str, set[str]]:
        return defaultdict(set, dict(self._all_links()))

    def _all_links(self) -> Iterator[tuple[str, set[str]]]:
        for title, page in self.pages.items():
            yield title, set(self.mentioned(page.text)) - {title}

    @cached_property
    def _links_to(self) -> dict[str, set[str]]:
        links: dict[str, set[str]] = defaultdict(set)
        for title, others in self._links.items():
            for other in others:
                links[other].add(title)
        return links


def _is_part_of_a_name(text: str, matches: Sequence[re.Match[str]], at: int) -> bool:
    """Whether a word with a capital that is no function word stands right before or behind the word at ``at``."""
    for left, right, other in ((at - 1, at, at - 1), (at, at + 1, at + 1)):
        if 0 <= other < len(matches) and text[matches[left].end() : matches[right].start()].isspace():
            word = matches[other][0]
            if word[0].isupper() and word not in FUNCTION_WORDS:
                return True
    return False
