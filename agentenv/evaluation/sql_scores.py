"""Scores of predicted queries on Spider and BIRD: execution accuracy and the valid efficiency score.

EX is BIRD's measure: the sets of rows are equal. ``execution`` is stricter: duplicates count, and so does the order if the
gold query requests one, on every database of a test suite. VES is the mean over questions of EX sqrt(T gold / T prediction).
T is the shortest of several runs, which other load on the machine disturbs least.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentenv.core.types import Task
from agentenv.data.dataset_files import RawRow
from agentenv.data.sources import SourceConfig, open_source
from agentenv.errors import DatasetError, SandboxFault
from agentenv.evaluation.predictions import read_answers
from agentenv.evaluation.statistics.significance import estimate
from agentenv.sandbox.sql import SqlReader
from agentenv.sandbox.sql_grading import MAX_ROWS, grade_query, same_set

BIRD_MARK = "\t----- bird -----\t"
"""The separator between a query and the name of its database in BIRD's own prediction files."""
CPU_S = 30.0
"""Processor time limit of one query, as in BIRD's evaluation."""
RUNS = 5
"""Number of runs of each query to measure its time."""
MEASURES = ("ex", "execution", "ves")


class QueryScore(NamedTuple):
    """The scores of one predicted query."""

    ex: float
    execution: float
    ves: float


def valid_efficiency(right: bool, gold_s: float, predicted_s: float) -> float:
    """Returns 1[right] sqrt(T gold / T prediction), the term of a question in VES (BIRD, arXiv:2305.03111)."""
    return math.sqrt(gold_s / predicted_s) if right and predicted_s > 0 else float(right)


def score_queries(
    dataset: str,
    data: Path | None,
    predictions: Sequence[RawRow],
    *,
    split: str | None = None,
    runs: int = RUNS,
) -> dict[str, Any]:
    """Scores predicted queries of ``spider`` or ``bird``. A question without a prediction scores 0.

    Args:
        dataset: The name of the set.
        data: Where the set is; None uses the environment variable of the data sets.
        predictions: Records with ``id`` and ``answer``, or one that maps ids to queries. The number at the end of an id
            suffices if no other question has the same one, as in BIRD's own files.
        split: The split of the set; None uses its default.
        runs: The number of runs of each query to measure its time.

    Returns:
        ``n`` and ``missing``, the number of ``unknown`` ids, of questions left out because the gold query fails here
        (``ungraded``), ``scores`` and their ``ci95``, with the questions on one database as a cluster.

    Raises:
        UnknownName: there is no such split.
        DatasetError: the set or a prediction cannot be read, no id belongs to the set, or an id fits several questions.
        SandboxFault: no query could be graded.
    """
    tasks = open_source(SourceConfig(dataset=dataset, data=data, split=split)).tasks
    answers = _by_task(tasks, read_answers(predictions))
    scored: dict[str, QueryScore] = {}
    fault: SandboxFault | None = None
    with SqlReader(cpu_s=CPU_S, memory_mb=512) as reader:
        for task in tasks:
            try:
                scored[task.id] = score_query(reader, task, answers.get(task.id), runs=runs)
            except SandboxFault as error:
                fault = error
    if fault is not None and not scored:
        raise fault
    clusters = [task.data["cluster"] for task in tasks if task.id in scored]
    found = {
        name: estimate(
            [getattr(one, name) for one in scored.values()], clusters=clusters, unbounded=name == "ves"
        )
        for name in MEASURES
    }
    return {
        "n": len(scored),
        "missing": {"answer": sum(answers.get(key) is None for key in scored)},
        "unknown": len(answers.keys() - {task.id for task in tasks}),
        "ungraded": len(tasks) - len(scored),
        "scores": {name: one.mean for name, one in found.items()},
        "ci95": {name: one.ci95 for name, one in found.items()},
    }


def _by_task(tasks: Sequence[Task], answers: Mapping[str, str | None]) -> dict[str, str | None]:
    """Returns predictions by the ids of the tasks; removes the database's name from queries of BIRD's own files.

    Raises:
        DatasetError: no id belongs to a task, a number fits several tasks, or two ids mean the same task.
    """
    numbers: dict[str, list[str]] = {}
    for task in tasks:
        numbers.setdefault(task.id.rpartition("/")[2], []).append(task.id)
    named: dict[str, str | None] = {}
    for key, value in answers.items():
        meant = numbers.get(key, [key])
        if len(meant) > 1:
            raise DatasetError(
                f"The prediction {key!r} is of {len(meant)} questions here, {meant[0]!r} and {meant[1]!r} among them; "
                "write the whole id."
            )
        if meant[0] in named:
            raise DatasetError(
                f"There are two predictions for {meant[0]!r}, one of them under the id {key!r}."
            )
        named[meant[0]] = value
    if not named.keys() & {task.id for task in tasks}:
        raise DatasetError(
            f"None of {len(answers)} predictions is of a question here; ids are like {tasks[0].id!r}."
        )
    return {key: value and value.partition(BIRD_MARK)[0] for key, value in named.items()}


def score_query(reader: SqlReader, task: Task, query: str | None, *, runs: int = RUNS) -> QueryScore:
    """Computes EX, ``execution`` and the term of VES of one query. EX and times are those of the first database.

    Raises:
        SandboxFault: a database cannot be read, or the gold query fails.
    """
    gold, databases = task.data["gold"], task.data["databases"]
    grade = grade_query(reader, query or "", gold, databases, query_s=CPU_S, gold_s=CPU_S)
    if query is None or not grade.results or not same_set(*grade.results[0]):
        return QueryScore(0.0, 0.0, 0.0)
    times = [
        min(reader.run(databases[0], one, rows=MAX_ROWS).seconds for _ in range(runs))
        for one in (gold, query)
    ]
    return QueryScore(1.0, float(grade.all_matched), valid_efficiency(True, *times))
