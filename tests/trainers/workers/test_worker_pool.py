"""The worker pool, with workers that are made up: who gets a group, what is lost and played anew, what ends a run.

``test_cluster.py`` has workers of Ray.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import pytest

from agentenv.cli.train import Train
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError, Fault, WorkerLost
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.task_sampling.samplers import Group, TaskDraw
from agentenv.trainers.workers import worker_pool as crew_module
from agentenv.trainers.workers.inflight import InflightGroup
from agentenv.trainers.workers.recorded_policy import RecordedPolicy
from agentenv.trainers.workers.worker_pool import Weights, WorkerPool

ANSWER = {"ids": (1,), "text": "a", "logprobs": (0.0,), "finish": "eos", "version": 3, "exact_tokens": True}
ANSWERS = {"key": ANSWER | {"versions": (), "turn": None}}


class Fake:
    """A worker of ``Fakes``: delivers at once unless its cluster says what else it does."""

    def __init__(self, cluster: "Fakes", number: int) -> None:
        self.cluster, self.number = cluster, number
        self.ended = False
        self.taken: list[int] = []  # versions of weights that came without a group

    async def open(self) -> None:
        if self.number in self.cluster.opening:
            await self.cluster.opening[self.number]()

    async def play(
        self, order: Mapping[str, Any], weights: Weights
    ) -> tuple[list[Trajectory], dict[str, Any]]:
        self.cluster.given.append((self.number, order["first"], weights))
        if self.number in self.cluster.playing:
            await self.cluster.playing[self.number]()
        by = f"{order['first']} by {self.number}"
        return [Trajectory(Task("t", "q"), (), (), 1.0, EndReason.ANSWERED, id=by)], ANSWERS

    def load_weights(self, weights: Weights) -> None:
        self.taken.append(weights.version)

    def end(self) -> None:
        self.ended = True


class Fakes:
    """A cluster of them; workers have the numbers 0, 1, ... in the order in which they are hired."""

    def __init__(self) -> None:
        self.workers: list[Fake] = []
        self.given: list[tuple[int, int, Weights]] = []
        self.opening: dict[int, Callable[[], Awaitable[None]]] = {}
        self.playing: dict[int, Callable[[], Awaitable[None]]] = {}

    def put(self, weights: Mapping[str, Any]) -> Any:
        return dict(weights)

    def worker(self) -> Fake:
        self.workers.append(Fake(self, len(self.workers)))
        return self.workers[-1]

    def close(self) -> None: ...


async def dies() -> None:
    await asyncio.sleep(0)
    raise WorkerLost("the actor died")


async def hangs() -> None:
    await asyncio.Event().wait()


async def refuses() -> None:
    raise ConfigurationError("there is no such policy here")


def group(first: int, size: int = 2) -> InflightGroup:
    policy: Any = object()
    return InflightGroup(
        step=1,
        draw=TaskDraw(0, size),
        group=Group(0, first, step=1),
        slot=first,
        seeds=list(range(size)),
        policy=RecordedPolicy(policy),
    )


def played(
    cluster: Fakes, groups: int, workers: int = 2, *, start_s: float = 30, deadline_s: float = 30
) -> tuple[list[str], dict[str, float]]:
    """Who delivered each of so many groups of two, and the figures after it."""

    async def play(worker_pool: WorkerPool) -> tuple[list[str], dict[str, float]]:
        await worker_pool.set_weights(3, {"w": 1.0})
        members = await asyncio.gather(*(worker_pool.play(group(first), None) for first in range(groups)))
        return [one[0].id for one in members], await worker_pool.metrics()

    delivered: tuple[list[str], dict[str, float]]
    delivered = run(play(WorkerPool(cluster, workers, start_s=start_s, deadline_s=deadline_s)))
    return delivered


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "_PAUSE_S", 0.0)


def test_groups_go_to_whoever_has_the_fewest_with_the_weights_to_play_them_by() -> None:
    cluster = Fakes()
    cluster.playing = dict.fromkeys((0, 1), lambda: asyncio.sleep(0.01))

    async def play() -> None:
        worker_pool = WorkerPool(cluster, 2, start_s=30, deadline_s=30)
        await worker_pool.set_weights(3, {"w": 1.0})
        await asyncio.sleep(0.01)  # both are up
        await asyncio.gather(*(worker_pool.play(group(first), None) for first in range(4)))

    run(play())
    assert sorted(number for number, _, _ in cluster.given) == [0, 0, 1, 1]
    assert all(weights == Weights(3, {"w": 1.0}) for _, _, weights in cluster.given)


def test_the_groups_of_a_lost_worker_are_played_by_others_and_counted() -> None:
    cluster = Fakes()
    cluster.playing = {0: dies}
    cluster.opening = {1: lambda: asyncio.sleep(0.05)}  # until then all groups are with the one that dies
    delivered, metrics = played(cluster, 3)
    assert sorted(one.split()[0] for one in delivered) == ["0", "1", "2"]
    assert all(one.split()[-1] != "0" for one in delivered)
    assert metrics["lost_workers"] == 1
    assert metrics["lost_episodes"] == 3 * 2
    assert len(cluster.given) == 3 + 3
    assert len(cluster.workers) == 3  # the lost one is replaced
    assert cluster.workers[0].ended


def test_what_was_counted_once_is_not_counted_again() -> None:
    cluster = Fakes()
    cluster.playing = {0: dies}

    async def play() -> tuple[dict[str, float], dict[str, float]]:
        worker_pool = WorkerPool(cluster, 1, start_s=30, deadline_s=30)
        await worker_pool.set_weights(0, {})
        await worker_pool.play(group(0), None)
        return await worker_pool.metrics(), await worker_pool.metrics()

    first, second = run(play())
    assert first == {"workers": 1, "lost_workers": 1, "lost_episodes": 2}
    assert second == {"workers": 1, "lost_workers": 0, "lost_episodes": 0}


def test_a_late_worker_is_ended_and_what_it_delivers_then_is_dropped() -> None:
    cluster = Fakes()
    cluster.playing = {0: hangs}
    delivered, metrics = played(cluster, 1, workers=1, deadline_s=0.5)
    assert delivered == ["0 by 1"]
    assert (metrics["lost_workers"], metrics["lost_episodes"]) == (1, 2)
    assert cluster.workers[0].ended


def test_the_answers_of_the_policy_stay_with_the_group() -> None:
    async def play() -> dict[str, Any]:
        worker_pool, inflight = WorkerPool(Fakes(), 1, start_s=30, deadline_s=30), group(0)
        await worker_pool.set_weights(3, {})
        await worker_pool.play(inflight, None)
        return inflight.policy.state_dict()

    assert run(play()) == ANSWERS


def test_those_who_are_up_get_new_weights_at_once() -> None:
    cluster = Fakes()
    cluster.opening = {1: hangs}

    async def play() -> None:
        worker_pool = WorkerPool(cluster, 2, start_s=30, deadline_s=30)
        await worker_pool.set_weights(0, {})
        await worker_pool.play(group(0), None)
        await worker_pool.set_weights(1, {})

    run(play())
    assert [worker.taken for worker in cluster.workers] == [[1], []]


def test_who_is_lost_before_it_is_up_makes_room_and_is_no_lost_worker() -> None:
    cluster = Fakes()
    cluster.opening = {0: dies}
    delivered, metrics = played(cluster, 1, workers=1)
    assert delivered == ["0 by 1"]
    assert (metrics["lost_workers"], metrics["lost_episodes"]) == (0, 0)


def test_a_run_without_workers_ends_with_one_sentence() -> None:
    cluster = Fakes()
    cluster.opening = dict.fromkeys(range(1000), hangs)
    with pytest.raises(Fault, match=r"\b0\.2 s.*\b0\.2 s") as caught:
        played(cluster, 2, start_s=0.2)
    assert "\n" not in str(caught.value)


def test_a_group_that_no_worker_survives_ends_the_run() -> None:
    cluster = Fakes()
    cluster.playing = dict.fromkeys(range(100), dies)
    with pytest.raises(Fault, match=r"\b5\b.*the actor died"):
        played(cluster, 1)
    assert len(cluster.given) == 5


def test_a_worker_that_cannot_play_as_configured_ends_the_run() -> None:
    cluster = Fakes()
    cluster.opening = {1: refuses}
    cluster.playing = {0: hangs}
    with pytest.raises(ConfigurationError, match="no such policy here"):
        run(_refused(cluster))


async def _refused(cluster: Fakes) -> None:
    worker_pool = WorkerPool(cluster, 2, start_s=30, deadline_s=30)
    await worker_pool.set_weights(0, {})
    await asyncio.sleep(0.01)
    await worker_pool.play(group(0), None)


async def times_out() -> None:
    raise TimeoutError("the file system did not answer")


def test_a_group_that_is_always_late_costs_the_others_of_its_workers_no_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each worker is ended because of the first group while it has the second one, and they share the next."""
    cluster, play_on = Fakes(), WorkerPool._play_on

    async def lost(worker_pool: WorkerPool, worker: Fake, inflight: InflightGroup) -> Any:
        if inflight.group.first == 0:
            await asyncio.sleep(0.01)
            raise crew_module._Overdue("a worker took longer than it may")
        while worker.number < crew_module._TRIES:
            if worker.ended:
                raise WorkerLost("the actor was ended")
            await asyncio.sleep(0)
        return await play_on(worker_pool, worker, inflight)

    monkeypatch.setattr(WorkerPool, "_play_on", lost)

    async def both() -> list[Any]:
        worker_pool = WorkerPool(cluster, 1, start_s=30, deadline_s=30)
        await worker_pool.set_weights(3, {"w": 1.0})
        plays = [worker_pool.play(group(first), None) for first in range(2)]
        return await asyncio.gather(*plays, return_exceptions=True)

    late, other = run(both())
    assert isinstance(late, Fault)
    assert "longer than it may" in str(late)
    assert [one.id for one in other] == ["1 by 5"]


@pytest.mark.parametrize("when", ["opening", "playing"])
def test_a_timeout_that_a_worker_raises_is_no_deadline_that_it_missed(when: str) -> None:
    """Others would meet it, too: they would be started and lost one after the other, and the reason not be reported."""
    cluster = Fakes()
    setattr(cluster, when, dict.fromkeys(range(1000), times_out))
    with pytest.raises(TimeoutError, match="the file system"):
        played(cluster, 1, workers=1, start_s=5)
    assert len(cluster.workers) == 1


def test_a_cluster_is_named_by_one_word() -> None:
    asked = Train.parse(["--cluster", "local", "--cluster.workers", "3"]).config.cluster
    assert (asked.address, asked.workers) == ("local", 3)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--rollout.sampler arrol", "rollout.sampler='arrol'"),
        (
            "--engine.kind vllm --rollout.deterministic false --engine.urls http://a:1",
            "engine.urls",
        ),
        ("--rollout.strategy self_play --second.roles proposer", "second.roles"),
    ],
)
def test_what_cannot_be_played_elsewhere_is_refused(words: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        override(TrainConfig(), ["--cluster.address", "local", *words.split()])
