"""Training with workers of a real Ray cluster of two nodes on this machine; ``test_worker_pool.py`` has the rules.

Covered: groups of a killed worker and of a removed node are played by others, counted, delivered once; a run equals the one
that plays here, though it loses both; nothing of Ray is left; the sentence where Ray is not installed.
"""

import asyncio
import gzip
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.rollout import RolloutConfig
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.errors import ConfigurationError, MissingExtra
from agentenv.policies.fakes import random_policy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.config.sections import ClusterSettings
from agentenv.trainers.grpo import train
from agentenv.trainers.loop.run import open_group_runner
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.task_sampling.samplers import Group, TaskDraw
from agentenv.trainers.workers.cluster import RayCluster
from agentenv.trainers.workers.inflight import InflightGroup
from agentenv.trainers.workers.recorded_policy import RecordedPolicy
from agentenv.trainers.workers.worker_pool import WorkerPool

WORLD = {"documents": 200, "questions": 12, "families": ["lookup"], "hops": [1, 1]}
STEPS, QUESTIONS, SIZE = 3, 4, 2
AGREEMENT = 1e-4
"""In nats: workers form other batches, which add in another order."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own processes and sockets
    pytest.mark.filterwarnings("ignore:Tip. In future versions of Ray:FutureWarning"),
]


class Hooked(SilentDisplay):
    """A display that shows nothing; after a step it does what is wanted then."""

    def __init__(self, after: Mapping[int, Callable[[], None]] | None = None) -> None:
        self.after = after or {}

    def advance(self, done: int, metrics: dict[str, Any]) -> None:
        if "step" in metrics and done in self.after:
            self.after[done]()


def nodes() -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of two nodes; a node that is told its ports waits for no helper of Ray to choose them."""
    kinds = ("metrics_agent", "metrics_export", "dashboard_agent_listen", "runtime_env_agent")
    names = [f"{kind}_port" for kind in kinds]
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(2 * len(names))]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in sockets]
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    small |= {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    first, second = (
        small | dict(zip(names, mine, strict=True)) for mine in (ports[: len(names)], ports[len(names) :])
    )
    return first, second


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes with room for one worker each, that may take their time."""
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")  # read when Ray is imported
    pytest.importorskip("ray", reason="Ray is not installed")
    pytest.importorskip("psutil", reason="psutil, which finds the workers, is not installed")
    from ray.cluster_utils import Cluster

    one, two = nodes()
    patient = {"worker_register_timeout_seconds": 600, "worker_niceness": 0}
    with ExitStack() as stack:
        try:
            made = Cluster(initialize_head=True, head_node_args={**one, "_system_config": patient})
            stack.callback(end, made)
            made.add_node(**two, wait=False)
            made.wait_for_nodes(timeout=300)
        except Exception as error:  # Ray's own are of no type of theirs
            pytest.skip(f"no Ray cluster of two nodes comes up here: {error}")
        yield made


def end(cluster: Any) -> None:
    session = cluster.head_node.get_session_dir_path()
    cluster.shutdown()
    shutil.rmtree(session, ignore_errors=True)


def config(model: Path, **settings: Any) -> dict[str, Any]:
    return {
        "policy": f"hf:{model}",
        "threads": 1,
        "checkpoint_every": STEPS,
        "trajectories_every": 1,
        "env": {"options": {"k": 1, "max_turns": 1, "observation_tokens": 64, "prompt": "{question}"}},
        "search": {"encoder": "hash"},
        "train": {"world": WORLD | {"seed": 1, "split": "train"}},
        "dev": {"world": WORLD | {"seed": 2, "split": "dev"}},
        "test": {"limit": 1, "world": WORLD | {"seed": 2, "split": "dev"}},
        "rollout": {"questions": QUESTIONS, "group_size": SIZE, "turn_tokens": 12, "context_tokens": 200},
        "optimizer": {"steps": STEPS, "learning_rate": 3e-3},
        "loss": {"entropy_coefficient": 0.1},
        "evaluation": {"every": 0, "bounds": False},
    } | settings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    world = FictionalWorld.generate(WorldConfig(**WORLD, seed=1, split="train"))  # type: ignore[arg-type]
    random_policy(tmp_path / "model", [document.text for document in world.documents])
    return tmp_path / "model"


def episodes(run: Path, step: int) -> list[dict[str, Any]]:
    text = gzip.decompress((run / "trajectories" / f"step-{step:06d}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def sampled(episode: dict[str, Any], what: str) -> list[Any]:
    return [value for segment in episode["segments"] for value in segment.get(what, ())]


def worker_of(node: Any) -> int:
    """The process of the worker on ``node``."""
    import psutil

    (raylet,) = node.all_processes["raylet"]
    found = [
        child.pid
        for child in psutil.Process(raylet.process.pid).children(recursive=True)
        if "ray::RolloutActor" in " ".join(child.cmdline())
    ]
    assert len(found) == 1
    return int(found[0])


def test_a_run_that_loses_a_worker_and_a_node_is_the_run_that_plays_here(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    elsewhere = {"cluster": {"address": cluster.address, "workers": 2, "start_s": 500}}
    here = RunFolder.create(tmp_path / "here", parse_config(config(model), "test"))
    train(here, Hooked())
    apart = RunFolder.create(tmp_path / "apart", parse_config(config(model, **elsewhere), "test"))
    head, other = cluster.head_node, cluster.worker_nodes.copy().pop()
    losses = {
        1: lambda: os.kill(worker_of(head), signal.SIGKILL),
        2: lambda: gone(cluster, other, worker_of(other)),
    }
    results = train(apart, Hooked(losses))

    lines = apart.history()
    first, second, third = (line["lost_workers"] for line in lines)
    assert first == 0
    assert 1 <= second + third <= 2  # one that is struck before it is up is not lost
    assert all(line["lost_episodes"] % SIZE == 0 for line in lines)
    assert all((line["lost_episodes"] > 0) == (line["lost_workers"] > 0) for line in lines)
    assert (results["steps"], results["faults"]) == (STEPS, 0)
    for step in range(1, STEPS + 1):
        ours, theirs = episodes(here.path, step), episodes(apart.path, step)
        assert [sampled(one, "ids") for one in ours] == [sampled(one, "ids") for one in theirs]
        for one, other_one in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(
                sampled(one, "logprobs"), sampled(other_one, "logprobs"), atol=AGREEMENT
            )
            assert one["id"] == other_one["id"]
            assert {s["version"] for s in other_one["segments"] if s["kind"] == "policy"} == {step - 1}
    losses_here, losses_apart = ([line["loss"] for line in run.history()] for run in (here, apart))
    assert len(set(losses_here)) == STEPS  # something is learned
    np.testing.assert_allclose(losses_here, losses_apart, rtol=1e-3)

    import ray

    assert not ray.is_initialized()


class Held:
    """A player without a model: a group notes who plays it, and lasts until its step is let go."""

    def __init__(self, place: Path) -> None:
        sys.modules["torch"] = SimpleNamespace(tensor=lambda value: value)  # type: ignore[assignment]
        self.rollout = RolloutConfig()
        self.policy = self
        self.place, self.version, self.broken = place, -1, False

    def set_weights(self, weights: Mapping[str, Any], version: int) -> None:
        assert weights["w"].tolist() == [version]
        self.version = version

    def close(self) -> None:
        (self.place / f"closed-{os.getpid()}").touch()

    async def play(
        self, inflight: InflightGroup, deterministic_batcher: DeterministicBatcher | None
    ) -> list[Trajectory]:
        by = f"{inflight.step}-{inflight.slot}-{os.getpid()}-{self.version}"
        (self.place / f"began-{by}").touch()
        while not (self.place / f"go-{inflight.step}").exists():
            await asyncio.sleep(0.05)
        return [Trajectory(Task("t", "q"), (), (), 1.0, EndReason.ANSWERED, id=by)]


class Number:
    """Stands for a tensor."""

    dtype = np.dtype(np.int64)

    def __init__(self, value: int) -> None:
        self.value = value

    def detach(self) -> "Number":
        return self

    def cpu(self) -> "Number":
        return self

    def numpy(self) -> Any:
        return np.array([self.value])


async def step(
    worker_pool: WorkerPool, number: int, place: Path, strike: Callable[[], None]
) -> tuple[list[str], Any]:
    """Who delivered the four groups of a step; once all have begun ``strike`` is called, and they are let go."""
    await worker_pool.set_weights(number, {"w": Number(number)})
    groups = [
        InflightGroup(
            step=number,
            draw=TaskDraw(0, SIZE),
            group=Group(0, slot, step=number),
            slot=slot,
            seeds=[0] * SIZE,
            policy=RecordedPolicy(SimpleNamespace()),
        )
        for slot in range(4)
    ]
    playing = [asyncio.create_task(worker_pool.play(group, None)) for group in groups]
    while len(list(place.glob(f"began-{number}-*"))) < len(groups):
        await asyncio.sleep(0.05)
    await asyncio.to_thread(strike)
    (place / f"go-{number}").touch()
    return [(await one)[0].id for one in playing], await worker_pool.metrics()


def gone(cluster: Any, node: Any, worker: int) -> None:
    """Takes a machine away with the worker on it, which would deliver while it has not noticed that its node is dead."""
    cluster.remove_node(node, False)
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)


def test_groups_of_a_killed_worker_and_of_a_removed_node_are_played_by_those_who_live(
    cluster: Any, tmp_path: Path
) -> None:
    import ray

    head, other = cluster.head_node, cluster.worker_nodes.copy().pop()
    ray.cloudpickle.register_pickle_by_value(sys.modules[Held.__module__])  # workers cannot import tests
    settings = ClusterSettings(address=cluster.address, workers=2)
    nodes_cluster = RayCluster(settings, partial(Held, tmp_path))  # type: ignore[arg-type]
    worker_pool = WorkerPool(nodes_cluster, 2, start_s=500, deadline_s=500)

    async def play() -> None:
        await worker_pool.set_weights(0, {"w": Number(0)})
        while (await worker_pool.metrics())["workers"] < 2:
            await asyncio.sleep(0.1)
        doomed, spared = worker_of(head), worker_of(other)
        delivered, figures = await step(worker_pool, 1, tmp_path, lambda: os.kill(doomed, signal.SIGKILL))
        assert delivered == [f"1-{slot}-{spared}-1" for slot in range(4)]
        assert (figures["lost_workers"], figures["lost_episodes"]) == (1, 2 * SIZE)
        while (await worker_pool.metrics())["workers"] < 2:
            await asyncio.sleep(0.1)
        replaced = worker_of(head)
        delivered, figures = await step(worker_pool, 2, tmp_path, lambda: gone(cluster, other, spared))
        assert delivered == [f"2-{slot}-{replaced}-2" for slot in range(4)]
        assert (figures["lost_workers"], figures["lost_episodes"]) == (1, 2 * SIZE)

    try:
        asyncio.run(asyncio.wait_for(play(), 1500))
    finally:
        worker_pool.close()
    assert not ray.is_initialized()
    assert len(list(tmp_path.glob("closed-*"))) == 1


def test_where_ray_is_not_installed_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"\[cluster\]"):
        RayCluster(ClusterSettings(address="local"), lambda: open_group_runner(parse_config({}, "test")))


def test_a_cluster_that_does_not_come_up_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray raises a plain ``Exception`` where its node is late on a busy machine."""

    def late(**given: Any) -> None:
        # An engine in a worker comes up on a busy machine, too.
        assert dict(os.environ)["RAY_worker_niceness"] == "0"
        raise Exception("The current node timed out during startup.\nSee the logs.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=late))
    with pytest.raises(ConfigurationError, match=r"local.*timed out during startup") as error:
        RayCluster(ClusterSettings(address="local"), lambda: open_group_runner(parse_config({}, "test")))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("workers", "gpus", "wanted"),
    [(3, 0.6, 3), (2, 0.5, 1), (10, 0.1, 1), (4, 0.0, 0), (3, 2.0, 6), (2, 1.5, 3), (3, 1.6, 6), (4, 0.3, 2)],
)
def test_a_cluster_of_this_machine_has_gpus_for_every_worker(
    monkeypatch: pytest.MonkeyPatch, workers: int, gpus: float, wanted: int
) -> None:
    """Ray takes the part of a GPU that a worker asks for from a single one: twice .4 that are left are not .6."""
    given: dict[str, Any] = {}

    def init(**settings: Any) -> None:
        given.update(settings)
        raise RuntimeError("that is all")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    with pytest.raises(ConfigurationError, match="that is all"):
        RayCluster(
            ClusterSettings(address="local", workers=workers, gpus=gpus),
            partial(open_group_runner, parse_config({}, "test")),
        )
    assert given["num_gpus"] == wanted
