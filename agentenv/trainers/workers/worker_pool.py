"""A pool of workers elsewhere that play groups for the learner; lost ones are replaced, and their groups played anew.

It knows nothing of how workers are reached; ``cluster.py`` has those of Ray. A group is awaited from the worker that has it
and from nobody else, and what a worker that was given up still delivers is dropped: so every group is delivered once.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.trajectory import Trajectory
from agentenv.errors import Fault, WorkerLost
from agentenv.trainers.workers.inflight import InflightGroup
from agentenv.trainers.workers.recorded_policy import RecordedPolicy

_TRIES = 5
_PAUSE_S = 1.0


class Weights(NamedTuple):
    """One version of what is trained, where every worker can read it."""

    version: int
    handle: Any


class Worker(Protocol):
    """A worker that plays groups. Each coroutine raises ``WorkerLost`` where the worker or its machine is gone."""

    async def open(self) -> None:
        """Waits until the worker is up.

        Raises:
            AgentEnvError: it cannot play as it is configured.
        """

    async def play(
        self, order: Mapping[str, Any], weights: Weights
    ) -> tuple[list[Trajectory], dict[str, Any]]:
        """The episodes of a group, and the policy's answers in them.

        Args:
            order: What ``InflightGroup.state_dict`` gives.
            weights: Taken up first where the worker has older ones.
        """

    def load_weights(self, weights: Weights) -> None:
        """Lets the worker take up new weights; nobody waits for it."""

    def end(self) -> None:
        """Ends the worker at once."""


class Cluster(Protocol):
    """Starts workers, and hands them weights."""

    def put(self, weights: Mapping[str, Any]) -> Any:
        """Lays weights down for all workers; what is returned stands for them."""

    def worker(self) -> Worker:
        """A new worker, on its way up."""

    def close(self) -> None:
        """Lets the workers close what they hold, and ends them."""


@dataclass(eq=False)
class _WorkerSlot:
    """The place of one worker."""

    worker: Worker
    ready: bool = False
    groups: int = 0
    """Groups that it has."""
    overdue: bool = False
    """Whether it was given up because a group of it took too long."""


class _Overdue(WorkerLost):
    """A worker was given up because the group whose ``play`` gets this took too long."""


class WorkerPool:
    """Gives groups to workers. Its coroutines belong to one event loop."""

    def __init__(self, cluster: Cluster, workers: int, *, start_s: float, deadline_s: float) -> None:
        """Prepares; workers begin with the first weights.

        Args:
            cluster: Where workers come from.
            workers: How many there should be.
            start_s: Seconds in which a worker must be up, and for which a group waits where none is.
            deadline_s: Seconds that a worker may take for one group.
        """
        self.version = -1
        """Version of the weights with which a group would begin now."""
        self._cluster, self._size = cluster, workers
        self._start_s, self._deadline_s = start_s, deadline_s
        self._weights = Weights(-1, None)
        self._slots: list[_WorkerSlot] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._refusal: Exception | None = None
        self._last_error = "none has come up yet"
        self._lost_workers = self._lost_episodes = 0

    async def set_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Hands new weights to every worker; episodes under way go on with them."""
        # In a thread: to copy gigabytes would stop the loop, and with it every group that waits for an answer.
        handle = await asyncio.to_thread(self._cluster.put, weights)
        self._weights, self.version = Weights(version, handle), version
        while len(self._slots) < self._size:
            self._start_worker()
        # A worker that is still starting gets the newest weights with its first group.
        for slot in self._slots:
            if slot.ready:
                slot.worker.load_weights(self._weights)

    async def play(
        self, inflight: InflightGroup, deterministic_batcher: DeterministicBatcher | None
    ) -> list[Trajectory]:
        """The episodes of one group, from a worker that lived to deliver them.

        Args:
            inflight: The group; it keeps the answers of the policy.
            deterministic_batcher: That of the group's round, which ends at the walls of a process: a worker forms batches
                within a group.

        Raises:
            Fault: no worker came up in time, or every one that had the group was lost; one that was given up because of
                another group does not count.
            AgentEnvError: what the worker raised.
        """
        tries = 0
        while tries < _TRIES:
            slot = await self._least_busy()
            inflight.start_version = (
                self.version if inflight.start_version is None else inflight.start_version
            )
            slot.groups += 1
            try:
                # The order carries the answers that the group has, so that another worker goes on from there.
                members, answers = await self._play_on(slot.worker, inflight)
            except WorkerLost as error:
                self._lost_episodes += len(inflight.seeds)
                tries += isinstance(error, _Overdue) or not slot.overdue
                slot.overdue |= isinstance(error, _Overdue)
                self._replace(slot, error)
            else:
                inflight.policy = RecordedPolicy(inflight.policy.policy, answers)
                return members
            # Also where the group was cancelled: a slot that counts it for ever would get no other.
            finally:
                slot.groups -= 1
        raise Fault(f"{_TRIES} workers in turn were lost over one group; the last: {self._last_error}")

    async def metrics(self) -> dict[str, float]:
        """Workers that are up, and what was lost since this was last asked."""
        found: dict[str, float] = {
            "workers": sum(slot.ready for slot in self._slots),
            "lost_workers": self._lost_workers,
            "lost_episodes": self._lost_episodes,
        }
        self._lost_workers = self._lost_episodes = 0
        return found

    def close(self) -> None:
        """Ends the workers; not before the event loop has ended."""
        self._cluster.close()

    async def _play_on(
        self, worker: Worker, inflight: InflightGroup
    ) -> tuple[list[Trajectory], dict[str, Any]]:
        try:
            async with asyncio.timeout(self._deadline_s) as deadline:
                return await worker.play(inflight.state_dict(), self._weights)
        except TimeoutError as error:
            if not deadline.expired():  # the worker itself raised it
                raise
            raise _Overdue(f"a worker took longer than {self._deadline_s:g} s for a group") from error

    async def _least_busy(self) -> _WorkerSlot:
        """The worker with the fewest groups; waits where none is up."""
        try:
            async with asyncio.timeout(self._start_s), self._changed:
                await self._changed.wait_for(lambda: self._refusal or any(slot.ready for slot in self._slots))
        except TimeoutError as error:
            reason = f"no worker of the cluster was up for {self._start_s:g} s; the last: {self._last_error}"
            raise Fault(reason) from error
        if self._refusal is not None:
            raise self._refusal
        # The first of equal ones, which keeps the choice repeatable while no worker is lost.
        return min((slot for slot in self._slots if slot.ready), key=lambda slot: slot.groups)

    def _start_worker(self) -> None:
        slot = _WorkerSlot(self._cluster.worker())
        self._slots.append(slot)
        task = asyncio.create_task(self._wait_ready(slot))
        # The loop holds tasks weakly; one that nobody else holds may be collected while it waits.
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _wait_ready(self, slot: _WorkerSlot) -> None:
        """Waits until the worker of ``slot`` is up; one that is lost before, or late, makes room for another."""
        try:
            async with asyncio.timeout(self._start_s) as deadline:
                await slot.worker.open()
            slot.ready = True
        except Fault as error:
            # A worker that fails at once would otherwise be replaced in a busy loop.
            await asyncio.sleep(_PAUSE_S)
            self._replace(slot, error)
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                self._replace(slot, WorkerLost(f"a worker was not up within {self._start_s:g} s"))
            else:  # the same for every worker
                self._refusal = error
        async with self._changed:
            self._changed.notify_all()

    def _replace(self, slot: _WorkerSlot, error: Fault) -> None:
        """Another worker in the place of one that is lost; several groups may find that out."""
        if slot not in self._slots:
            return
        self._last_error = str(error)
        # One that never came up was no worker yet, and nothing was lost with it.
        self._lost_workers += slot.ready
        self._slots.remove(slot)
        slot.worker.end()
        self._start_worker()
