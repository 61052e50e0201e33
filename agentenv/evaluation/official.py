"""The official measures of HotpotQA, 2WikiMultihopQA and MuSiQue, including supporting facts and joint scores.

They score a whole prediction file in the layout of the set, for systems that also name their evidence. Peculiarities of the
official programs are reproduced, and each is mentioned at its place. Values are shares and not percentages. The answer part
differs from `agentenv.core.scoring.scorers` in one point: a gold that normalises to nothing equals a prediction that does.

Sources: hotpot_evaluate_v1.py (Yang et al. 2018), 2wikimultihop_evaluate_v1.1.py (Ho et al. 2020), MuSiQue's
evaluate_v1.0.py (Trivedi et al. 2022).
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from agentenv.core.scoring import normalize
from agentenv.data.dataset_files import RawRow, find_file, read_records
from agentenv.data.dataset_formats import listed_facts
from agentenv.data.datasets import SETS, check_split
from agentenv.errors import DatasetError, check_known

Fact = tuple[str, int]
Triple = tuple[str, ...]
Aliases = Mapping[str, Sequence[str]]  # Wikidata id -> other names
Report = dict[str, Any]

_GUARDED = frozenset({"yes", "no", "noanswer"})


class Match(NamedTuple):
    """Agreement of a prediction with its gold."""

    em: float
    f1: float
    precision: float
    recall: float


def answer_match(prediction: str, golds: Iterable[str]) -> Match:
    """The answer part of HotpotQA and 2Wiki. With several golds, each value is the best over the golds (2Wiki)."""
    found = [_one_answer(prediction, gold) for gold in golds]
    return Match(*(max(column) for column in zip(*found, strict=True)))


def _one_answer(prediction: str, gold: str) -> Match:
    predicted, target = normalize.squad(prediction), normalize.squad(gold)
    em = float(predicted == target)
    if not em and {predicted, target} & _GUARDED:
        return Match(0.0, 0.0, 0.0, 0.0)
    tokens, wanted = predicted.split(), target.split()
    same = (Counter(tokens) & Counter(wanted)).total()
    return _match(same, len(tokens), len(wanted))._replace(em=em)


def hotpot_support(predicted: Iterable[Fact], gold: Iterable[Fact]) -> Match:
    """Compares sets of (title, sentence). Two empty sets have an exact match of 1 and an F1 of 0."""
    found, wanted = set(predicted), set(gold)
    return _match(len(found & wanted), len(found), len(wanted))


def wiki_support(predicted: Iterable[Fact], gold: Iterable[Fact]) -> Match:
    """Like `hotpot_support` with lower-cased titles; facts that differ only in case still count separately."""
    found = [(title.lower(), sentence) for title, sentence in set(predicted)]
    wanted = [(title.lower(), sentence) for title, sentence in set(gold)]
    hits = sum(fact in wanted for fact in found)
    missed = sum(fact not in found for fact in wanted)
    exact = float(hits == len(found) and not missed)
    return _match(hits, len(found), hits + missed)._replace(em=exact)


def wiki_evidence(predicted: Iterable[Triple], gold: Sequence[Iterable[Triple]]) -> Match:
    """Compares triples after lower-casing and deleting punctuation; ``gold`` has the accepted forms of each triple.

    Two predicted forms of the same gold triple both count as hits, so recall may exceed 1.
    """
    found = set(map(_plain_triple, predicted))
    wanted = [set(map(_plain_triple, forms)) for forms in gold]
    hits = sum(any(triple in forms for forms in wanted) for triple in found)
    return _match(hits, len(found), len(wanted))


def musique_support(predicted: Iterable[int], gold: Iterable[int]) -> Match:
    """Compares sets of paragraph numbers. Two empty sets match fully."""
    found, wanted = set(predicted), set(gold)
    if not found and not wanted:
        return Match(1.0, 1.0, 0.0, 0.0)
    return _match(len(found & wanted), len(found), len(wanted))


def joint(*parts: Match) -> Match:
    """Returns the products of exact match, of precision and of recall, and the F1 of the last two products."""
    precision, recall = prod(p.precision for p in parts), prod(p.recall for p in parts)
    return Match(prod(part.em for part in parts), _harmonic(precision, recall), precision, recall)


def _match(hits: int, predicted: int, gold: int) -> Match:
    precision = hits / predicted if predicted else 0.0
    recall = hits / gold if gold else 0.0
    return Match(float(hits == predicted == gold), _harmonic(precision, recall), precision, recall)


def _harmonic(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def _plain_triple(triple: Triple) -> Triple:
    return tuple(normalize.collapse(normalize.without_punctuation(part.lower())) for part in triple)


def score_file(dataset: str, gold: Path | None, predictions: Path, *, split: str | None = None) -> Report:
    """Scores a prediction file in the layout of ``dataset`` (hotpotqa, 2wiki or musique).

    Args:
        dataset: The name of the set.
        gold: The question file, its folder or the parent; None uses the environment variable of the data sets.
        predictions: HotpotQA and 2Wiki: ``{"answer": {id: text}, "sp": {id: [[title, sentence]]}}`` (2Wiki also
            ``"evidence"``). MuSiQue: one ``{"id", "predicted_answer", "predicted_support_idxs"}`` per line; for MuSiQue-Full
            also ``"predicted_answerable"``, and both predictions of an id in the order of the golds.
        split: The split of the set; None uses its first one.

    Returns:
        ``n`` (all golds; a missing prediction scores 0), ``missing`` by part, and the ``scores``.

    Raises:
        UnknownName: the set has no official measures, or no such split.
        DatasetError: a file cannot be read or has another layout, or no prediction belongs to a question of the set.
    """
    check_known("official measure of the set", dataset, OFFICIAL)
    kind = SETS[dataset]
    if split is not None:
        check_split(dataset, split, gold)
    pattern = kind.files.get(split or "", next(iter(kind.files.values())))
    source = find_file(dataset, kind.folder, pattern, gold)
    return OFFICIAL[dataset](list(read_records(source)), list(read_records(predictions)), source)


def _hotpotqa(golds: Sequence[RawRow], predictions: Sequence[RawRow], source: Path) -> Report:
    answers, support = (_by_id(predictions, part) for part in ("answer", "sp"))

    def parts(gold: RawRow) -> dict[str, Match | None]:
        key = gold.id("_id", "id")
        return {
            "": answer_match(_text(answers[key], key), [gold.gold("answer")]) if key in answers else None,
            "sp_": hotpot_support(
                _facts(support[key], key), _facts(listed_facts(gold, "supporting_facts"), key)
            )
            if key in support
            else None,
        }

    return _averaged([parts(gold) for gold in golds], source)


def _wiki(golds: Sequence[RawRow], predictions: Sequence[RawRow], source: Path) -> Report:
    answers, support, evidence = (_by_id(predictions, part) for part in ("answer", "sp", "evidence"))
    aliases = read_aliases(source)

    def parts(gold: RawRow) -> dict[str, Match | None]:
        key = gold.id("_id", "id")
        accepted = [gold.gold("answer"), *aliases.get(str(gold.fields.get("answer_id")), ())]
        return {
            "": answer_match(_text(answers[key], key), accepted) if key in answers else None,
            "sp_": wiki_support(
                _facts(support[key], key), _facts(listed_facts(gold, "supporting_facts"), key)
            )
            if key in support
            else None,
            "evi_": wiki_evidence(_triples(evidence[key], key), _accepted(gold, key, aliases))
            if key in evidence
            else None,
        }

    return _averaged([parts(gold) for gold in golds], source) | {"aliases": bool(aliases)}


def _accepted(gold: RawRow, key: str, aliases: Aliases) -> list[list[Triple]]:
    """Returns the accepted forms of each gold triple: subject and object under all their names."""
    triples = _triples(listed_facts(gold, "evidences"), key)
    ids = _triples(gold.fields.get("evidences_id") or [["", "", ""]] * len(triples), key)
    if len(ids) != len(triples):
        raise DatasetError(f"{gold.place}: evidences has {len(triples)} entries and evidences_id {len(ids)}.")
    return [
        [
            (first, relation, last)
            for first, last in product({subject, *aliases.get(of[0], ())}, {target, *aliases.get(of[-1], ())})
        ]
        for (subject, relation, target), of in zip(triples, ids, strict=True)
    ]


class _MusiqueScores(NamedTuple):
    """The scores of one question of MuSiQue, or of one of the two twins in MuSiQue-Full."""

    id: str
    answerable: bool
    sufficiency_right: bool
    # Exact match and F1 of the answer, F1 of the support. They are 0 for an unanswerable question, and not used.
    scores: tuple[float, float, float]


def _musique(golds: Sequence[RawRow], predictions: Sequence[RawRow], source: Path) -> Report:
    """Scores MuSiQue-Ans, or MuSiQue-Full if a gold is marked unanswerable: answers count only on answerable questions."""
    full = any(gold.fields.get("answerable") is False for gold in golds)
    rows = [_musique_row(gold, row, full) for gold, row in _with_predictions(golds, predictions, source)]
    pairs = _musique_twins(rows, source) if full else {}
    answerable = [row.scores for row in rows if row.answerable]
    names = ("answer_em", "answer_f1", "support_f1")
    scores = dict(zip(names, map(fmean, zip(*answerable, strict=True)), strict=True)) | pairs
    return {"n": len(answerable), "missing": {}, "scores": scores}


def _with_predictions(
    golds: Sequence[RawRow], predictions: Sequence[RawRow], source: Path
) -> Iterator[tuple[RawRow, RawRow]]:
    """Yields each gold with its prediction. Twins share an id, so their predictions must be in the golds' order."""
    waiting: dict[str, deque[RawRow]] = defaultdict(deque)
    for row in predictions:
        waiting[row.id("id")].append(row)
    for key, due in Counter(gold.id("id") for gold in golds).items():
        if len(waiting[key]) != due:
            found = len(waiting[key]) or "no"
            raise DatasetError(f"{source.name}: the question {key!r} has {found} predictions, not {due}.")
    for gold in golds:
        yield gold, waiting[gold.id("id")].popleft()


def _musique_row(gold: RawRow, row: RawRow, full: bool) -> _MusiqueScores:
    answerable = gold.fields.get("answerable") is not False
    right = not full or _flag(row, "predicted_answerable") == answerable
    if not answerable:
        return _MusiqueScores(gold.id("id"), False, right, (0.0, 0.0, 0.0))
    aliases = gold.texts("answer_aliases")
    wanted = [_number(p, "idx") for p in gold.items("paragraphs") if p.value("is_supporting")]
    answer = musique_answer(_text(row.value("predicted_answer"), row.place), [gold.gold("answer"), *aliases])
    support = musique_support(_numbers(row, "predicted_support_idxs"), wanted).f1
    return _MusiqueScores(gold.id("id"), True, right, (*answer, support))


def _musique_twins(rows: Sequence[_MusiqueScores], source: Path) -> dict[str, float]:
    """Scores twins as pairs: the scores of the answerable twin if answerability is right for both, otherwise 0."""
    twins: dict[str, list[_MusiqueScores]] = {}
    for row in rows:
        twins.setdefault(row.id, []).append(row)
    pairs = []
    for key, several in twins.items():
        if sorted(row.answerable for row in several) != [False, True]:
            raise DatasetError(
                f"{source.name}: {key!r} must stand twice, once answerable and once not (MuSiQue-Full)."
            )
        whole = all(row.sufficiency_right for row in several)
        _, answer, support = max(several, key=lambda row: row.answerable).scores
        pairs.append((answer, support) if whole else (0.0, 0.0))
    names = ("group_answer_sufficiency_f1", "group_support_sufficiency_f1")
    return dict(zip(names, map(fmean, zip(*pairs, strict=True)), strict=True))


def _flag(row: RawRow, name: str) -> bool:
    if not isinstance(value := row.value(name), bool):
        raise DatasetError(f"{row.place}: {name} must be true or false, not {value!r}.")
    return value


def _number(row: RawRow, name: str) -> int:
    if type(value := row.value(name)) is not int:
        raise DatasetError(f"{row.place}: {name} must be the number of a paragraph, not {value!r}.")
    return value


def _numbers(row: RawRow, name: str) -> list[int]:
    value = row.value(name)
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise DatasetError(f"{row.place}: {name} must be a list of paragraph numbers, not {value!r}.")
    return value


def musique_answer(prediction: str, golds: Iterable[str]) -> tuple[float, float]:
    """Returns exact match and F1, each the best over the golds; with an empty side, 1 if both sides are empty."""
    pairs = []
    for gold in golds:
        predicted, target = normalize.squad(prediction).split(), normalize.squad(gold).split()
        same = (Counter(predicted) & Counter(target)).total()
        em = float(predicted == target)
        pairs.append((em, _match(same, len(predicted), len(target)).f1 if predicted and target else em))
    return max(em for em, _ in pairs), max(f1 for _, f1 in pairs)


def _averaged(rows: Sequence[Mapping[str, Match | None]], source: Path) -> Report:
    """Averages over all golds. A missing part scores 0, and so does the joint score of its question."""
    if not any(part for row in rows for part in row.values()):
        raise DatasetError(f"No prediction is of a question of {source}: its ids are others.")
    totals: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for row in rows:
        there = [part for part in row.values() if part is not None]
        whole = joint(*there) if len(there) == len(row) else None
        for prefix, match in {**row, "joint_": whole}.items():
            missing[prefix] += match is None
            for name, value in zip(("em", "f1", "prec", "recall"), match or (0.0,) * 4, strict=True):
                totals[prefix + name] += value  # type: ignore[assignment]
    parts = {"": "answer", "sp_": "sp", "evi_": "evidence"}
    return {
        "n": len(rows),
        "missing": {parts[prefix]: missing[prefix] for prefix in parts if prefix in missing},
        "scores": {name: total / len(rows) for name, total in totals.items()},
    }


def read_aliases(source: Path) -> dict[str, tuple[str, ...]]:
    """Reads 2Wiki's aliases by Wikidata id from ``id_aliases.json`` beside ``source``; empty without that file."""
    path = next(iter(sorted(source.parent.glob("id_aliases.json*"))), None)
    if path is None:
        return {}
    rows = read_records(path, lines=True)
    return {row.text("Q_id"): (*row.texts("aliases"), *row.texts("demonyms")) for row in rows}


def _by_id(predictions: Sequence[RawRow], part: str) -> Mapping[str, Any]:
    value = predictions[0].value(part) if len(predictions) == 1 else None
    if not isinstance(value, dict):
        raise DatasetError(f"A prediction file must be one object whose {part!r} maps question ids.")
    return value


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise DatasetError(f"The predicted answer of {key} must be text, not {value!r}.")
    return value


def _facts(value: Any, key: str) -> list[Fact]:
    if not isinstance(value, list) or not all(
        isinstance(fact, list) and list(map(type, fact)) == [str, int] for fact in value
    ):
        raise DatasetError(f"The supporting facts of {key} must be pairs of title and sentence number.")
    return [(fact[0], fact[1]) for fact in value]


def _triples(value: Any, key: str) -> list[Triple]:
    if not isinstance(value, list) or not all(
        isinstance(triple, list) and list(map(type, triple)) == [str, str, str] for triple in value
    ):
        raise DatasetError(f"The evidence of {key} must be triples of text.")
    return [tuple(triple) for triple in value]


OFFICIAL: dict[str, Callable[[Sequence[RawRow], Sequence[RawRow], Path], Report]] = {
    "hotpotqa": _hotpotqa,
    "2wiki": _wiki,
    "musique": _musique,
}
"""The sets with official measures, and the functions that compute these."""
