"""One map of replaced names over all questions of FictionalHot, where a language model invents them question by question.

The first question that names an entity decides what stands for it, in the order of the questions, so that the result does
not depend on which reply came first. No invention stands for two names.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from agentenv.core.types import Document
from agentenv.data.synthesis.fictional_hot import (
    FoundNames,
    NameMap,
    RealItem,
    spelling,
    words_of_phrases,
)
from agentenv.data.synthesis.pages import LinkedPages


def shared_inventions(found: Sequence[FoundNames], names: NameMap) -> dict[str, str]:
    """The invention of every name, as the first of ``found`` that has one for it writes both.

    Left out is an invention that stands for another name already, in whatever case and with or without accents, and one that
    ``names`` may put in the place of a word.
    """
    chosen: dict[str, str] = {}
    seen: set[str] = set()
    taken = set(names.inventions)
    for one in found:
        for name, invention in one.invented.items():
            made = spelling(invention)
            if spelling(name) in seen or made in taken:
                continue
            seen.add(spelling(name))
            taken.add(made)
            chosen[name] = invention
    return chosen


def shared_words(chosen: Mapping[str, str], names: NameMap) -> dict[str, str]:
    """What stands for a word of the names of ``chosen`` where another question has it in a name that nobody listed.

    This is a word of an invention that the corpus does not know and that stands for this word alone.
    """
    words = {
        word: invention
        for word, invention in words_of_phrases(chosen).items()
        if " " not in invention and invention not in names.statistics
    }
    times = Counter(map(spelling, words.values()))
    return {word: invention for word, invention in words.items() if times[spelling(invention)] == 1}


def names_for_all(
    items: Sequence[RealItem], found: Sequence[FoundNames], names: NameMap
) -> tuple[list[FoundNames], NameMap]:
    """The names of every item with the inventions that all items share, and the map for what is replaced word by word.

    Names of several words that another item has listed are replaced as well where they stand as they are written there.
    """
    chosen = shared_inventions(found, names)
    known = {spelling(name): invention for name, invention in chosen.items()}
    long = LinkedPages(Document(name, name, "") for name in chosen if " " in name)
    shared = []
    for item, own in zip(items, found, strict=True):
        listed = {name: known[spelling(name)] for name in own.listed if spelling(name) in known}
        others = {name: chosen[name] for text in item.texts() for name in long.mentioned(text)}
        shared.append(FoundNames(own.listed, {**others, **listed}))
    return shared, names.with_words(shared_words(chosen, names))
