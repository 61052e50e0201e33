"""The episodes of a training run: played in an event loop of their own, ahead of the learner, and handed out by batches.

``docs/asynchronous.md`` has the rules. Groups are drawn batch by batch. With a staleness bound of s, those of step k may
begin as soon as the learner has made step k - 1 - s: the capacity rule of AReaL (Fu et al. 2025, eq. 3), counted in batches.
The learner takes the groups that are complete first. With s = 0 a step is its own groups, all of them: synchronous training.

An episode under way goes on through an update by its token ids: the turns to come are sampled by the new weights, and every
token keeps the version of those that sampled it (partial rollouts; APRIL, Zhou et al. 2025, resumes from text).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any

import numpy as np

from agentenv.core.concurrency.background import BackgroundLoop
from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.concurrency.signals import Interrupted
from agentenv.core.env_calls import abandoned
from agentenv.core.env_lifecycle import reasons_of
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.errors import Fault
from agentenv.policies.lora import trained_state
from agentenv.trainers.config.sections import RolloutSettings
from agentenv.trainers.run_folder.folder import TrainedPolicy
from agentenv.trainers.strategies.branch_windows import EntropyTemperatures
from agentenv.trainers.strategies.strategies import by_group
from agentenv.trainers.task_sampling.samplers import (
    Batch,
    Group,
    StepBudget,
    TaskDraw,
    TaskSampler,
    collect,
)
from agentenv.trainers.task_sampling.set_mixture import SetMixture
from agentenv.trainers.workers.group_runner import GroupRunner
from agentenv.trainers.workers.inflight import InflightGroup, choose_batch
from agentenv.trainers.workers.recorded_policy import RecordedPolicy
from agentenv.trainers.workers.start_limit import StartLimit
from agentenv.trainers.workers.worker_pool import WorkerPool


class RolloutScheduler:
    """Plays the groups that ``sampler`` draws. Its methods are for one thread, which is not the loop's own."""

    def __init__(
        self,
        runner: GroupRunner | WorkerPool,
        policy: TrainedPolicy,
        sampler: TaskSampler,
        tasks: Sequence[Task],
        rollout: RolloutSettings,
        *,
        seed: int,
        steps: int,
        staleness: int,
        concurrent: int,
        abort: bool = False,
        temperatures: EntropyTemperatures | None = None,
        mixture: SetMixture | None = None,
    ) -> None:
        """Prepares; nothing runs before the first batch is asked for.

        Args:
            runner: Plays a group, in this process or elsewhere.
            policy: The policy that acts.
            sampler: Decides what is played and what is trained.
            tasks: What there is to play.
            rollout: The size of a step, and whether batches are formed by episode index.
            seed: Of the draws and of the episodes.
            steps: Of the run.
            staleness: Versions that the weights may have moved on until an episode is trained; 0 is synchronous.
            concurrent: Groups under way at once; with ``abort`` also those that one step begins.
            abort: Whether groups that a batch leaves are stopped until the next one.
            temperatures: Those of a tree's window, where they follow the entropy.
            mixture: How many tasks come from each of several sets, where they have weights.
        """
        self.staleness = staleness
        self._abort, self._temperatures = abort, temperatures
        self._runner, self._policy, self._sampler = runner, policy, sampler
        self._tasks, self._rollout, self._mixture = tasks, rollout, mixture
        self._seed, self._steps = seed, steps
        self._worker_pool = runner if isinstance(runner, WorkerPool) else None
        self._loop = BackgroundLoop()
        self._slots, self._concurrent = asyncio.Semaphore(concurrent), concurrent
        self._starts = StartLimit(concurrent) if abort else None
        self._inflight: list[InflightGroup] = []
        self._opened: dict[int, tuple[StepBudget, int]] = {}  # with the groups of their first round
        self._last = 0  # the last step that was opened

    def batch(self, step: int, waiting: Callable[[], AbstractContextManager[None]] = nullcontext) -> Batch:
        """The groups to train in ``step``; with a staleness of 0 they are played now.

        Draws and seeds depend on the step and on what the sampler has learned, which checkpoints hold: a resumed run
        repeats them.

        Args:
            step: The number of the step.
            waiting: Within this block nothing is done but wait for episodes; it may raise ``Interrupted``.

        Raises:
            Fault: every episode met an infrastructure failure.
            Interrupted: ``waiting`` was; what was drawn is not lost.
            ConfigurationError: what a strategy, the environment or the sampler cannot do.
        """
        self.sync_weights()
        # Groups that the last batch stopped go on first: they are the oldest, and the bound on staleness counts from them.
        self._start([inflight for inflight in self._inflight if inflight.task is None])
        last = min(step + self.staleness, self._steps)
        for ahead in range(max(self._last + 1, step), last + 1):
            self._open(ahead)
        counts = [self._opened[ahead][1] for ahead in range(step, last + 1)]
        self._loop.run(self._allow(counts[0]))
        drawn = _plain(*self._opened[step])
        # Taken before the wait, because whatever is collected afterwards has changed both.
        inflight, learned = [*self._inflight], self._sampler.state_dict()
        try:
            with waiting():
                return self._batch(step, counts)
        except (Exception, Interrupted):
            # A checkpoint that is made now begins the step again, so what is drawn is not lost.
            self._sampler.load_state_dict(learned)
            self._inflight, self._opened[step] = inflight, self._reopened(step, drawn)
            raise

    async def _allow(self, groups: int) -> None:
        """Lets a step begin as many groups as it trains, also where fewer may be under way at once."""
        if self._starts is not None:
            self._starts.raise_to(groups)

    def sync_weights(self) -> None:
        """Hands the policy's weights to those who play elsewhere, where they have changed."""
        if self._worker_pool is not None and self._worker_pool.version != self._policy.version:
            # Adapters alone where there are some: the weights that nobody trains are at the workers already.
            weights = trained_state(self._policy.model)
            self._loop.run(self._worker_pool.set_weights(self._policy.version, weights))

    def _batch(self, step: int, counts: Sequence[int]) -> Batch:
        version = self._policy.version
        taken = self._take(
            lambda: choose_batch(self._inflight, counts, version=version, staleness=self.staleness),
            self._starts,
        )
        step_budget, _ = self._opened.pop(step)
        step_budget.groups = [inflight.group for inflight in taken]
        batch = collect(self._sampler, step_budget, self._play_round)
        played = [trajectory for group in batch.played for trajectory in group]
        if not any(trajectory.valid for trajectory in played):
            raise Fault(f"every episode of step {step} met an infrastructure failure: {reasons_of(played)}")
        metrics = batch.metrics | (self._metrics(played) if self.staleness else {})
        if self._abort:
            metrics["aborted_groups"] = self._stop_incomplete()
        if self._temperatures is not None:
            self._temperatures.learn(played)
            metrics |= self._temperatures.metrics
        # Calls of environments that were given up hold a thread each; readers of the metrics should see them add up.
        if hung := abandoned():
            metrics["hung_calls"] = hung
        return replace(
            batch,
            played=by_group(played),
            trained=by_group(chain.from_iterable(batch.trained)),
            metrics=metrics | (self._loop.run(self._worker_pool.metrics()) if self._worker_pool else {}),
        )

    def _open(self, step: int) -> None:
        """Draws the first round of ``step``; its groups begin as soon as there is room."""
        step_budget = self._step_budget(step)
        draws = self._sampler.draw(step_budget)
        count = len(self._submit(draws, step_budget.reserve(draws), step_budget))
        step_budget.rounds = min(count, 1)
        self._opened[step] = step_budget, count
        self._last = step

    def _step_budget(self, step: int) -> StepBudget:
        return StepBudget(
            step=step,
            tasks=self._tasks,
            rng=np.random.default_rng([self._seed, step]),
            questions=self._rollout.questions,
            group_size=self._rollout.group_size,
            mixture=self._mixture,
        )

    def _play_round(
        self, draws: Sequence[TaskDraw], groups: Sequence[Group], step_budget: StepBudget
    ) -> list[list[Trajectory]]:
        """The episodes of a later round, for each draw its own; they are waited for."""
        round_groups = self._submit(draws, groups, step_budget, at_once=True)
        self._take(
            lambda: None if any(inflight.members is None for inflight in round_groups) else round_groups
        )
        return [[] for _ in round_groups]  # they are with their groups already

    def _submit(
        self,
        draws: Sequence[TaskDraw],
        groups: Sequence[Group],
        step_budget: StepBudget,
        *,
        at_once: bool = False,
    ) -> list[InflightGroup]:
        """Lets the episodes of a round begin, in this order; ``at_once`` whatever the step has begun so far."""
        first = step_budget.reserved - sum(draw.rollouts for draw in draws)
        # Slots follow the order of the draws and not that of the ends, so that batches by slot repeat.
        slots = accumulate((draw.rollouts for draw in draws), initial=first)
        round_groups = [
            InflightGroup(
                step=step_budget.step,
                draw=self._tempered(draw),
                group=group,
                slot=slot,
                # Drawn here and not when the group begins: when it begins depends on time.
                seeds=[int(step_budget.rng.integers(1 << 31)) for _ in range(draw.rollouts)],
                policy=RecordedPolicy(self._policy),
            )
            for draw, group, slot in zip(draws, groups, slots, strict=False)
        ]
        self._begin(round_groups, at_once=at_once)
        return round_groups

    def _tempered(self, draw: TaskDraw) -> TaskDraw:
        return (
            draw
            if self._temperatures is None
            else replace(draw, temperatures=self._temperatures.temperatures)
        )

    def _begin(self, round_groups: Sequence[InflightGroup], *, at_once: bool = False) -> None:
        self._inflight += round_groups
        self._start(round_groups, at_once=at_once)

    def _start(self, round_groups: Sequence[InflightGroup], *, at_once: bool = False) -> None:
        deterministic_batcher = DeterministicBatcher() if self._rollout.deterministic else None
        limit = None if at_once else self._starts

        # Within the loop, because a task belongs to the loop that runs when it is created.
        async def start() -> None:
            for inflight in round_groups:
                inflight.task = asyncio.create_task(self._play(inflight, deterministic_batcher, limit))

        self._loop.run(start())

    def _stop_incomplete(self) -> int:
        """Stops the groups under way that are not complete, and makes them ready to go on; how many had begun.

        A group goes on as one does after an interruption of the run: it comes to where it stood by the answers of the policy
        that it had got.

        Raises:
            Fault: a group did not stop in time. It must not go on a second time beside itself.
        """
        open_groups = [p for p in self._inflight if p.task is not None and not p.task.done()]

        async def stop() -> list[InflightGroup]:
            tasks = [inflight.task for inflight in open_groups if inflight.task is not None]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=self._rollout.deadline_s)
            self._starts = StartLimit(self._concurrent)  # of the next step
            return [p for p in open_groups if p.task is not None and not p.task.done()]

        # A group that ignores its cancellation still asks the policy; beside a second run of it answers would be mixed.
        if late := self._loop.run(stop()):
            task = self._tasks[late[0].group.task].id
            raise Fault(
                f"{len(late)} of {len(open_groups)} groups that were cancelled still ran after "
                f"{self._rollout.deadline_s:g} s (rollout.deadline_s), first that of task {task!r} drawn for step "
                f"{late[0].step}: resume the run, which plays them on from what they have"
            )
        ready = {id(p): InflightGroup.of(p.state_dict(), self._policy) for p in open_groups}
        self._inflight = [ready.get(id(inflight), inflight) for inflight in self._inflight]
        return sum(inflight.start_version is not None for inflight in open_groups)

    async def _play(
        self,
        inflight: InflightGroup,
        deterministic_batcher: DeterministicBatcher | None,
        limit: StartLimit | None,
    ) -> list[Trajectory]:
        """The episodes of one group, once there is room for it and its step may begin it."""
        async with nullcontext() if limit is None else limit.group(), self._slots:
            return await self._runner.play(inflight, deterministic_batcher)

    def _take(
        self, choose: Callable[[], list[InflightGroup] | None], limit: StartLimit | None = None
    ) -> list[InflightGroup]:
        """Waits until ``choose`` gives groups and takes them out; their members are then in their groups."""

        async def wait() -> list[InflightGroup]:
            while (taken := choose()) is None:  # an error of a group ends the run there
                # Infrastructure failures have left no batch of what has begun, which others may still make.
                if limit is not None and limit.is_spent:
                    limit.extend(self._concurrent)
                running = [p.task for p in self._inflight if p.task is not None and p.members is None]
                # Only those without a result: a group that is complete and not chosen would end the wait at once, for ever.
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            return taken

        taken = self._loop.run(wait())
        for inflight in taken:
            inflight.group.members += inflight.members or []
        self._inflight = [inflight for inflight in self._inflight if inflight not in taken]
        return taken

    def _metrics(self, played: Sequence[Trajectory]) -> dict[str, float]:
        """How old what is trained is, in versions, and what is left under way."""
        ages = [self._policy.version - t.policy_version[t.loss_mask] for t in played if t.valid]
        of_all = np.concatenate(ages)
        return {
            "staleness_mean": float(of_all.mean()) if len(of_all) else 0.0,
            "staleness_max": int(of_all.max(initial=0)),
            "spanning_episodes": sum(len(np.unique(mine)) > 1 for mine in ages),
            "groups_under_way": sum(inflight.start_version is not None for inflight in self._inflight),
        }

    def state_dict(self) -> dict[str, Any]:
        """What is drawn and not trained, with every answer of the policy so far; between synchronous steps there is none."""

        async def snapshot() -> dict[str, Any]:
            led = {} if self._temperatures is None else {"temperatures": self._temperatures.state_dict()}
            return led | {
                "last": self._last,
                "opened": {
                    step: _plain(step_budget, count) for step, (step_budget, count) in self._opened.items()
                },
                "inflight": [inflight.state_dict() for inflight in self._inflight],
            }

        return self._loop.run(snapshot())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begins again what was under way: its episodes come to where they stood by the answers that they had got."""
        self.sync_weights()
        self._last = state.get("last", 0)
        if self._temperatures is not None:
            self._temperatures.load_state_dict(state.get("temperatures", {}))
        for step, plain in state.get("opened", {}).items():
            self._opened[step] = self._reopened(step, plain)
        self._begin([InflightGroup.of(plain, self._policy) for plain in state.get("inflight", ())])

    def _reopened(self, step: int, plain: Mapping[str, Any]) -> tuple[StepBudget, int]:
        step_budget = self._step_budget(step)
        step_budget.reserved, step_budget.rounds = plain["reserved"], plain["rounds"]
        step_budget.rng.bit_generator.state = plain["rng"]
        return step_budget, plain["groups"]

    def close(self) -> None:
        """Ends what is under way; environments are closed."""
        # The loop first, so that no coroutine asks a worker that has been ended.
        self._loop.close()
        if self._worker_pool is not None:
            self._worker_pool.close()
        for inflight in self._inflight:
            if inflight.task is not None and inflight.task.done() and not inflight.task.cancelled():
                inflight.task.exception()  # the first error ended the run; asyncio would print the others


def _plain(step_budget: StepBudget, groups: int) -> dict[str, Any]:
    rng = step_budget.rng.bit_generator.state
    return {"reserved": step_budget.reserved, "rounds": step_budget.rounds, "rng": rng, "groups": groups}
