"""Plays the episodes of a group: the same code in the learner's process and in the workers of a cluster."""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.env_lifecycle import close_envs, close_quickly, make_envs, mask_trajectory
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import EpisodeSpec, EpisodeState
from agentenv.core.trajectory import Trajectory, from_record
from agentenv.core.types import EndReason
from agentenv.errors import ContextTooSmall, Fault
from agentenv.retrievers.mixed import at_progress
from agentenv.retrievers.simulation.lossy import LossyRetriever
from agentenv.trainers.config.sections import RolloutSettings
from agentenv.trainers.run_folder.folder import TrainedPolicy
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.splicing import rescore_logprobs
from agentenv.trainers.strategies.strategies import get_strategy
from agentenv.trainers.task_sampling.training_tasks import TrainedEnvironment, TrainingTasks
from agentenv.trainers.workers.inflight import InflightGroup
from agentenv.trainers.workers.segmented_policy import SegmentedPolicy


class GroupRunner:
    """Plays groups in the environments of their tasks with its policy, by the strategy of the run."""

    def __init__(
        self,
        rollout: RolloutSettings,
        policy: TrainedPolicy,
        chat: ChatFormat,
        training: TrainingTasks,
        *,
        seed: int,
        steps: int,
        rescore: bool = False,
        gate: Callable[[EpisodeState], bool] | None = None,
        role_policies: Mapping[str, Policy] | None = None,
    ) -> None:
        """Prepares; nothing runs before the first group.

        Args:
            rollout: The strategy, and how many environments play at once.
            policy: The policy that acts.
            chat: How messages become ids.
            training: The tasks, with their environments.
            seed: Of the run, which names its groups.
            steps: Of the run, over which a simulated search changes.
            rescore: Whether the policy scores again what was sampled under another context.
            gate: Asked after each turn whether an episode goes on.
            role_policies: The policies that act in some roles.
        """
        self.policy, self.rollout = policy, rollout
        self._chat, self._training, self._gate = chat, training, gate
        self._others = role_policies or {}
        self._seed, self._steps, self._rescore = seed, steps, rescore
        self._segment_tokens = rollout.segment_tokens
        self._strategy = get_strategy(rollout.strategy, rollout.strategy_options)
        self._workers = asyncio.Semaphore(rollout.workers or sys.maxsize)

    async def play(
        self, inflight: InflightGroup, deterministic_batcher: DeterministicBatcher | None
    ) -> list[Trajectory]:
        """The episodes of one group by the configured strategy, scored again where that is configured.

        Args:
            inflight: The group.
            deterministic_batcher: Forms batches by episode index; None forms them by arrival.

        Raises:
            ConfigurationError: what the strategy or the environment cannot do.
        """
        # How long environments take to be made depends on time, and which episodes are in a batch must not.
        ready = deterministic_batcher.hold() if deterministic_batcher is not None else lambda: None
        try:
            return await self._play(inflight, deterministic_batcher, ready)
        finally:
            ready()

    async def _play(
        self,
        inflight: InflightGroup,
        deterministic_batcher: DeterministicBatcher | None,
        ready: Callable[[], None],
    ) -> list[Trajectory]:
        """Does the work of ``play``; calls ``ready`` once the episodes take their slots."""
        environment = self._training.environment_at(inflight.group.task)
        settings = environment.settings
        specs = await self._specs(inflight, environment)
        policy: Policy = inflight.policy
        if self._segment_tokens:
            policy = SegmentedPolicy(policy, self._segment_tokens, self.policy.tokenizer.decode)
        context = RolloutContext(
            policy,
            self._chat,
            settings,
            self.policy.tokenizer.decode,
            name=f"step-{inflight.step}",
            first=inflight.slot,
            deterministic_batcher=deterministic_batcher,
            role_policies=self._others,
            step=inflight.step,
            temperatures=tuple(inflight.draw.temperatures),
            worker=partial(self._worker, inflight, ready),
        )
        envs, seconds = [spec.env for spec in specs], settings.deadline_s
        try:
            members = await self._strategy.play(specs, context)
        except BaseException:
            # A cancelled group must not wait for an environment that hangs; its error is the one to report.
            await close_quickly(envs, seconds)
            raise
        flaws = await close_envs(envs, seconds)
        members = with_flaws(members, {context.episode(i): flaw for i, flaw in enumerate(flaws) if flaw})
        if self._rescore:
            heat = settings.temperature
            members = [await _rescore(member, inflight.policy, heat) for member in members]
        return members

    @asynccontextmanager
    async def _worker(self, inflight: InflightGroup, ready: Callable[[], None]) -> AsyncIterator[None]:
        """A worker for one episode of ``inflight``; the group begins with the first that it gets."""
        ready()  # before the wait for a worker, which may be for one that waits for a batch
        async with self._workers:
            inflight.start_version = (
                self.policy.version if inflight.start_version is None else inflight.start_version
            )
            yield

    async def _specs(self, inflight: InflightGroup, environment: TrainedEnvironment) -> list[EpisodeSpec]:
        draw, group = inflight.draw, inflight.group
        # The id follows from what was drawn, so that a resumed run gives its groups the same ids.
        name = f"{self._seed}/{group.step}/{group.first}"
        group_id = str(uuid.uuid5(uuid.NAMESPACE_OID, name))
        retriever = environment.task_env.retriever
        if retriever is not None:
            retriever = at_progress(retriever, inflight.step / self._steps)
        if draw.noise:
            retriever = LossyRetriever(retriever or environment.task_env.searched, draw.noise)
        task_env = environment.task_env.varied(retriever=retriever, **draw.env)
        task = self._training.tasks[group.task]
        # Before there are environments, which nobody would close if the record cannot be read.
        prefix = from_record(draw.prefix, task) if draw.prefix else None
        envs = await make_envs([task_env.make_env] * len(inflight.seeds), environment.settings.deadline_s)
        seeded = zip(envs, inflight.seeds, strict=True)
        given = (group_id, self._gate, draw.guidance, prefix)
        return [EpisodeSpec(env, task, seed, *given) for env, seed in seeded]


async def _rescore(member: Trajectory, policy: Policy, temperature: float) -> Trajectory:
    """``rescore_logprobs``; what the engine fails at is masked."""
    try:
        return await rescore_logprobs(member, policy, temperature)
    except (Fault, ContextTooSmall) as error:
        said = f"{type(error).__name__}: {error}"
        return replace(member, valid=False, reward=0.0, end_reason=EndReason.POLICY_FAULT, error=said)


def with_flaws(members: Sequence[Trajectory], flaws: Mapping[str, str]) -> list[Trajectory]:
    """``members``, masked where their environment could not be closed.

    Args:
        members: Of one group.
        flaws: What went wrong, by the id of the episode that the slot of the environment is named after.
    """
    parents = {member.id: member.parent_id for member in members}

    def flaw(id: str | None) -> str:
        if id is None:
            return ""
        own = (text for name, text in flaws.items() if id == name or id.startswith(f"{name}-"))
        return next(own, "") or flaw(parents.get(id))

    return [mask_trajectory(member, flaw(member.id) or flaw(member.parent_id)) for member in members]
