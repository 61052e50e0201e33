"""Named, versioned answer scorers.

Five incompatible measures are in use under the names "EM" and "F1", so every number of this package carries the name and the
version of the function that computed it. All scorers return the best value over the accepted answers.

Two rules hold for all of them:

- No prediction (``None``) scores 0. Extracting the answer from the policy's own tokens is the environment's
  work.
- A gold that normalises to nothing ("The The", "A") would equal an empty prediction and be a substring of
  everything. It matches only a prediction that equals it up to case and white space. The exceptions are
  `em_squad2` and `f1_squad2`, which follow their source: such golds are dropped, and where none is left the
  gold is "", meaning "no answer".

`f1_squad_guard` is `f1_hotpot` of FlashRAG and HierSearch, which first split Chinese text: HierSearch into words by the
dictionary of jieba, here into single characters. In papers `em_cover` is called sub-EM, "acc" (FlashRAG) or "EM"
(ZeroSearch). `agentenv.evaluation.official` scores whole prediction files in the layouts of HotpotQA, 2Wiki and MuSiQue,
including supporting facts. `agentenv.evaluation.llm_judge` asks a judge.
"""

import re
import reprlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any

from agentenv.core.registry import describe_error, is_class, load_own
from agentenv.core.scoring import normalize
from agentenv.errors import ConfigurationError, DatasetError, UnknownName

_CJK = re.compile(r"[\u4e00-\u9fff]")
_CJK_TOKEN = re.compile(r"\d+|[^\W\d_]")
_UNITS = str.maketrans("", "", "$%,")
_GUARDED = frozenset({"yes", "no", "noanswer"})


@dataclass(frozen=True, slots=True)
class Score:
    """One value in [0, 1] and what computed it."""

    value: float
    scorer: str
    version: int


@dataclass(frozen=True, slots=True)
class Scorer:
    """A named measure; call it with a prediction and the accepted answers."""

    name: str
    version: int
    """Increases whenever a value may change."""
    binary: bool
    """Whether every value is 0 or 1, so that McNemar's test applies."""
    normaliser: str
    """The name of a function in `agentenv.core.scoring.normalize`, or ``none``."""
    best: Callable[[str, Sequence[str]], float]

    def __call__(self, prediction: str | None, answers: Sequence[str]) -> Score:
        """Scores one prediction.

        Raises:
            DatasetError: no answers, or one of them (or the prediction) is not text.
        """
        check_answers(answers)
        if prediction is not None and not isinstance(prediction, str):
            raise DatasetError(f"A prediction must be text or None, not {prediction!r}.")
        value = 0.0 if prediction is None else self.best(prediction, answers)
        return Score(value, self.name, self.version)

    def __reduce__(self) -> Any:
        """Makes pickle store a registered scorer by its name."""
        registered = SCORERS.get(self.name, _own.get(self.name)) is self
        return (load_scorer, (self.name,)) if registered else super().__reduce__()


def check_answers(answers: Any) -> None:
    """Refuses accepted answers of a wrong type, which could only be scored by accident.

    Raises:
        DatasetError: ``answers`` is not a non-empty tuple or list of ``str``.
    """
    if not isinstance(answers, tuple | list) or not answers or not all(isinstance(a, str) for a in answers):
        raise DatasetError(f"Accepted answers must be a non-empty tuple of text, not {answers!r}.")


def _over_golds(pair: Callable[[str, str], float]) -> Callable[[str, Sequence[str]], float]:
    """Extends a measure of (prediction, gold) to the best value over all golds."""
    return lambda prediction, golds: max(pair(prediction, gold) for gold in golds)


def _same_text(prediction: str, gold: str) -> float:
    return float(normalize.plain(prediction) == normalize.plain(gold))


def em_squad(prediction: str, gold: str) -> float:
    """1 if both are equal after SQuAD normalisation (Search-R1, SSRL, IKEA, SSP, FlashRAG "em")."""
    target = normalize.squad(gold)
    return float(normalize.squad(prediction) == target) if target else _same_text(prediction, gold)


def em_plain(prediction: str, gold: str) -> float:
    """1 if both are equal up to case and white space (HybridDeepSearcher)."""
    return _same_text(prediction, gold)


def em_triviaqa(prediction: str, gold: str) -> float:
    """1 if both are equal after TriviaQA normalisation, where punctuation becomes a blank."""
    target = normalize.triviaqa(gold)
    return float(normalize.triviaqa(prediction) == target) if target else _same_text(prediction, gold)


def em_nq(prediction: str, gold: str) -> float:
    """`em_squad` of both in Unicode's decomposed form, where an accent is a character of its own (NQ-open)."""
    target = normalize.nq(gold)
    return float(normalize.nq(prediction) == target) if target else _same_text(prediction, gold)


def em_popqa_raw(prediction: str, gold: str) -> float:
    """1 if the gold as is, lower-cased or capitalised is a substring of the raw prediction (PopQA).

    Nothing is normalised. Only a blank gold counts as one that normalises to nothing.
    """
    if not gold.strip():
        return _same_text(prediction, gold)
    return float(any(form in prediction for form in (gold, gold.lower(), gold.capitalize())))


def em_gaia(prediction: str, gold: str) -> float:
    """1 if both are equal in GAIA's own scorer (Mialon et al. 2023, arXiv:2311.12983), reimplemented from memory.

    The prediction is the text after the last ``FINAL ANSWER:``. A numeric gold is compared as a number, after removing $, %
    and commas from the prediction. A gold with a comma or a semicolon is a list, whose entries are compared in order.
    Anything else is compared in lower case without white space and, outside of lists, without punctuation.
    """
    text = prediction.rpartition("FINAL ANSWER:")[2]
    if _number(gold) is None and any(mark in gold for mark in ",;"):
        parts, wanted = re.split("[,;]", text), re.split("[,;]", gold)
        return float(len(parts) == len(wanted) and all(map(_same_entry, parts, wanted)))
    if _number(gold) is not None:
        return float(_same_entry(text, gold))
    target = normalize.without_punctuation(_joined(gold))
    return float(normalize.without_punctuation(_joined(text)) == target) if target else _same_text(text, gold)


def _same_entry(text: str, gold: str) -> bool:
    number = _number(gold)
    return _joined(text) == _joined(gold) if number is None else _number(text.translate(_UNITS)) == number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _joined(text: str) -> str:
    """``text`` in lower case without white space."""
    return "".join(text.lower().split())


def em_cover(prediction: str, gold: str) -> float:
    """1 if the normalised gold is a substring of the normalised prediction. Favours long predictions."""
    target = normalize.squad(gold)
    return float(target in normalize.squad(prediction)) if target else _same_text(prediction, gold)


def cem(prediction: str, gold: str) -> float:
    """1 if every word of the normalised gold is in the normalised prediction, in any order (ASearcher)."""
    target = normalize.squad(gold).split()
    return (
        float(set(target) <= set(normalize.squad(prediction).split()))
        if target
        else _same_text(prediction, gold)
    )


def f1_squad(prediction: str, gold: str) -> float:
    """Harmonic mean of precision and recall over tokens with multiplicity (SQuAD v1.1, ZeroSearch, SSP)."""
    target = normalize.squad(gold).split()
    if not target:
        return _same_text(prediction, gold)
    tokens = normalize.squad(prediction).split()
    return _f1((Counter(tokens) & Counter(target)).total(), len(tokens), len(target))


def em_cover_plain(prediction: str, gold: str) -> float:
    """1 if the gold is a substring of the prediction, ignoring case and white space (HybridDeepSearcher's acc)."""
    target = normalize.plain(gold)
    return float(target in normalize.plain(prediction)) if target else _same_text(prediction, gold)


def f1_plain(prediction: str, gold: str) -> float:
    """`f1_squad` over words that keep their punctuation and articles (HybridDeepSearcher)."""
    target, tokens = normalize.plain(gold).split(), normalize.plain(prediction).split()
    return (
        _f1((Counter(tokens) & Counter(target)).total(), len(tokens), len(target))
        if target
        else float(not tokens)
    )


def em_squad2(prediction: str, golds: Sequence[str]) -> float:
    """`em_squad` over the golds that do not normalise to nothing; without one the gold is "" (SQuAD v2)."""
    return _squad2(em_squad, prediction, golds)


def f1_squad2(prediction: str, golds: Sequence[str]) -> float:
    """`f1_squad`, except that an empty side scores 1 only if both are empty (SQuAD v2, MuSiQue).

    Golds that normalise to nothing are dropped. If none is left, the gold is "", which means "no answer".
    """
    return _squad2(f1_squad, prediction, golds)


def _squad2(pair: Callable[[str, str], float], prediction: str, golds: Sequence[str]) -> float:
    kept = [gold for gold in golds if normalize.squad(gold)]
    if not kept:
        return float(not normalize.squad(prediction))
    return max(pair(prediction, gold) for gold in kept)


def f1_hotpot(prediction: str, gold: str) -> float:
    """`f1_squad`, but 0 where one side is yes, no or noanswer and the other differs (HotpotQA, 2Wiki)."""
    sides = {normalize.squad(prediction), normalize.squad(gold)}
    return 0.0 if len(sides) == 2 and sides & _GUARDED else f1_squad(prediction, gold)


def f1_squad_guard(prediction: str, gold: str) -> float:
    """`f1_hotpot` with every Chinese character as a word of its own (FlashRAG, HierSearch).

    HierSearch splits Chinese text by a dictionary. Single characters need no dictionary, but give partial credit to an
    answer that shares some characters of a word with the gold. Without Chinese characters, both are equal.
    """
    return f1_hotpot(_CJK.sub(r" \g<0> ", prediction), _CJK.sub(r" \g<0> ", gold))


def precision_squad_guard(prediction: str, gold: str) -> float:
    """The share of the prediction's words that the gold has, counted and guarded as in `f1_squad_guard` (FlashRAG)."""
    return _guarded_share(prediction, gold, of=prediction)


def recall_squad_guard(prediction: str, gold: str) -> float:
    """The share of the gold's words that the prediction has; see `precision_squad_guard`. Favours long predictions."""
    return _guarded_share(prediction, gold, of=gold)


def _guarded_share(prediction: str, gold: str, of: str) -> float:
    """Returns the share of common words among those of ``of``; 0 if `f1_squad_guard` is 0."""
    if not f1_squad_guard(prediction, gold) or not normalize.squad(gold):
        return f1_squad_guard(prediction, gold)
    mine, wanted, whole = (
        Counter(normalize.squad(_CJK.sub(r" \g<0> ", one)).split()) for one in (prediction, gold, of)
    )
    return (mine & wanted).total() / whole.total()


def f1_set(prediction: str, gold: str) -> float:
    """F1 over *sets* of words that keep their articles (ASearcher's reward).

    Where the gold holds a Chinese character, the elements are single letters and runs of digits.
    """
    cut = _CJK_TOKEN.findall if _CJK.search(gold) else str.split
    target = set(cut(normalize.asearcher(gold)))
    if not target:
        return _same_text(prediction, gold)
    tokens = set(cut(normalize.asearcher(prediction)))
    return _f1(len(tokens & target), len(tokens), len(target))


def _f1(same: int, predicted: int, gold: int) -> float:
    # 2PR/(P+R) with P = same/predicted and R = same/gold; this form has no division by zero.
    return 2 * same / (predicted + gold)


OTHER_NAMES = {
    "em": "em_squad",
    "exact_match": "em_squad",
    "f1": "f1_squad",
    "acc": "em_cover",
    "sub_em": "em_cover",
    "subem": "em_cover",
}
"""Names that FlashRAG and others use, for errors: ``em`` would otherwise be taken for a misspelt ``cem``."""
SCORERS = {
    scorer.name: scorer
    for scorer in (
        Scorer("em_squad", 1, True, "squad", _over_golds(em_squad)),
        Scorer("em_plain", 1, True, "plain", _over_golds(em_plain)),
        Scorer("em_squad2", 1, True, "squad", em_squad2),
        Scorer("em_triviaqa", 1, True, "triviaqa", _over_golds(em_triviaqa)),
        Scorer("em_nq", 1, True, "nq", _over_golds(em_nq)),
        Scorer("em_popqa_raw", 1, True, "none", _over_golds(em_popqa_raw)),
        Scorer("em_gaia", 1, True, "none", _over_golds(em_gaia)),
        Scorer("em_cover", 1, True, "squad", _over_golds(em_cover)),
        Scorer("em_cover_plain", 1, True, "plain", _over_golds(em_cover_plain)),
        Scorer("cem", 1, True, "squad", _over_golds(cem)),
        Scorer("f1_squad", 1, False, "squad", _over_golds(f1_squad)),
        Scorer("f1_plain", 1, False, "plain", _over_golds(f1_plain)),
        Scorer("f1_squad2", 1, False, "squad", f1_squad2),
        Scorer("f1_hotpot", 1, False, "squad", _over_golds(f1_hotpot)),
        Scorer("f1_squad_guard", 2, False, "squad", _over_golds(f1_squad_guard)),
        Scorer("precision_squad_guard", 1, False, "squad", _over_golds(precision_squad_guard)),
        Scorer("recall_squad_guard", 1, False, "squad", _over_golds(recall_squad_guard)),
        Scorer("f1_set", 1, False, "asearcher", _over_golds(f1_set)),
    )
}


_own: dict[str, Scorer] = {}
"""The user's scorers by ``module:NAME``."""


def get_scorer(name: str) -> Scorer:
    """Returns the scorer of that name. ``module:NAME`` has to be loaded by `load_scorer` before.

    Nothing is imported here, because results files of another author may name a scorer.

    Raises:
        UnknownName: there is none; the message shows the nearest name.
        ConfigurationError: ``module:NAME`` was not loaded.
    """
    if name in SCORERS:
        return SCORERS[name]
    if not is_class(name):
        raise UnknownName.among("scorer", name, SCORERS, OTHER_NAMES)
    if name not in _own:
        raise ConfigurationError(
            f"these scores were made by {name}, a scorer from outside the package, whose module is not imported merely "
            f"because results name it: if it is yours, give --scorer {name}"
        )
    return _own[name]


def load_scorer(name: str) -> Scorer:
    """Returns the scorer that the user named. For ``module:NAME`` the module is imported, from the current folder first.

    Raises:
        UnknownName: there is none; the message shows the nearest name.
        ConfigurationError: the module cannot be imported, or the object of that name is not a `Scorer`.
    """
    if name not in {*SCORERS, *_own} and is_class(name):
        _own[name] = _named(name, load_own(name, "scorer"))
    return get_scorer(name)


def _named(name: str, found: Any) -> Scorer:
    """Returns a user's scorer renamed to the ``module:NAME`` by which it can be found again."""
    if not isinstance(found, Scorer):
        raise ConfigurationError(
            f"{name} is no Scorer but {reprlib.repr(found)}: write NAME = Scorer(name, version, binary, normaliser, best)"
        )
    return replace(found, name=name, best=partial(_checked_score, name, found.best))


def _checked_score(
    name: str, best: Callable[[str, Sequence[str]], Any], prediction: str, answers: Sequence[str]
) -> float:
    """Calls a user's scorer and checks its value.

    Raises:
        ConfigurationError: it raised an error, or did not return a number within [0, 1].
    """
    try:
        value = float(given := best(prediction, answers))
    except Exception as error:
        raise ConfigurationError(
            f"the scorer {name} failed on the prediction {reprlib.repr(prediction)}: {describe_error(error)}"
        ) from error
    if not 0 <= value <= 1:
        raise ConfigurationError(
            f"the scorer {name} gave {given!r} for the prediction {reprlib.repr(prediction)}; it must give a number within "
            "[0, 1]"
        )
    return value
