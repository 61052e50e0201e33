"""Computes ``results.json`` from the episodes of an evaluation, by pure functions.

Every mean is over questions, never over batches, and has its n and its 95 % interval. Infrastructure failures are not part
of any mean. They are counted, and scores within [0, 1] state how far they could change the mean.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from agentenv.core.scoring.scorers import Scorer, get_scorer, load_scorer
from agentenv.evaluation.capabilities import SEARCH_SKILLS, capability_report
from agentenv.evaluation.diagnosis import costs, error_table, known_searches, measured, support
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.statistics.significance import estimate

Json = dict[str, Any]

OUTCOME = "reward"
"""Name of the score that the environment itself computed."""
# Its values are read from the records, so it is never called.
_OUTCOME = Scorer(OUTCOME, 1, False, "none", lambda prediction, answers: 0.0)


class RecordedMeasure(NamedTuple):
    """A measure of an entry that the environment recorded about an episode, and not of its answer."""

    scorer: Scorer
    """The measure's name and kind; it is never called."""
    entry: str
    """The key of the record's entry."""
    value: Callable[[float], float]
    """Computes the measure from the entry."""


def _recorded(
    name: str, entry: str, value: Callable[[float], float], *, binary: bool
) -> tuple[str, RecordedMeasure]:
    return name, RecordedMeasure(
        Scorer(name, 1, binary, "none", lambda prediction, answers: 0.0), entry, value
    )


RECORDED: Mapping[str, RecordedMeasure] = dict(
    [
        _recorded("mrr", "rank", lambda rank: 1 / rank, binary=False),
        _recorded("recall@10", "rank", lambda rank: float(rank <= 10), binary=True),
        _recorded("recall@100", "rank", lambda rank: float(rank <= 100), binary=True),
        _recorded("solved", "solved", float, binary=True),
        _recorded("sop", "followed_share", lambda share: (share + (share == 1)) / 2, binary=False),
        _recorded("sop_pg", "followed_share", lambda share: share, binary=False),
        _recorded("sop_tsr", "followed_share", lambda share: float(share == 1), binary=True),
    ]
)
"""Measures that are read from records; 0 if an episode lacks the entry.

From the best rank of a gold passage: MRR and recall (TopiOCQA, QReCC). From what was submitted: whether it is right,
regardless of rewards for form, parts or length in training (execution accuracy of a query, all hidden tests of a program).
From the share of a recording that was followed before the first mismatch: PG, TSR and their mean, the score SOP (UI-S1, Lu
et al. 2025, arXiv:2509.11543).
"""

CEILINGS = ("oracle", "oracle_paged", "expert")
_LOW_CEILING_NOTE = "below the run itself, so no ceiling for this policy"


def summarize(
    records: Sequence[EpisodeRecord],
    scorers: Sequence[str],
    *,
    dataset: str,
    split: str,
    policy: str,
    retriever: str | None,
    k: int,
    seed: int = 0,
    bounds: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    token_unit: str = "tokens",
) -> Json:
    """Computes the content of ``results.json``.

    Args:
        records: One record per question, including faults.
        scorers: Names of `agentenv.core.scoring.scorers`; the first is the main one.
        dataset: The name of the question set.
        split: The split of the set.
        policy: The policy as ``kind:rest``.
        retriever: The retriever as ``kind:rest``; None if the environment takes none. Statistics of what was found and
            causes of errors are left out if nothing was searched, or if it is unknown which documents were found.
        k: The number of passages that a search returns, and the k of recall@k.
        seed: The seed of the sampling and of the bootstrap.
        bounds: The scores of closed book, oracle passages and the scripted expert on the same questions.
        settings: Further settings that influence the numbers: decoding, turn limit, fingerprints.
        token_unit: The name of the policy's unit of text; empty leaves out everything that is counted in tokens.

    Raises:
        UnknownName: a scorer does not exist.
        DatasetError: accepted answers cannot be scored.
    """
    records = known_searches(records)
    scored = [record for record in records if record["valid"]]
    values = [score_of(record, scorers[0]) for record in records]
    correct = (errors := error_table(records, values, scorers[0]))["correct"]
    searched = retriever is not None or any(record.get("retrieved_ids") for record in records)
    explained = searched and measured(scored)
    tables = score_tables(scored, scorers, seed=seed, faults=len(records) - len(scored))
    return {
        "dataset": dataset,
        "split": split,
        "policy": policy,
        "retriever": retriever,
        "seed": seed,
        "n": len(scored),
        "faults": len(records) - len(scored),
        **tables,
        "retrieval": _retrieval(scored, k) if searched else {},
        **_behaviour(scored),
        "end_reasons": dict(sorted(Counter(record["end_reason"] for record in records).items())),
        "errors": errors if explained else {"scorer": scorers[0], "correct": correct},
        "capabilities": capability_report(records, values, SEARCH_SKILLS) if explained else [],
        "tokens": costs(scored, correct, token_unit) if token_unit else {},
        "bounds": mark_low_ceilings(bounds or {}, tables["scores"][scorers[0]]["mean"]),
        "settings": dict(settings or {}),
    }


def mark_low_ceilings(bounds: Mapping[str, Mapping[str, Any]], mean: float | None) -> Json:
    """Adds a note to each ceiling in ``bounds`` that is below ``mean``, the score of the run."""
    marked = {}
    for name, bound in bounds.items():
        own = bound.get("mean")
        below = name in CEILINGS and own is not None and mean is not None and own < mean
        marked[name] = dict(bound) | ({"note": _LOW_CEILING_NOTE} if below else {})
    return marked


def score_tables(
    scored: Sequence[EpisodeRecord], scorers: Sequence[str], *, seed: int = 0, faults: int = 0
) -> Json:
    """Computes the parts of ``results.json`` that depend on the scorers.

    Args:
        scored: The valid records.
        scorers: The names of the scorers.
        seed: The seed of the bootstrap.
        faults: The number of episodes of the same evaluation that are not in ``scored``. The cause of a fault (a long
            episode, or a program that crashes the sandbox) may be more likely on hard questions. So a score within [0, 1]
            then has ``range_with_faults``: its mean if all of them had scored 0, and if all had scored 1 (Manski 1990).

    Returns:
        ``scores`` over all of ``scored``, and ``by_set``, ``by_family`` and ``by_hops``, each ``{value: {"n",
        "scores"}}``.
    """
    scores = _scores(scored, scorers, seed)
    for name, score in scores.items():
        if faults and name != OUTCOME and all(0 <= value <= 1 for value in values_of(scored, name)):
            score["range_with_faults"] = range_with_faults(score["mean"], len(scored), faults)
    return {
        "scores": scores,
        "by_set": _grouped(scored, scorers, seed, lambda record: record.get("set")),
        "by_family": _grouped(scored, scorers, seed, lambda record: record.get("family")),
        "by_hops": _grouped(scored, scorers, seed, lambda record: record.get("hops")),
    }


def range_with_faults(mean: float | None, n: int, faults: int) -> list[float]:
    """Returns the mean of ``n`` known and ``faults`` unknown scores in [0, 1], if the latter are all 0, and all 1."""
    total = (mean or 0.0) * n
    return [total / (n + faults), (total + faults) / (n + faults)]


def _behaviour(scored: Sequence[EpisodeRecord]) -> Json:
    searches = _mean(record["searches"] or 0 for record in scored) if measured(scored) else None
    return {
        "turns_per_question": _mean(len(record.get("turns", ())) for record in scored),
        "searches_per_question": searches,
        "answer_rate": _mean(record["prediction"] is not None for record in scored),
        "reward_mean": _mean(record["reward"] for record in scored if "reward" in record),
    }


def _retrieval(scored: Sequence[EpisodeRecord], k: int) -> Json:
    return (retrieval_recall(scored, k) if measured(scored) else {}) | support(scored)


def retrieval_recall(scored: Sequence[EpisodeRecord], k: int) -> Json:
    """Mean share of the supporting documents among the first ``k`` results of the searches.

    ``recall@k`` over all searches of an episode, ``first_search_recall@k`` over the first one (an episode without a search
    finds nothing), and the number ``n`` of questions that name their supporting documents. Both are null if ``n`` is 0.
    """
    known = [record for record in scored if record.get("supporting_ids")]
    return {
        "k": k,
        "n": len(known),
        f"recall@{k}": _mean(_recall(record, k, None) for record in known),
        f"first_search_recall@{k}": _mean(_recall(record, k, 1) for record in known),
    }


def _recall(record: EpisodeRecord, k: int, searches: int | None) -> float:
    supporting = set(record.get("supporting_ids", ()))
    found = {document for ranked in record.get("retrieved_ids", ())[:searches] for document in ranked[:k]}
    return len(supporting & found) / len(supporting)


def values_of(scored: Iterable[EpisodeRecord], scorer: str) -> list[float]:
    """Returns the value of every record under one scorer, in order."""
    return [score_of(record, scorer) for record in scored]


def score_of(record: EpisodeRecord, scorer: str) -> float:
    """Returns the value of one record under one scorer; 0 for a fault, which must not be part of any mean."""
    if scorer == OUTCOME:
        return record.get("reward", 0.0)
    if scorer in RECORDED:
        found: Any = record.get(RECORDED[scorer].entry)
        return RECORDED[scorer].value(found) if found else 0.0
    return get_scorer(scorer)(record["prediction"], record["answers"]).value


def measure_of(name: str) -> Scorer:
    """Returns the version and kind of a score, including `RECORDED` and the environment's reward (see ``score_of``).

    Raises:
        UnknownName: there is no such scorer.
    """
    if name in RECORDED:
        return RECORDED[name].scorer
    return _OUTCOME if name == OUTCOME else get_scorer(name)


def load_measure(name: str) -> Scorer:
    """Does what `measure_of` does, and also imports a scorer ``module:NAME``; for the start of an evaluation.

    Raises:
        UnknownName: there is no such scorer.
        ConfigurationError: the module cannot be imported, or has no `Scorer` of that name.
    """
    if name != OUTCOME and name not in RECORDED:
        load_scorer(name)
    return measure_of(name)


def _scores(scored: Sequence[EpisodeRecord], scorers: Sequence[str], seed: int) -> Json:
    clusters = clusters_of(scored)
    return {name: _score(values_of(scored, name), clusters, measure_of(name), seed) for name in scorers}


def clusters_of(scored: Iterable[EpisodeRecord]) -> list[str]:
    """Returns the cluster of each question for the intervals: the passage that it shares with others, or itself."""
    return [f"cluster {r['cluster']}" if "cluster" in r else f"question {r['id']}" for r in scored]


def _score(values: Sequence[float], clusters: Sequence[str], scorer: Scorer, seed: int) -> Json:
    made_by = {"version": scorer.version, "normaliser": scorer.normaliser}
    if not values:
        return {"mean": None, "ci95": None, "n": 0} | made_by
    e = estimate(values, clusters=clusters, seed=seed)
    return {"mean": e.mean, "ci95": e.ci95, "n": e.n, "interval": e.method} | made_by


def _grouped(
    scored: Sequence[EpisodeRecord], scorers: Sequence[str], seed: int, key: Callable[[EpisodeRecord], Any]
) -> Json:
    groups: dict[Any, list[EpisodeRecord]] = {}
    for record in scored:
        if key(record) is not None:
            groups.setdefault(key(record), []).append(record)
    return {
        str(value): {"n": len(group), "scores": _scores(group, scorers, seed)}
        for value, group in sorted(groups.items(), key=lambda item: str(item[0]))
    }


def _mean(values: Iterable[float]) -> float | None:
    listed = [float(value) for value in values]
    return fmean(listed) if listed else None
