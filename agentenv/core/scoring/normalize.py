"""The ways in which published work normalises an answer before comparing it.

They disagree ("Spider-Man" is "spiderman" for SQuAD and "spider man" for TriviaQA), so a score means nothing
without the name of its scorer. All of them keep accents and non-ASCII quotes and dashes, except that TriviaQA
blanks four quote marks.
"""

import re
import string
import unicodedata

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_BLANK_PUNCTUATION = str.maketrans(string.punctuation, " " * len(string.punctuation))
_TRIVIA_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + "\u2018\u2019\u00b4`", " "))
_ARTICLE = re.compile(r"\b(a|an|the)\b")
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Chinese and Japanese characters, which are written without blanks between words; for a regular expression's class."""
_CJK = re.compile(f"[{CJK}]")


def squad(text: str) -> str:
    """Lower-cases, deletes ASCII punctuation, blanks the words a/an/the, collapses white space.

    Source: the SQuAD v1.1 scorer; also HotpotQA, 2Wiki, MuSiQue, Search-R1 and FlashRAG.
    """
    return collapse(_ARTICLE.sub(" ", without_punctuation(text.lower())))


def triviaqa(text: str) -> str:
    """Like `squad`, but punctuation and four quote marks become blanks. Source: the TriviaQA scorer."""
    return collapse(_ARTICLE.sub(" ", text.lower().translate(_TRIVIA_PUNCTUATION)))


def nq(text: str) -> str:
    """`squad` after canonical decomposition: an accent counts however it was typed. Source: NQ-open, ORQA."""
    return squad(unicodedata.normalize("NFD", text))


def asearcher(text: str) -> str:
    """Blanks ASCII punctuation, lower-cases; exactly "True"/"False" become yes/no. Source: ASearcher."""
    text = {"True": "yes", "False": "no"}.get(text, text)
    return collapse(text.translate(_BLANK_PUNCTUATION).lower())


def without_punctuation(text: str) -> str:
    """Deletes ASCII punctuation and leaves nothing in its place."""
    return text.translate(_DELETE_PUNCTUATION)


def squad_words(text: str) -> list[str]:
    """Returns the words of ``text`` after `squad`. Every Chinese or Japanese character is a word of its own."""
    return squad(apart(text)).split()


def apart(text: str) -> str:
    """Puts blanks around every Chinese and Japanese character of ``text``."""
    return text if text.isascii() else _CJK.sub(r" \g<0> ", text)


def collapse(text: str) -> str:
    """Collapses runs of white space to one blank, and strips both ends."""
    return " ".join(text.split())


def plain(text: str) -> str:
    """Lower-cases and collapses white space, nothing else. Source: HybridDeepSearcher."""
    return collapse(text.lower())
