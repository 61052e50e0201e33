"""Scores a file of predicted answers to any question set by the scorers of `agentenv.core.scoring.scorers`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentenv.core.scoring.scorers import Scorer, load_scorer
from agentenv.core.types import Task
from agentenv.data.dataset_files import RawRow, number_text, read_records
from agentenv.data.sources import OWN, PROGRAM_SETS, WORLD, SourceConfig, check_source, open_source
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.evaluation.statistics.significance import estimate

Report = dict[str, Any]

SCORERS = ("em_squad", "f1_squad", "em_cover")
_IDS = ("id", "_id", "question_id", "qid")
_ANSWERS = ("answer", "prediction", "predicted_answer", "pred")


def is_official(predictions: Sequence[RawRow]) -> bool:
    """Whether a prediction file has the layout of HotpotQA and 2Wiki, or of MuSiQue with its supporting paragraphs."""
    first = predictions[0].fields if predictions else {}
    whole = len(predictions) == 1 and isinstance(first.get("answer"), dict)
    return whole or "predicted_support_idxs" in first


def score_predictions(
    dataset: str,
    data: Path | None,
    predictions: Sequence[RawRow],
    scorers: Sequence[str] = (),
    *,
    split: str | None = None,
) -> Report:
    """Scores predicted answers by question id. A question without a prediction scores 0.

    Args:
        dataset: A question set, a file of questions, or several of them separated by commas.
        data: Where the set is; None uses the environment variable of the data sets.
        predictions: One record per question with ``id`` and ``answer`` (or ``prediction``), or one that maps ids to answers.
        scorers: The names of the scorers; `SCORERS` if empty.
        split: The split of the set; None uses its first one.

    Returns:
        ``n`` (all questions), ``missing``, the number of ``unknown`` ids, ``scores`` and their ``ci95``. For several sets
        also ``by_set``, with the same for each set except ``unknown``.

    Raises:
        UnknownName: there is no such set, split or scorer.
        DatasetError: a file cannot be read, an answer is not text, an id occurs twice, or no id belongs to the set.
        ConfigurationError: the set consists of programs, or its tasks are generated.
    """
    judges = {name: load_scorer(name) for name in scorers or SCORERS}
    check_source(dataset, split, data)
    if dataset in (*PROGRAM_SETS, WORLD, OWN):
        raise ConfigurationError(
            f"{dataset!r} has no written answers to hold predictions against; run `agentenv eval --dataset {dataset}`."
        )
    source = open_source(SourceConfig(dataset=dataset, data=data, split=split))
    tasks, answers = source.tasks, read_answers(predictions)
    known = {task.id for task in tasks}
    if not known & set(answers):
        raise DatasetError(
            f"None of {len(answers)} predictions is of a question of {dataset}; its ids are like {tasks[0].id!r}."
        )
    report = _scored(tasks, answers, judges)
    if source.parts:
        of_set = {name: [task for task in tasks if source.set_of(task) == name] for name in source.parts}
        report["by_set"] = {name: _scored(own, answers, judges) for name, own in of_set.items()}
    return {**report, "unknown": len(set(answers) - known)}


def _scored(tasks: Sequence[Task], answers: Mapping[str, str | None], judges: Mapping[str, Scorer]) -> Report:
    clusters = [str(task.data.get("cluster", f"question {task.id}")) for task in tasks]
    values = {
        name: [judge(answers.get(task.id), task.answers).value for task in tasks]
        for name, judge in judges.items()
    }
    found = {name: estimate(column, clusters=clusters) for name, column in values.items()}
    return {
        "n": len(tasks),
        "missing": {"answer": sum(answers.get(task.id) is None for task in tasks)},
        "scores": {name: one.mean for name, one in found.items()},
        "ci95": {name: one.ci95 for name, one in found.items()},
    }


def read_answers(predictions: Sequence[RawRow]) -> Mapping[str, str | None]:
    """Returns the predicted answers by question id; null means no answer.

    Raises:
        DatasetError: an answer is not text, an id occurs twice, or a record lacks one of them.
    """
    if len(predictions) == 1 and not any(name in predictions[0].fields for name in _IDS):
        (whole,) = predictions
        rows = [RawRow({"id": key, "answer": value}, whole.place) for key, value in whole.fields.items()]
    else:
        rows = list(predictions)
    answers: dict[str, str | None] = {}
    for row in rows:
        key = row.id(*_IDS)
        if key in answers:
            raise DatasetError(f"{row.place} is a second prediction for the question {key!r}.")
        value = number_text(_predicted(row))
        if value is not None and not isinstance(value, str):
            raise DatasetError(
                f"{row.place}: the predicted answer of {key!r} must be text, not {json.dumps(value)[:60]}."
            )
        answers[key] = value
    return answers


def _predicted(row: RawRow) -> Any:
    """Returns the predicted answer of a record.

    Raises:
        DatasetError: two fields contain different answers, one of which may be the accepted answer.
    """
    values = [row.fields[name] for name in _ANSWERS if name in row.fields]
    if any(value != values[0] for value in values[1:]):
        named = " and ".join(repr(name) for name in _ANSWERS if name in row.fields)
        raise DatasetError(
            f"{row.place}: the fields {named} differ, and each may be the predicted answer; keep the one that is."
        )
    return row.value(*_ANSWERS)


def read_predictions(path: Path) -> list[RawRow]:
    """Reads the records of a prediction file.

    Raises:
        DatasetError: the file cannot be read or is empty.
    """
    found = list(read_records(path))
    if not any(row.fields for row in found):
        raise DatasetError(f"{path} holds no predictions.")
    return found
