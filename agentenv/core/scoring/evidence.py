"""Whether a text holds an answer: as whole words after the normalisation of SQuAD, which letters alone would not tell.

Of the letters of "no" and of "US" nearly every page holds some ("north", "because"), so that a reward for a page with the
answer would be paid for any page. "Yes" and "no" themselves stand on no page as what they answer.
"""

import re
from collections.abc import Sequence

from agentenv.core.scoring.normalize import squad, squad_words

_TAG = re.compile(r"</?\w+>|<\|\w+\|>")
_NOT_LOOKED_UP = frozenset({"yes", "no", ""})


def stands_in(phrase: str, text: str) -> bool:
    """Whether the words of ``phrase`` stand in ``text`` one after the other: ``10`` is not in ``1910``; no words are not."""
    return _is_part(squad_words(phrase), _line(text))


def looked_up(answers: Sequence[str]) -> list[str]:
    """The ``answers`` that a page can hold: neither yes nor no, nor one without a word."""
    return [answer for answer in answers if squad(answer) not in _NOT_LOOKED_UP]


def is_yes_or_no(answers: Sequence[str]) -> bool:
    """Whether ``answers`` are yes or no alone, which stand on no page as what they answer."""
    return all(answer.strip().lower() in ("yes", "no") for answer in answers)


def holds_answer(page: str, answers: Sequence[str]) -> bool:
    """Whether one of ``answers`` stands on ``page``, apart from the tags on it."""
    wanted = looked_up(answers)
    line = _line(_TAG.sub(" ", page)) if wanted else ""
    return any(_is_part(squad_words(answer), line) for answer in wanted)


def _line(text: str) -> str:
    """The words of ``text`` with a blank before and behind each."""
    return f" {' '.join(squad_words(text))} "


def _is_part(words: Sequence[str], line: str) -> bool:
    return bool(words) and f" {' '.join(words)} " in line
