"""What runs on a worker of a cluster, here without one: orders, weights, a dead engine, the end."""

import asyncio
from collections.abc import Coroutine, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.rollout import RolloutConfig
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.errors import WorkerLost
from agentenv.trainers.task_sampling.samplers import Group, TaskDraw
from agentenv.trainers.workers.cluster import RolloutActor
from agentenv.trainers.workers.inflight import InflightGroup
from agentenv.trainers.workers.recorded_policy import RecordedPolicy


class Recorder:
    """A policy that notes the weights it is given."""

    def __init__(self) -> None:
        self.version = 0
        self.broken = self.closed = False
        self.taken: list[tuple[int, float]] = []

    def set_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self.taken.append((version, float(weights["w"])))
        self.version = version

    def close(self) -> None:
        self.closed = True


class Scripted:
    """A player whose groups are one empty episode; where it is held it plays until it is cancelled."""

    def __init__(self) -> None:
        self.rollout = RolloutConfig()
        self.policy = Recorder()
        self.held = self.cancelled = False
        self.began = asyncio.Event()
        self.batchers: list[DeterministicBatcher | None] = []

    async def play(
        self, inflight: InflightGroup, deterministic_batcher: DeterministicBatcher | None
    ) -> list[Trajectory]:
        self.batchers.append(deterministic_batcher)
        self.began.set()
        if self.held:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled = True
        at = f"{inflight.step}-{inflight.slot} at {self.policy.version}"
        return [Trajectory(Task("t", "q"), (), (), 1.0, EndReason.ANSWERED, id=at)]


ORDER = InflightGroup(
    step=4,
    draw=TaskDraw(0, 1),
    group=Group(0, 6, step=4),
    slot=6,
    seeds=[1],
    policy=RecordedPolicy(SimpleNamespace()),
).state_dict()


def weights(value: float) -> dict[str, Any]:
    array = np.array(value)
    array.flags.writeable = False  # as they come from the object store
    return {"w": array}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def hand(runner: Any) -> RolloutActor:
    return RolloutActor(lambda: runner)


def test_a_group_is_played_by_the_weights_that_it_names_or_later_ones() -> None:
    async def play() -> tuple[list[str], Scripted]:
        runner = Scripted()
        worker = hand(runner)
        await worker.open()
        ids = []
        for version in (0, 0, 2, 1):
            members, answers = await worker.play(ORDER, version, weights(version / 2))
            assert answers == {}
            ids.append(members[0].id)
        await worker.load_weights(3, weights(1.5))
        return ids, runner

    ids, runner = run(play())
    assert ids == ["4-6 at 0", "4-6 at 0", "4-6 at 2", "4-6 at 2"]
    assert runner.policy.taken == [(0, 0.0), (2, 1.0), (3, 1.5)]
    # Batches are formed within a group.
    assert len({id(deterministic_batcher) for deterministic_batcher in runner.batchers}) == 4


def test_an_engine_that_died_takes_the_worker_with_it() -> None:
    async def play() -> None:
        runner = Scripted()
        worker = hand(runner)
        await worker.open()
        runner.policy.broken = True
        await worker.play(ORDER, 0, weights(0))

    with pytest.raises(WorkerLost):
        run(play())


def test_the_end_cancels_what_is_under_way_and_closes_the_policy() -> None:
    async def play() -> Scripted:
        runner = Scripted()
        runner.held = True
        worker = hand(runner)
        await worker.open()
        playing = asyncio.create_task(worker.play(ORDER, 0, weights(0)))
        await runner.began.wait()
        await worker.close()
        assert playing.cancelled()
        return runner

    runner = run(play())
    assert runner.cancelled
    assert runner.policy.closed


def test_who_never_came_up_can_be_closed() -> None:
    run(hand(None).close())
