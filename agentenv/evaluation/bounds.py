"""Bounds to compare a score with: the same policy without search and with gold passages, and the scripted expert.

Without a search the policy has to answer from what it knows (`agentenv.evaluation.closed_book`). The expert knows what to
search for, but answers only where its searches showed what the answer stands on: it is the ceiling that retrieval sets.

Gold passages are served in two forms. ``oracle`` shows all of them at once whatever is searched, as publications do; it is
a ceiling for a policy that reads freely. ``oracle_paged`` keeps the form of the episodes, pages of k passages, and puts the
passage that is due on each; it is the ceiling of the search alone for a policy that knows one form only. Where a bound
lies below the run itself it bounds nothing, and the results say so.
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
    """What ``measure`` gives, or why it failed: the run itself is played, and worth more than what it is held against."""
    measured = _or_why(measure)
    return {"note": measured} if isinstance(measured, str) else measured


def variants(
    task_env: TaskEnv, policy: Policy, *, native: bool = False
) -> dict[str, tuple[TaskEnv, Policy] | str]:
    """The task environments on which the policy itself plays for its bounds, and their form; a sentence where there is none.

    None at all where the environment searches nothing. ``native`` says that the policy calls tools in the form of its model.
    """
    if task_env.retriever is None:
        return {}
    found: dict[str, tuple[TaskEnv, Policy] | str] = {
        "closed_book": _or_why(lambda: closed_book(task_env, policy, native=native))
    }

    def oracle_pair() -> tuple[OracleRetriever, PagedOracleRetriever]:
        documents = {document.id: document for document in corpus_of(task_env.source) or ()}
        oracle = OracleRetriever(task_env.source.tasks, documents)
        return oracle, PagedOracleRetriever(oracle, task_env.searched)

    oracles = _or_why(oracle_pair)
    for name, place in (("oracle", 0), ("oracle_paged", 1)):
        given = oracles if isinstance(oracles, str) else oracles[place]
        found[name] = given if isinstance(given, str) else (task_env.varied(retriever=given), policy)
    return found


def _or_why(make: Callable[[], T]) -> T | str:
    """What ``make`` gives, or why it failed."""
    try:
        return make()
    except Exception as error:
        return reason_of_failure(error)


def reason_of_failure(error: Exception) -> str:
    """What went wrong, in one sentence for a note."""
    return str(error) if isinstance(error, AgentEnvError) else f"{type(error).__name__}: {error}"


def recall_or_none(task_env: TaskEnv, warn: Callable[[str], None]) -> dict[str, float]:
    """`index_recall`; nothing but a warning where the retriever fails at it."""
    recall = _or_why(lambda: index_recall(task_env))
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
    """The scripted expert on the questions of ``task_env``; a note where the environment has none.

    ``progress`` is called with the number of finished episodes.
    """

    def played() -> dict[str, Any]:
        trajectories = play_expert(
            task_env.make_env, task_env.source.tasks, config, seed=seed, shown_only=True, progress=progress
        )
        return bound_of(map(to_record, trajectories), scorer)

    return measure_or_note(played)


def bound_of(records: Iterable[EpisodeRecord], scorer: str, *, seed: int = 0) -> dict[str, Any]:
    """The score of ``records`` with n and interval; faults are left out.

    Raises:
        Fault: there is nothing but faults.
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
