"""Checks of the contract about tasks: a given task is posed, and no two splits share a task.

Without them, an environment that ignores ``options["task"]`` would be scored on tasks that it never posed.
"""

import re
import unittest
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from itertools import combinations
from typing import Any

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.env import Env
from agentenv.core.task_checks import checked_tasks
from agentenv.core.types import Info, Observation, Step, Task
from agentenv.errors import AgentEnvError, ConfigurationError

SPLITS = ("train", "dev", "test")
_SEEDS = (0, 1)  # seeds from which the tasks of each split are generated
_TASKS_PER_SEED = 100  # number of tasks generated for each split and seed
_POSED_TASKS = 4  # number of tasks that are posed one after the other
_DRAWN_TASKS = 16  # number of episodes whose tasks are compared if the environment generates none
_ACTIONS = 4
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

WRITTEN = tuple(
    Task(f"check-{number}", question, (answer,), "train")
    for number, (question, answer) in enumerate(
        [
            ("What is 2 + 3?", "5"),
            ("Which city is the capital of France?", "Paris"),
            ("Which planet is the third from the sun?", "Earth"),
            ("What is 7 * 6?", "42"),
        ]
    )
)
"""Posed if an environment neither generates tasks nor reveals those that it draws."""


def check_task(make: Callable[[], Env[Any]]) -> str:
    """``options["task"]`` is posed: its id is ``info["task_id"]``, and different tasks give different episodes."""
    tasks, whose = _tasks_for(make)
    with closing(make()) as env:
        drawn = env.reset(seed=0)
        require(
            isinstance(drawn[1].get("task_id"), str), f"reset() gives task_id {drawn[1].get('task_id')!r}"
        )
        try:
            episodes = [_episode(env, task) for task in tasks]
        except Exception as error:
            if whose != "written" or isinstance(error, AssertionError):
                raise
            raise unittest.SkipTest(f"it poses no task but its own: {error}") from error
        require(
            len(tasks) < 2 or any(episode != episodes[0] for episode in episodes[1:]),
            f"{len(tasks)} different tasks give the same episode; reset() has to pose options['task']",
        )
        require(
            _episode(env, tasks[0]) == episodes[0], f"task {tasks[0].id!r} opens differently after others"
        )
        require(env.reset(seed=0) == drawn, "seed 0 without a task opens differently after tasks were given")
    with closing(make()) as env:
        opening, info = run_to_completion(env.areset(seed=0, options={"task": tasks[-1]}))
        _posed(tasks[-1], info, "areset()")
        require(opening == episodes[-1][0], f"areset() opens task {tasks[-1].id!r} differently than reset()")
    return f"{len(tasks)} {whose} tasks"


def check_splits(make: Callable[[], Env[Any]]) -> str:
    """Generated tasks can be recorded, scored and generated again with the same result, and no two splits share one."""
    with closing(make()) as env:
        cls: Any = type(env.unwrapped)
    made: dict[str, list[Task]] = {}
    for split in SPLITS:
        with suppress(AgentEnvError):  # it generates no tasks, or none of this split
            made[split] = [
                task for seed in _SEEDS for task in cls.make_tasks(_TASKS_PER_SEED, seed=seed, split=split)
            ]
    for split in (split for split, tasks in made.items() if tasks):
        checked_tasks(
            cls.make_tasks(_TASKS_PER_SEED, seed=_SEEDS[0], split=split), f"make_tasks() of {split!r}"
        )
    if len(made) < 2:
        raise unittest.SkipTest("it makes tasks of its own for fewer than two splits")
    for split, tasks in made.items():
        again = cls.make_tasks(_TASKS_PER_SEED, seed=_SEEDS[0], split=split)
        same = all(a.id == b.id and _same(a, b) for a, b in zip(again, tasks, strict=False))
        require(same, f"make_tasks() gives other tasks of {split!r} when it is asked again")
    for one, other in combinations(made, 2):
        _refuse_shared(made[one], made[other], f"{one!r} and {other!r}")
    return ", ".join(made)


def _refuse_shared(one: Sequence[Task], other: Sequence[Task], where: str) -> None:
    asked: dict[tuple[str, tuple[str, ...]], list[Task]] = {}
    for task in one:
        asked.setdefault((task.question, task.answers), []).append(task)
    answered = twins = 0
    for task in other:
        alike = asked.get((task.question, task.answers), [])
        answered, twins = answered + bool(task.answers), twins + bool(task.answers and alike)
        for twin in alike:
            require(
                not _same(task, twin),
                f"the splits {where} share a task, {twin.id!r} and {task.id!r}: {task!r}",
            )
    complaint = (
        f"of {answered} tasks of one of the splits {where}, {twins} have question and answers of the other"
    )
    require(2 * twins <= answered, complaint)


def _same(one: Task, other: Task) -> bool:
    """Whether two tasks are equal apart from their ids and splits."""
    if (one.question, one.answers) != (other.question, other.answers):
        return False
    ours, theirs = _data(one), _data(other)
    try:
        return bool(ours == theirs)
    except ValueError:  # arrays have no single truth value
        return repr(ours) == repr(theirs)


def _data(task: Task) -> dict[str, Any]:
    names = {task.id, task.split}
    return {
        key: value for key, value in task.data.items() if not isinstance(value, str) or value not in names
    }


def _tasks_for(make: Callable[[], Env[Any]]) -> tuple[Sequence[Task], str]:
    """Returns different tasks to pose, and a word for their origin: generated, drawn by the environment, or written here."""
    with closing(make()) as env:
        cls: Any = type(env.unwrapped)
        try:
            found, whose = list(cls.make_tasks(_TASKS_PER_SEED)), "made"
        except ConfigurationError:
            found, whose = [], "drawn"
            for seed in range(_DRAWN_TASKS):
                env.reset(seed=seed)
                task = getattr(getattr(env.unwrapped, "state", None), "task", None)
                found += [task] if isinstance(task, Task) else []
    if whose == "made" and found:
        checked_tasks(found, "make_tasks()")
    different: list[Task] = []
    for task in found:
        if len(different) < _POSED_TASKS and not any(_same(task, other) for other in different):
            different.append(task)
    return (different, whose) if different else (WRITTEN, "written")


def _episode(env: Env[Any], task: Task) -> tuple[Observation, Sequence[str] | str, list[Step]]:
    """Returns what distinguishes the episodes of two tasks: opening, expert's actions, and steps after fixed actions.

    Without an expert, the state takes its place, because the goal may be hidden from the policy.
    """
    opening, info = env.reset(seed=0, options={"task": task})
    _posed(task, info, "reset()")
    expert, steps = env.expert(), list[Step]()
    hidden = _ADDRESS.sub("", repr(getattr(env.unwrapped, "state", None))) if expert is None else expert
    env.action_space.seed(0)
    for _ in range(_ACTIONS):
        steps.append(env.step(env.action_space.sample()))
        if steps[-1].terminated or steps[-1].truncated:
            break
    return opening, hidden, steps


def _posed(task: Task, info: Info, what: str) -> None:
    require(
        info.get("task_id") == task.id,
        f"{what} was given task {task.id!r} and says task_id {info.get('task_id')!r}; it has to pose options['task']",
    )


def require(condition: bool, complaint: str) -> None:
    """Raises AssertionError with ``complaint`` if ``condition`` is false."""
    if not condition:
        raise AssertionError(complaint)
