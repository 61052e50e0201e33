"""Whether a text contains an answer as whole words after the normalisation of SQuAD; substrings do not count.

Nearly every page contains the letters of "no" or "US" ("north", "because"), so with substrings a reward for a page that
contains the answer would be paid for any page. The answers yes and no do not count at all, because a page that contains
these words does not thereby answer the question.
"""

import re
from collections.abc import Sequence

from agentenv.core.scoring.normalize import squad, squad_words

_TAG = re.compile(r"</?\w+>|<\|\w+\|>")
_NOT_LOOKED_UP = frozenset({"yes", "no", ""})


def contains_phrase(phrase: str, text: str) -> bool:
    """Whether the words of ``phrase`` occur in ``text`` in sequence: ``10`` is not in ``1910``. False without words."""
    return _is_part(squad_words(phrase), _line(text))


def findable_answers(answers: Sequence[str]) -> list[str]:
    """Returns the ``answers`` that a page can contain: neither yes nor no, nor an answer without a word."""
    return [answer for answer in answers if squad(answer) not in _NOT_LOOKED_UP]


def is_yes_or_no(answers: Sequence[str]) -> bool:
    """Whether all ``answers`` are yes or no, which no page can be required to contain."""
    return all(answer.strip().lower() in ("yes", "no") for answer in answers)


def holds_answer(page: str, answers: Sequence[str]) -> bool:
    """Whether ``page``, without its tags, contains one of ``answers``."""
    wanted = findable_answers(answers)
    line = _line(_TAG.sub(" ", page)) if wanted else ""
    return any(_is_part(squad_words(answer), line) for answer in wanted)


def _line(text: str) -> str:
    """Returns the words of ``text``, each surrounded by blanks."""
    return f" {' '.join(squad_words(text))} "


def _is_part(words: Sequence[str], line: str) -> bool:
    return bool(words) and f" {' '.join(words)} " in line
