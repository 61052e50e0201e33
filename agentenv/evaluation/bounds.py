"""Bounds to compare a score with: the same policy without search, with gold passages, and the scripted expert.

Without search, the policy has to answer from its own knowledge (`agentenv.evaluation.closed_book`). The expert knows what to
search for, but answers only if its searches showed the evidence. Its score is the ceiling set by the retriever.

Gold passages are shown in two forms. ``oracle`` shows all of them at once for any query, as publications do. It is a ceiling
for a policy that can read pages of any form. ``oracle_paged`` keeps the form of the episodes, pages of k passages, and puts
the next gold passage on each page. It is the ceiling of search alone, for a policy that knows only this form. A bound below
the score of the run itself bounds nothing, and the results say so.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from agentenv.core.protocols import Policy
from agentenv.core.rollout import RolloutConfig
from agentenv.errors import AgentEnvError, Fault
from agentenv.evaluation.built_retrievers import corpus_of
from agentenv.evaluation.closed_book import closed_book
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.results import score_tables
from agentenv.evaluation.runner import play_expert, to_record
from agentenv.evaluation.task_env import TaskEnv, index_recall
from agentenv.retrievers.oracle import OracleRetriever, PagedOracleRetriever

T = TypeVar("T")


def measure_or_note(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the result of ``measure``, or a note why it failed: a failed bound must not end an evaluation that is done."""
    measured = _result_or_reason(measure)
    return {"note": measured} if isinstance(measured, str) else measured


def variants(
    task_env: TaskEnv, policy: Policy, *, native: bool = False
) -> dict[str, tuple[TaskEnv, Policy] | str]:
    """Returns the task environment and policy with which each bound is played, by name; a sentence if it cannot be played.

    Empty if the environment searches nothing. ``native`` says that the policy calls tools in its model's native form.
    """
    if task_env.retriever is None:
        return {}
    found: dict[str, tuple[TaskEnv, Policy] | str] = {
        "closed_book": _result_or_reason(lambda: closed_book(task_env, policy, native=native))
    }

    def oracle_pair() -> tuple[OracleRetriever, PagedOracleRetriever]:
        documents = {document.id: document for document in corpus_of(task_env.source) or ()}
        oracle = OracleRetriever(task_env.source.tasks, documents)
        return oracle, PagedOracleRetriever(oracle, task_env.searched)

    oracles = _result_or_reason(oracle_pair)
    for name, place in (("oracle", 0), ("oracle_paged", 1)):
        given = oracles if isinstance(oracles, str) else oracles[place]
        found[name] = given if isinstance(given, str) else (task_env.varied(retriever=given), policy)
    return found


def _result_or_reason(make: Callable[[], T]) -> T | str:
    """Returns the result of ``make``, or a sentence why it failed."""
    try:
        return make()
    except Exception as error:
        return reason_of_failure(error)


def reason_of_failure(error: Exception) -> str:
    """Describes an error in one sentence, for a note."""
    return str(error) if isinstance(error, AgentEnvError) else f"{type(error).__name__}: {error}"


def recall_or_none(task_env: TaskEnv, warn: Callable[[str], None]) -> dict[str, float]:
    """Returns `index_recall`; warns and returns an empty dict if the retriever fails."""
    recall = _result_or_reason(lambda: index_recall(task_env))
    if isinstance(recall, str):
        warn(f"the recall of the retriever was not measured: {recall}")
        return {}
    return recall


def measure_expert(
    task_env: TaskEnv,
    config: RolloutConfig,
    scorer: str,
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Plays the scripted expert on the questions of ``task_env``; returns a note if the environment has no expert.

    ``progress`` is called with the number of finished episodes.
    """

    def played() -> dict[str, Any]:
        trajectories = play_expert(
            task_env.make_env, task_env.source.tasks, config, seed=seed, shown_only=True, progress=progress
        )
        return bound_of(map(to_record, trajectories), scorer)

    return measure_or_note(played)


def bound_of(records: Iterable[EpisodeRecord], scorer: str, *, seed: int = 0) -> dict[str, Any]:
    """Returns the score of ``records`` with its n and interval, without the faults.

    Raises:
        Fault: all episodes ended by a fault.
    """
    records = list(records)
    valid = [record for record in records if record["valid"]]
    if records and not valid:
        reason = records[0].get("error", "").strip().splitlines() or [records[0]["end_reason"]]
        raise Fault(
            f"each of {len(records)} episodes failed through an infrastructure failure ({reason[-1]})"
        )
    score: dict[str, Any] = score_tables(valid, [scorer], seed=seed)["scores"][scorer]
    return score
