"""The buffer of demonstrations: when a supervised step is made, on which of them, and what a checkpoint holds."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import Task
from agentenv.errors import CheckpointMismatch
from agentenv.trainers.learner.imitation import DemonstrationBuffer

Make = Callable[..., Trajectory]


def shown(episode: Make, *names: str) -> list[Trajectory]:
    """Demonstrations of tasks by these names."""
    parts = [(SegmentKind.PROMPT, (0,)), (SegmentKind.POLICY, (1, 2))]
    return [replace(episode(parts, 1.0, id=f"e-{name}"), task=Task(name, name)) for name in names]


def names(trajectories: list[Trajectory]) -> list[str]:
    return [trajectory.task.id for trajectory in trajectories]


def test_a_step_takes_as_many_as_it_needs_the_newest_first_and_the_rest_waits(episode: Make) -> None:
    buffer = DemonstrationBuffer(3, [])
    assert buffer.add(shown(episode, "a", "b")) == []
    assert names(buffer.add(shown(episode, "c", "d"))) == ["c", "d", "a"]
    assert len(buffer) == 1
    assert buffer.add([]) == []
    assert names(buffer.add(shown(episode, *"efghi"))) == ["e", "f", "g"]  # one step, though six wait
    assert len(buffer) == 3


def test_without_a_size_each_batch_makes_its_step(episode: Make) -> None:
    buffer = DemonstrationBuffer(0, [])
    assert names(buffer.add(shown(episode, "a", "b"))) == ["a", "b"]
    assert buffer.add([]) == []
    assert len(buffer) == 0


def test_what_waits_survives_a_checkpoint(episode: Make) -> None:
    tasks = [Task(name, name) for name in "ab"]
    buffer, again = DemonstrationBuffer(3, tasks), DemonstrationBuffer(3, tasks)
    waiting = shown(episode, "b", "a")
    buffer.add(waiting)
    again.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
    assert json.dumps(again.state_dict()) == json.dumps(buffer.state_dict())
    taken = again.add(shown(episode, "a"))
    assert [t.segments for t in taken[1:]] == [t.segments for t in waiting]
    assert names(taken[1:]) == ["b", "a"]
    again.load_state_dict({})
    assert len(again) == 0


def test_what_waits_of_a_task_that_is_not_trained_on_is_named_and_nothing_is_taken_up(episode: Make) -> None:
    buffer = DemonstrationBuffer(3, [])
    buffer.add(shown(episode, "a", "gone"))
    again = DemonstrationBuffer(3, [Task("a", "a")])
    with pytest.raises(CheckpointMismatch, match="'gone'"):
        again.load_state_dict(buffer.state_dict())
    assert len(again) == 0
