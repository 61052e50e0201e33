"""Explains the result of an evaluation: causes of errors, evidence that was found, and tokens per answer.

All functions are pure functions of records. Each episode has one of these causes:

- ``retrieval_miss``: a wrong answer, and what was shown did not contain what the question needs;
- ``read_miss``: a wrong answer although it did;
- ``format``: no answer, and the last action was not one that the environment knows;
- ``gave_up``: no answer after well-formed actions, or an empty one;
- ``fault``: an infrastructure failure.

If it is unknown which documents were found, it is also unknown what an episode was shown. Wrong answers are then
``unsolved`` without a cause, and statistics of documents are left out.

A question needs its supporting documents if the set names them, and otherwise a passage that contains an accepted answer.
"Yes" and "no" cannot be looked up: without supporting documents, any passage counts as sufficient for them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from agentenv.core.env_lifecycle import reason_in
from agentenv.core.grammar import earliest_block
from agentenv.core.scoring.evidence import findable_answers, holds_answer
from agentenv.core.scoring.normalize import squad, squad_words
from agentenv.core.types import Task
from agentenv.envs.search.local_search import TAGS
from agentenv.evaluation.records import EpisodeRecord

Json = dict[str, Any]

CAUSES = ("retrieval_miss", "read_miss", "format", "gave_up", "fault")
UNSOLVED = "unsolved"
# smallest value of the headline scorer at which an answer counts as correct; scorers of 0 and 1 are unaffected
CORRECT = 0.5
MAX_COVERED_DOCUMENTS = 1_000_000  # reading more for the coverage takes minutes


def cause_of(record: EpisodeRecord, value: float) -> str:
    """Returns ``correct``, one of ``CAUSES``, or ``unsolved`` if the cause is unknown.

    Args:
        record: An episode.
        value: Its score.
    """
    if not record["valid"]:
        return "fault"
    if record.get("solved", value >= CORRECT):
        return "correct"
    if record["prediction"] is None:
        return "format" if ends_in_no_action(record) else "gave_up"
    if not squad(record["prediction"]):
        return "gave_up"
    if record["searches"] is None:
        return UNSOLVED
    return "read_miss" if evidence_found(record) else "retrieval_miss"


def ends_in_no_action(record: EpisodeRecord) -> bool:
    """Whether the last action was not one that the environment knows; a search where only an answer counts is known."""
    turns = record.get("turns") or ()
    broken = bool(turns) and not turns[-1].get("valid", True)
    return broken and earliest_block(turns[-1]["action"], TAGS) is None


def fault_reasons(records: Iterable[EpisodeRecord]) -> Json:
    """Counts why episodes of an evaluation are excluded from all scores, the most common reason first.

    Args:
        records: The records of the evaluation. Records whose texts nobody may see give no reason.
    """
    counted = Counter(
        reason_in(record.get("error", ""), record["end_reason"])
        for record in records
        if not record["valid"] and "canary" not in record
    )
    return dict(counted.most_common())


def known_searches(records: Sequence[EpisodeRecord]) -> list[EpisodeRecord]:
    """Returns ``records``; an episode without documents counts as one without a search if other episodes name documents."""
    if not any(record.get("retrieved_ids") for record in records):
        return list(records)
    return [
        {**record, "searches": 0, "retrieved_ids": []} if record["searches"] is None else record
        for record in records
    ]


def measured(records: Iterable[EpisodeRecord]) -> bool:
    """Whether it is known for every valid episode what its searches found."""
    return all(record["searches"] is not None for record in records if record["valid"])


def error_table(records: Sequence[EpisodeRecord], values: Sequence[float], scorer: str) -> Json:
    """Counts the episodes of each cause, and the right answers without evidence.

    Args:
        records: All episodes, including faults.
        values: Their scores, any value for a fault.
        scorer: The scorer of these values.
    """
    counts = Counter(cause_of(record, value) for record, value in zip(records, values, strict=True))
    lucky = sum(
        cause_of(record, value) == "correct" and not evidence_found(record)
        for record, value in zip(records, values, strict=True)
    )
    return {
        "scorer": scorer,
        "correct": counts["correct"],
        "correct_without_evidence": lucky,
        **{cause: counts[cause] for cause in CAUSES},
    }


def evidence_found(record: EpisodeRecord) -> bool:
    """Whether the episode was shown the evidence that its question needs."""
    if supporting := record.get("supporting_ids"):
        return set(supporting) <= _seen(record)
    if findable_answers(record["answers"]):
        return answer_shown(record)
    return bool(_seen(record))


def answer_shown(record: EpisodeRecord) -> bool:
    """Whether an observation contains an accepted answer as whole words after normalisation.

    Observations after malformed actions or failed calls do not count, because they may repeat the policy's text.
    """
    shown = [turn.get("observation", "") for turn in record.get("turns") or () if turn.get("valid", True)]
    return holds_answer(" ".join(shown), record["answers"])


def support(scored: Sequence[EpisodeRecord]) -> Json:
    """Measures the evidence that whole episodes found.

    If it is unknown what the searches found, only what the observations contain is counted.

    Returns:
        ``support_recall``, the mean share of the supporting documents that any search of the episode returned, and
        ``all_support``, the share of questions with all of them (both null if the set names none); ``answer_shown``, the
        share of the ``answer_shown_n`` questions with an answer that can be looked up whose episode was shown one.
    """
    lookups = [record for record in scored if findable_answers(record["answers"])]
    shown: Json = {
        "answer_shown": _mean([answer_shown(record) for record in lookups]),
        "answer_shown_n": len(lookups),
    }
    if not measured(scored):
        return shown
    known = [record for record in scored if record.get("supporting_ids")]
    shares = [
        len(set(record["supporting_ids"]) & _seen(record)) / len(set(record["supporting_ids"]))
        for record in known
    ]
    return {
        "support_recall": _mean(shares),
        "all_support": _mean([share == 1 for share in shares]),
        **shown,
    }


def costs(scored: Sequence[EpisodeRecord], correct: int, unit: str) -> Json:
    """Returns tokens per question and per right answer. ``total`` counts prompts and observations once each.

    Args:
        scored: The valid episodes.
        correct: The number of right answers among them.
        unit: The name of the policy's unit of text.
    """
    found: Json = {"unit": unit}
    for kind in ("policy", "total"):
        spent = sum(record.get("tokens", {}).get(kind, 0) for record in scored)
        found[f"{kind}_per_question"] = spent / len(scored) if scored else None
        found[f"{kind}_per_correct"] = spent / correct if correct else None
    return found


def coverage(tasks: Sequence[Task], texts: Iterable[str]) -> Json:
    """Counts the questions of which an accepted answer is in the corpus, as whole words after normalisation.

    Args:
        tasks: The questions. Those with only yes, no or empty answers are not counted in ``n``.
        texts: The passages of the corpus.
    """
    wanted = {
        task.id: [tuple(squad_words(answer)) for answer in findable_answers(task.answers)] for task in tasks
    }
    answers = {answer for found in wanted.values() for answer in found}
    lengths: dict[str, set[int]] = {}
    for words in answers:
        lengths.setdefault(words[0], set()).add(len(words))
    there: set[tuple[str, ...]] = set()
    for text in texts:
        tokens = squad_words(text)
        for at, token in enumerate(tokens):
            for length in lengths.get(token, ()):
                words = tuple(tokens[at : at + length])
                if words in answers:
                    there.add(words)
    asked = [found for found in wanted.values() if found]
    hit = sum(any(answer in there for answer in found) for found in asked)
    return {"share": hit / len(asked) if asked else None, "n": len(asked)}


def _seen(record: EpisodeRecord) -> set[str]:
    return {document for ranking in record.get("retrieved_ids") or () for document in ranking}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
