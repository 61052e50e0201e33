"""Retries that follow advice: from these a small policy learns to read guidance in its context, as R3L's retries need it.

The policy plays every training task. Where it fails, a verifier finds the turn that went wrong, the episode goes back there,
its advice is put into the context, and the expert goes on. Only what the expert does is imitated.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import takewhile

from agentenv.core.concurrency.tasks import gather_all, run_to_completion
from agentenv.core.env_lifecycle import open_envs
from agentenv.core.rollout import EpisodeSpec, play
from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import Task
from agentenv.errors import UnknownName
from agentenv.evaluation.task_env import TaskEnv
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.credit.step_selection import without_turns
from agentenv.trainers.strategies.demonstrations import expert_actions, spell
from agentenv.trainers.strategies.guidance import guide, reopened
from agentenv.trainers.strategies.retry import play_marked
from agentenv.trainers.strategies.rewind import Rewinder
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.step_verifiers import VERIFIERS, Flaw, Verifier, find_verifier
from agentenv.trainers.warmstart.expert_pool import found_documents, found_its_sources, open_expert_run

_AT_ONCE = 32  # episodes


def advised_episodes(config: TrainConfig, advisor: str) -> list[Trajectory]:
    """What the expert does after advice on failures of the policy of ``config``, on the training tasks of that run.

    The advice stands in the trajectories as an injected segment, and the turns before it are not to be learned.

    Args:
        config: The run.
        advisor: A row of ``VERIFIERS``, or ``process:FILE``.

    Raises:
        UnknownName: no such verifier.
        ConfigurationError: the environment has no expert, or the verifier cannot judge these tasks.
    """
    verifier = find_verifier(advisor)
    if verifier is None:
        raise UnknownName.among("verifier", advisor, VERIFIERS)
    task_env, context = open_expert_run(config, "advised")
    places = range(len(task_env.source.tasks))
    chunks = (places[first : first + _AT_ONCE] for first in places[::_AT_ONCE])
    return [
        one for chunk in chunks for one in run_to_completion(_play_all(task_env, context, verifier, chunk))
    ]


async def _play_all(
    task_env: TaskEnv, context: RolloutContext, verifier: Verifier, places: Sequence[int]
) -> list[Trajectory]:
    found = await gather_all(_play(task_env, context, verifier, place) for place in places)
    return [one for one in found if one is not None]


async def _play(
    task_env: TaskEnv, context: RolloutContext, verifier: Verifier, place: int
) -> Trajectory | None:
    """The expert's retry of one task; None where the policy did not fail there or the expert cannot mend it."""
    async with attempted(task_env, context, verifier, place) as attempt:
        return await _mended(attempt, context) if attempt.flaw else None


@dataclass(frozen=True)
class Attempt:
    """An episode of the policy, and what it takes to go on from the turn where it went wrong."""

    base: Trajectory
    flaw: Flaw | None
    """None where the episode earned the full reward, met an infrastructure failure, or has no flaw."""
    spec: EpisodeSpec
    rewinder: Rewinder


@asynccontextmanager
async def attempted(
    task_env: TaskEnv, context: RolloutContext, verifier: Verifier, place: int
) -> AsyncIterator[Attempt]:
    """The policy's episode on the task at ``place``, whose environment is closed when the block ends.

    Raises:
        Fault: the verifier failed.
    """
    async with open_envs([task_env.make_env], context.config.deadline_s) as (env,):
        spec = EpisodeSpec(env, task_env.source.tasks[place], seed=place)
        rewinder, episode = Rewinder(spec, context.config), f"{context.name}-{place}"
        try:
            base = await play_marked(spec, rewinder, context, episode)
            failed = base.valid and base.reward < env.reward_ceiling
            flaw = await verifier.first_flaw(base, env.reward_ceiling) if failed else None
            yield Attempt(base, flaw, spec, rewinder)
        finally:
            context.policy.release(episode)
            await rewinder.release()


async def _mended(attempt: Attempt, context: RolloutContext) -> Trajectory | None:
    """The episode up to its flaw, the advice, and what is left for the expert to do from there; None where that fails."""
    base, flaw, spec = attempt.base, attempt.flaw, attempt.spec
    assert flaw is not None
    whole = await spell(spec, context, expert_actions)
    state = reopened(base, flaw.turn, spec)
    actions = [turn.action for turn in whole.turns[_done(whole.turns, state.turns, spec.task) :]]
    await attempt.rewinder.back_to(state)
    guide(state, context.chat, flaw.advice)
    script = ScriptedPolicy({base.id: actions}, getattr(context.policy, "tokenizer", None))
    retry = await play(state, script, context.chat, context.config)
    good = retry.valid and retry.reward >= spec.env.reward_ceiling and found_its_sources(retry, searched=True)
    return without_turns(retry, range(flaw.turn)) if good else None


def _done(expert: Sequence[Turn], turns: Sequence[Turn], task: Task) -> int:
    """How many of the expert's first turns need not be taken after ``turns``, which found what they would find."""
    needed = set(task.data.get("supporting_ids", ()))
    known = found_documents(turns)
    of_each = (found_documents([turn]) & needed for turn in expert)
    return sum(1 for _ in takewhile(lambda found: found and found <= known, of_each))
