"""Whether a run is tested on what it learns from: tasks of one content in the training and in the test or dev questions."""

from collections.abc import Callable, Mapping, Sequence

from agentenv.core.io.digests import value_digest
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError

FAMILY = "passages"
"""The family of questions that rules make of passages, by which scores are listed, and what stands before their ids."""

_ORGANISATION = "organisation"
"""What the data of a task says of the organisation that is asked about, whose incidents have the numbers of all others."""

_MOST = 0.1  # share of the test tasks; fewer may come about by chance where tasks are made up


def refuse_overlap(
    train: Sequence[Task],
    measured: Mapping[str, Sequence[Task]],
    *,
    allowed: bool = False,
    warn: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Compares the training tasks with those that a run is measured on, by their content.

    Args:
        train: Tasks to learn from.
        measured: Tasks to measure on, by their name in the configuration.
        allowed: Whether the run says itself that it is tested on training tasks; it is only warned of then.
        warn: Told of every task that is in two sets.

    Raises:
        ConfigurationError: more than a tenth of the tasks of ``test`` are training tasks, or questions were made by rules of
            passages that support measured ones.
    """
    _refuse_shared_passages(train, measured)
    learned = {_content(task) for task in train}
    for name, tasks in measured.items():
        shared = [task for task in tasks if _content(task) in learned]
        if not shared:
            continue
        found = (
            f"{len(shared)} of {len(tasks)} tasks of {name} are training tasks too, such as {shared[0].id!r}: "
            f"what is measured on {name} is not held out"
        )
        if name == "test" and not allowed and len(shared) > _MOST * len(tasks):
            raise ConfigurationError(
                f"{found}. Take another split, or set evaluation.on_training_tasks to true"
            )
        warn(found)


def _refuse_shared_passages(train: Sequence[Task], measured: Mapping[str, Sequence[Task]]) -> None:
    made = {one for task in train if task.data.get("family") == FAMILY for one in task.data["supporting_ids"]}
    for name, tasks in measured.items():
        shared = [task.id for task in tasks if made & set(task.data.get("supporting_ids", ()))]
        if shared:
            raise ConfigurationError(
                f"train.passage_questions makes questions of passages that support {len(shared)} of {len(tasks)} tasks of "
                f"{name}, such as {shared[0]!r}: leave it out, or train on a set whose other splits lie in its folder"
            )


def _content(task: Task) -> str:
    """A question with its answers and the organisation that it is about, whatever its id.

    A task without a word of an answer is told by all of its data.
    """
    words = " ".join(task.question.split()).casefold()
    about = [task.split, task.data[_ORGANISATION]] if _ORGANISATION in task.data else None
    return value_digest([words, sorted(task.answers), about if any(task.answers) else task.data])
