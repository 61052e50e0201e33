"""The checks about tasks by hand: whose tasks are posed, what two splits may share, and what each complaint names."""

import unittest
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from agentenv.core.env import Env
from agentenv.core.env_contract_tasks import (
    WRITTEN,
    _refuse_shared,
    _same,
    _tasks_for,
    check_splits,
    check_task,
    require,
)
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task
from agentenv.errors import ConfigurationError

Opening = tuple[Observation, Info]


@dataclass
class State:
    task: Task | None
    turns: int = 0


class Poser(Env[State]):
    """Asks the question of its task and takes its answer; draws from ``own`` and makes no tasks."""

    own: ClassVar[Sequence[Task]] = [Task(f"own-{n}", f"What is {n} + {n}?", (str(2 * n),)) for n in range(3)]
    closed: ClassVar[list[str]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
        super().reset(seed=seed)
        drawn = self.own[int(self.np_random.integers(len(self.own)))]
        task = (options or {}).get("task") or drawn
        self.state = State(task)
        return (Message("user", task.question),), {"task_id": task.id}

    def step(self, action: str) -> Step:
        self.check_running()
        self.state.turns += 1
        right = self.state.task is not None and action == self.state.task.answers[0]
        if right or self.state.turns == 6:
            return self.result((), reward=float(right), end=EndReason.ANSWERED)
        return self.result((Message("user", f"not {action}"),))

    def close(self) -> None:
        self.closed.append(type(self).__name__)
        super().close()


class Makes(Poser):
    """Makes tasks; of each split other ones, and the same for the same arguments."""

    first: ClassVar[dict[str, int]] = {"train": 0, "dev": 10_000, "test": 20_000}

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
        begin = cls.first[split] + 1000 * seed
        return [
            Task(f"{split}-{seed}-{i}", f"What is {i} + {i}?", (str(2 * i),), split)
            for i in range(begin, begin + n)
        ]


class Hides(Poser):
    """Shows no task in its state."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
        opening, info = super().reset(seed=seed, options=options)
        assert self.state.task is not None
        self.answer = self.state.task.answers[0]
        self.state.task = None
        return opening, info

    def expert(self) -> Sequence[str]:
        return (self.answer,)


@pytest.mark.parametrize(
    ("cls", "said"), [(Makes, "4 made tasks"), (Poser, "3 drawn tasks"), (Hides, "4 written tasks")]
)
def test_it_says_how_many_tasks_were_posed_and_whose_they_are(cls: type[Poser], said: str) -> None:
    Poser.closed.clear()
    assert check_task(cls) == said
    assert Poser.closed == [cls.__name__] * 3


def test_tasks_to_pose_are_different_ones() -> None:
    tasks, whose = _tasks_for(Makes)
    assert (list(tasks), whose) == (list(Makes.make_tasks(4)), "made")

    class Repeats(Makes):
        @classmethod
        def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
            assert n == 100
            return [replace(Makes.make_tasks(1)[0], id=f"again-{i}") for i in range(n)]

    tasks, whose = _tasks_for(Repeats)
    assert ([task.id for task in tasks], whose) == (["again-0"], "made")
    assert check_task(Repeats) == "1 made tasks"  # of one task nothing can differ
    tasks, whose = _tasks_for(Poser)
    assert (sorted(task.id for task in tasks), whose) == (["own-0", "own-1", "own-2"], "drawn")
    assert _tasks_for(Hides) == (WRITTEN, "written")


def test_an_environment_without_an_id_of_its_task_is_told_what_it_says() -> None:
    class Mute(Makes):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
            return super().reset(seed=seed, options=options)[0], {"task_id": 7} if options is None else {}

    with pytest.raises(AssertionError, match=r"\b7\b"):
        check_task(Mute)

    class Other(Makes):
        async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
            opening, info = self.reset(seed=seed, options=options)
            return opening, {"task_id": "another"} if options else info

    with pytest.raises(AssertionError, match=r"areset\(\).*'train-0-3'.*'another'"):
        check_task(Other)

    class Differs(Makes):
        async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
            return (Message("user", "Something else?"),), self.reset(seed=seed, options=options)[1]

    with pytest.raises(AssertionError, match=r"areset\(\).*'train-0-3'"):
        check_task(Differs)


def test_written_tasks_that_are_refused_skip_the_check_with_the_reason_and_made_ones_do_not() -> None:
    class Refuses(Hides):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
            if options:
                raise ConfigurationError("only my own")
            return super().reset(seed=seed)

    with pytest.raises(unittest.SkipTest, match="only my own"):
        check_task(Refuses)

    class RefusesMade(Makes):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
            if options:
                raise ConfigurationError("only my own")
            return super().reset(seed=seed)

    with pytest.raises(ConfigurationError, match="only my own"):
        check_task(RefusesMade)


def test_splits_that_are_made_are_listed() -> None:
    assert check_splits(Makes) == "train, dev, test"

    class NoDev(Makes):
        @classmethod
        def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
            if split == "dev":
                raise ConfigurationError("no such split")
            return super().make_tasks(n, seed=seed, split=split)

    assert check_splits(NoDev) == "train, test"
    with pytest.raises(unittest.SkipTest):
        check_splits(Poser)


def test_a_split_that_is_made_anew_each_time_or_shared_is_named() -> None:
    made: list[str] = []

    class Anew(Makes):
        @classmethod
        def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
            made.append(split)
            if split == "test" and made.count("test") > 2:
                return [replace(t, id=f"x-{t.id}") for t in super().make_tasks(n, seed=seed, split=split)]
            return super().make_tasks(n, seed=seed, split=split)

    with pytest.raises(AssertionError, match="'test'"):
        check_splits(Anew)

    class Shared(Makes):
        first: ClassVar[dict[str, int]] = {"train": 0, "dev": 10_000, "test": 10_050}

    with pytest.raises(AssertionError, match=r"'dev' and 'test'.*'dev-0-10050' and 'test-0-10050'"):
        check_splits(Shared)


def tasks(count: int, split: str, answers: tuple[str, ...] = ("a",), **data: Any) -> list[Task]:
    return [
        Task(f"{split}-{i}", f"Question {i}?", answers, split, data={"of": split} | data)
        for i in range(count)
    ]


@pytest.mark.parametrize(("alike", "allowed"), [(0, True), (5, True), (6, False), (10, False)])
def test_at_most_half_of_a_split_may_ask_what_the_other_asks(alike: int, allowed: bool) -> None:
    """Twins with other data, such as another web site, count where they have an answer."""
    one = tasks(10, "train", page=1)
    other = [
        replace(task, question=task.question if i < alike else f"New {i}?")
        for i, task in enumerate(tasks(10, "test", page=2))
    ]
    if allowed:
        _refuse_shared(one, other, "here")
        return
    with pytest.raises(AssertionError, match=rf"\b10\b.*here.*\b{alike}\b"):
        _refuse_shared(one, other, "here")


def test_tasks_without_an_answer_may_ask_the_same_with_other_data_alone() -> None:
    _refuse_shared(tasks(4, "train", (), page=1), tasks(4, "test", (), page=2), "here")
    with pytest.raises(AssertionError, match=r"here.*'train-0' and 'test-0'"):
        _refuse_shared(tasks(4, "train", ()), tasks(4, "test", ()), "here")
    with pytest.raises(AssertionError, match=r"'train-2' and 'test-2'"):
        _refuse_shared(tasks(3, "train")[2:], tasks(3, "test"), "here")


def test_tasks_are_the_same_where_only_their_names_differ() -> None:
    one = Task("a", "Q?", ("x",), "train", data={"name": "a", "split": "train", "n": 1})
    assert _same(one, Task("b", "Q?", ("x",), "dev", data={"name": "b", "split": "dev", "n": 1}))
    assert not _same(one, replace(one, data={"n": 2}))
    assert not _same(one, replace(one, data={"n": 1, "name": "other"}))
    assert not _same(one, replace(one, question="P?"))
    assert not _same(one, replace(one, answers=("y",)))
    array = replace(one, data={"board": np.arange(4)})
    assert _same(array, replace(one, id="b", data={"board": np.arange(4)}))
    assert not _same(array, replace(one, data={"board": np.arange(4) + 1}))


def test_a_requirement_that_does_not_hold_raises_its_complaint() -> None:
    require(True, "never said")
    with pytest.raises(AssertionError, match="said"):
        require(False, "said")
