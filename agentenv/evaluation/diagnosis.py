"""Why an evaluation came out as it did: errors by cause, evidence that was found, and what an answer cost.

Pure functions over records. The causes, each episode having one:

- ``retrieval_miss``: answered wrong, and what was shown did not hold what the question needs;
- ``read_miss``: answered wrong although it did;
- ``format``: no answer, and the last action was none that the environment knows;
- ``gave_up``: no answer after well-formed actions, or an empty one;
- ``fault``: ours.

Where nothing says which documents were found, it is unknown what an episode was shown: wrong answers
are ``unsolved`` without a cause, and whatever would be counted from the documents is left out.

What a question needs are its supporting documents where the set names them, otherwise a passage that holds an accepted
answer. "Yes" and "no" cannot be looked up: without supporting documents any passage counts as enough for them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from agentenv.core.env_lifecycle import reason_in
from agentenv.core.grammar import earliest_block
from agentenv.core.scoring.evidence import holds_answer, looked_up
from agentenv.core.scoring.normalize import squad, squad_words
from agentenv.core.types import Task
from agentenv.envs.search.local_search import TAGS
from agentenv.evaluation.records import EpisodeRecord

Json = dict[str, Any]

CAUSES = ("retrieval_miss", "read_miss", "format", "gave_up", "fault")
UNSOLVED = "unsolved"
CORRECT = (
    0.5  # a value of the headline scorer from which an answer counts as right; 0/1 scorers are as they are
)
MAX_COVERED_DOCUMENTS = 1_000_000  # reading more for the coverage takes minutes


def cause_of(record: EpisodeRecord, value: float) -> str:
    """``correct``, one of ``CAUSES``, or ``unsolved`` where the cause cannot be known.

    Args:
        record: an episode.
        value: its score.
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
    """Whether the last action is none that the environment knows; a search where only an answer counts is one."""
    turns = record.get("turns") or ()
    broken = bool(turns) and not turns[-1].get("valid", True)
    return broken and earliest_block(turns[-1]["action"], TAGS) is None


def fault_reasons(records: Iterable[EpisodeRecord]) -> Json:
    """Why episodes of an evaluation are in no score, and how many for each reason, the most common first.

    Args:
        records: of the evaluation; those whose texts nobody is shown give no reason.
    """
    counted = Counter(
        reason_in(record.get("error", ""), record["end_reason"])
        for record in records
        if not record["valid"] and "canary" not in record
    )
    return dict(counted.most_common())


def known_searches(records: Sequence[EpisodeRecord]) -> list[EpisodeRecord]:
    """``records``, in which an episode that named no documents did not search, where others of the same run name theirs."""
    if not any(record.get("retrieved_ids") for record in records):
        return list(records)
    return [
        {**record, "searches": 0, "retrieved_ids": []} if record["searches"] is None else record
        for record in records
    ]


def measured(records: Iterable[EpisodeRecord]) -> bool:
    """Whether it is known of every episode what its searches found; episodes that failed say nothing."""
    return all(record["searches"] is not None for record in records if record["valid"])


def error_table(records: Sequence[EpisodeRecord], values: Sequence[float], scorer: str) -> Json:
    """How many episodes have each cause, and how many right answers came without the evidence.

    Args:
        records: all episodes, faults included.
        values: their scores, anything for a fault.
        scorer: what made the scores.
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
    """Whether the episode was shown what its question needs."""
    if supporting := record.get("supporting_ids"):
        return set(supporting) <= _seen(record)
    if looked_up(record["answers"]):
        return answer_shown(record)
    return bool(_seen(record))


def answer_shown(record: EpisodeRecord) -> bool:
    """Whether an accepted answer stands in an observation, as whole words after normalisation.

    What came back for a malformed action or a failed call does not count: it may repeat what the policy wrote.
    """
    shown = [turn.get("observation", "") for turn in record.get("turns") or () if turn.get("valid", True)]
    return holds_answer(" ".join(shown), record["answers"])


def support(scored: Sequence[EpisodeRecord]) -> Json:
    """Evidence over whole episodes.

    Where it is not known what the searches found, only what stands in the observations is counted.

    Returns:
        ``support_recall``, the mean share of the supporting documents that any search of the episode returned, and
        ``all_support``, the share of questions with all of them, null where the set names none; ``answer_shown``, the
        share of the ``answer_shown_n`` questions with an answer that can be looked up that saw one.
    """
    lookups = [record for record in scored if looked_up(record["answers"])]
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
    """Tokens a question and a right answer; ``total`` counts prompts and observations once each.

    Args:
        scored: the valid episodes.
        correct: how many of them are right.
        unit: what a token of the policy is.
    """
    found: Json = {"unit": unit}
    for kind in ("policy", "total"):
        spent = sum(record.get("tokens", {}).get(kind, 0) for record in scored)
        found[f"{kind}_per_question"] = spent / len(scored) if scored else None
        found[f"{kind}_per_correct"] = spent / correct if correct else None
    return found


def coverage(tasks: Sequence[Task], texts: Iterable[str]) -> Json:
    """How many questions have an accepted answer, as whole words after normalisation, somewhere in a corpus.

    Args:
        tasks: the questions; those whose answers are only yes, no or nothing are left out of ``n``.
        texts: the passages.
    """
    wanted = {task.id: [tuple(squad_words(answer)) for answer in looked_up(task.answers)] for task in tasks}
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
