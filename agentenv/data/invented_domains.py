"""Domains of generated databases under invented names, so that a policy sees many names of tables and columns."""

from dataclasses import replace
from random import Random

from agentenv.data.sql_domains import Column, Domain, SQLTable

_ONSETS = (
    "b",
    "c",
    "ch",
    "d",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "qu",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "th",
    "tr",
    "v",
    "w",
)
_VOWELS = ("a", "e", "i", "o", "u", "ea", "ou")
_CODAS = ("b", "ck", "d", "ft", "g", "l", "lm", "m", "n", "nd", "p", "r", "rt", "s", "st", "t", "x")
_PHRASES = ("{name}", "{name}", "{name}", "number of {name}", "length in {name}", "weight in {name}")


def invented_domain(domain: Domain, rng: Random) -> Domain:
    """``domain`` with another word for every table, every column and every word in its rows.

    Labels keep their names. A column of numbers may be spoken of as the number of something, as in the domains that are
    written by hand, so that its name has to be found within a phrase.

    Args:
        domain: The tables.
        rng: Draws the words.
    """
    taken: set[str] = set()
    ones = {table.one: _word(rng, taken) for table in domain}
    return tuple(_renamed(table, ones, rng, taken) for table in domain)


def _renamed(table: SQLTable, ones: dict[str, str], rng: Random, taken: set[str]) -> SQLTable:
    one = ones[table.one]
    return replace(
        table,
        one=one,
        many=f"{one}s",
        words=tuple(_words(column, rng, taken) for column in table.words),
        numbers=tuple(_numbers(column, rng, taken) for column in table.numbers),
        parents=tuple(ones[parent] for parent in table.parents),
    )


def _words(column: Column, rng: Random, taken: set[str]) -> Column:
    name = _word(rng, taken)
    return Column(name, name, tuple(_word(rng, taken) for _ in column.choices))


def _numbers(column: Column, rng: Random, taken: set[str]) -> Column:
    name = _word(rng, taken)
    return replace(column, name=name, phrase=rng.choice(_PHRASES).format(name=name))


def _word(rng: Random, taken: set[str]) -> str:
    """A word of two syllables that is not in ``taken``, where it is noted."""
    while True:
        syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(2))
        word = "".join(syllables)
        if word not in taken:
            taken.add(word)
            return word
