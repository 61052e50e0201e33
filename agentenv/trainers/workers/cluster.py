"""Workers of a Ray cluster: each is an actor that plays with a policy and an environment of its own.

Weights go to them through Ray's object store, laid down once a version. The learner's machine is a node of the cluster, and
every node has this package, the policy's folder and the questions where the configuration says.
"""

import asyncio
import logging
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.trajectory import Trajectory
from agentenv.errors import AgentEnvError, ConfigurationError, WorkerLost, first_line, needs_extra
from agentenv.trainers.config.sections import ClusterSettings
from agentenv.trainers.workers import ray_guard
from agentenv.trainers.workers.inflight import InflightGroup
from agentenv.trainers.workers.worker_pool import Weights

if TYPE_CHECKING:
    from agentenv.trainers.workers.group_runner import GroupRunner

_CLOSE_S = 20.0
_RAY_PARTS = 10_000
"""Parts of a GPU that Ray tells apart."""


class RolloutActor:
    """What runs on a worker; its methods run on one event loop, in any number at a time."""

    def __init__(self, opened: "Callable[[], GroupRunner]") -> None:
        self._opened = opened
        self._runner: GroupRunner | None = None
        self._version = -1
        self._weights_lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Opens policy and environment."""
        self._runner = self._opened()

    async def play(
        self, order: Mapping[str, Any], version: int, weights: Mapping[str, Any]
    ) -> tuple[list[Trajectory], dict[str, Any]]:
        """See ``worker_pool.Worker``; an engine that died takes the worker with it."""
        task = asyncio.current_task()
        assert self._runner is not None
        assert task is not None
        self._running.add(task)
        try:
            await self.load_weights(version, weights)
            inflight = InflightGroup.of(order, self._runner.policy)
            deterministic_batcher = DeterministicBatcher() if self._runner.rollout.deterministic else None
            return await self._runner.play(inflight, deterministic_batcher), inflight.policy.state_dict()
        finally:
            self._running.discard(task)
            if self._runner.policy.broken:  # what it failed at is to be played elsewhere
                raise WorkerLost("an engine of the worker died")

    async def load_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Exchanges the weights of the policy for these, unless it has them or later ones."""
        import torch

        assert self._runner is not None
        async with self._weights_lock:
            # A group may carry newer weights than an order to load that comes after it, which must not bring back the
            # older ones.
            if version > self._version:
                # Copies, because arrays in the object store are read-only and shared by the workers of a node.
                tensors = {name: torch.tensor(value) for name, value in weights.items()}
                await asyncio.to_thread(self._runner.policy.set_weights, tensors, version)
                self._version = version

    async def close(self) -> None:
        """Ends the episodes under way, whose environments close, and the policy."""
        # A copy, because a task takes itself out of the set as it ends.
        under_way = list(self._running)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        if self._runner is not None:
            self._runner.policy.close()


class RayWorker:
    """A worker that is an actor of Ray."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.ready = False

    async def open(self) -> None:
        """Waits for the actor, which waits for room in the cluster."""
        await _answer(self.actor.open.remote())
        self.ready = True

    async def play(
        self, order: Mapping[str, Any], weights: Weights
    ) -> tuple[list[Trajectory], dict[str, Any]]:
        """Lets the actor play a group."""
        played: tuple[list[Trajectory], dict[str, Any]]
        played = await _answer(self.actor.play.remote(order, weights.version, weights.handle))
        return played

    def load_weights(self, weights: Weights) -> None:
        """Sends new weights."""
        self.actor.load_weights.remote(weights.version, weights.handle)

    def end(self) -> None:
        """Kills the actor; engines and jails end with it."""
        import ray

        self.ready = False
        ray.kill(self.actor)


class RayCluster:
    """A connection to Ray; close it."""

    def __init__(self, settings: ClusterSettings, opened: "Callable[[], GroupRunner]") -> None:
        """Connects to the cluster at ``settings.address``, or starts one of this machine where that is ``local``.

        Args:
            settings: Where, and what a worker takes.
            opened: What opens the player of a worker, there.

        Raises:
            MissingExtra: Ray is not installed.
            ConfigurationError: no cluster answers.
        """
        self._settings, self._opened = settings, opened
        self._workers: list[RayWorker] = []
        session = _connect(settings)
        self._guard = _guard_of(session) if settings.address == "local" else None

    def put(self, weights: Mapping[str, Any]) -> Any:
        """Lays the arrays of ``weights`` (tensors by name) down in the object store."""
        import ray

        return ray.put({name: _as_array(value) for name, value in weights.items()})

    def worker(self) -> RayWorker:
        """A new actor, on the node with the fewest where there is a choice."""
        import ray

        settings = self._settings
        actor = ray.remote(
            num_cpus=settings.cpus, num_gpus=settings.gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )(RolloutActor)
        made = RayWorker(actor.remote(self._opened))
        self._workers.append(made)
        return made

    def close(self) -> None:
        """Asks the actors to close, ends them and leaves the cluster; one that was started here ends."""
        import ray

        # Both the run and its setting up may close, and the connection is closed once.
        if not ray.is_initialized():
            return
        try:
            closing = [worker.actor.close.remote() for worker in self._workers if worker.ready]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
            for worker in self._workers:
                worker.end()
        finally:
            ray.shutdown()
            if self._guard is not None:
                with suppress(subprocess.TimeoutExpired):
                    self._guard.communicate(timeout=_CLOSE_S)  # it ends what the cluster has left


def _as_array(value: Any) -> Any:
    """A tensor as an array; numpy has no bfloat16, whose numbers float32 holds without rounding."""
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).detach().cpu().numpy()


async def _answer(reference: Any) -> Any:
    """What an actor answers.

    Raises:
        WorkerLost: there is no actor any more, or what it answered was lost with its node.
        AgentEnvError: what it raised.
    """
    from ray.exceptions import RayError, RayTaskError

    try:
        return await reference
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else None
        # Without the wrapping of Ray: an error of a worker is to read like one of this process.
        if isinstance(cause, AgentEnvError):
            raise cause from None
        if cause is not None and not isinstance(cause, RayError):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise WorkerLost(f"{type(error).__name__}: {reason}") from error


def _guard_of(session: Path) -> "subprocess.Popen[bytes] | None":
    """The process that ends what a cluster of this machine leaves behind when this one is gone; None but on Linux."""
    if sys.platform != "linux":
        return None
    # Isolated and without `site`: a process that waits for as long as the run does is to be small. In a session of
    # its own a signal to the run's terminal does not reach it.
    command = [sys.executable, "-I", "-S", ray_guard.__file__, str(session), str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _gpus(workers: int, each: float) -> int:
    """GPUs on which so many workers find room; the part of a GPU that one takes is always of a single GPU."""
    whole, part = divmod(round(each * _RAY_PARTS), _RAY_PARTS)
    return workers * whole + (math.ceil(workers / (_RAY_PARTS // part)) if part else 0)


def _connect(settings: ClusterSettings) -> Path:
    """Connects to Ray; returns the folder of the session."""
    with needs_extra("cluster"):
        import ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray starts workers with niceness 15. The run waits for their episodes, so whatever else computes on the machine would
    # hold it up, and an engine that starts in one could miss its deadline.
    os.environ.setdefault("RAY_worker_niceness", "0")
    here: dict[str, Any] = {"address": settings.address}
    if settings.address == "local":
        # As many as the workers ask for, whatever the machine has: the last of them would wait for room in vain
        # otherwise.
        here |= {"num_cpus": math.ceil(settings.workers * settings.cpus)}
        here |= {"num_gpus": _gpus(settings.workers, settings.gpus)}
        here |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Ray about its own future
            context = ray.init(log_to_driver=False, logging_level=logging.ERROR, **here)
    except Exception as error:  # a node that is late raises no kind of its own
        raise ConfigurationError(
            f"no Ray cluster can be used at {settings.address}: {first_line(error)}"
        ) from error
    return Path(str(context.address_info["session_dir"]))
