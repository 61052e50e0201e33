"""What a rollout strategy plays on: policy, chat format, budgets, and the slots of the step's deterministic batcher.

A *slot* is the place of one live episode in a step. Batches are formed by slot and only when every live slot waits on one,
so which slots are live must never depend on time:

- A strategy enters slots at its beginning, all of them in ``gather_all``, or from inside a slot that is live: between two
  waits of that one, no batch runs. Tasks that are started there get a turn (``asyncio.sleep(0)``) to enter theirs before
  that one waits or leaves.
- What plays one after the other (base, reflection, retry) does so inside one slot.
- Inside a slot nothing is awaited but policy and environment, never another slot. So workers that are fewer than the
  slots can be handed from slot to slot: a slot waits for a worker when it is entered, and keeps it until it is left.
- What depends on the outcomes of all slots is played by ``run_rounds``.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.concurrency.tasks import gather_all, task_group
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import EpisodeSpec, EpisodeState, RolloutConfig, open_episode, run_episode
from agentenv.core.trajectory import Trajectory

T = TypeVar("T")
Round = Callable[[int], Awaitable[T]]
"""What is played in a slot, by its place."""


@dataclass(frozen=True)
class RolloutContext:
    """What the episodes of one group are played with. A group of n starts has the slots 0 to n - 1."""

    policy: Policy
    chat: ChatFormat
    config: RolloutConfig
    decode: Callable[[Sequence[int]], str]
    """Text of a run of token ids."""
    name: str = "e"
    """Prefix of the episode ids; equal names and seeds give equal records."""
    first: int = 0
    """The number in the step of the group's first slot."""
    deterministic_batcher: DeterministicBatcher | None = None
    """None forms batches by arrival."""
    role_policies: Mapping[str, Policy] = field(default_factory=dict)
    """Policies of the roles of a game that have weights of their own."""
    step: int = 0
    """The training step; 0 where there is none."""
    temperatures: tuple[float, ...] = ()
    """Temperatures of the turns of a tree's window in this step; none are those of its configuration."""
    worker: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Waits for an environment worker and holds it; by default there is one for every slot."""

    def episode(self, place: int) -> str:
        """The episode id that belongs to the group's slot ``place``; a trajectory of a group has one of these."""
        return f"{self.name}-{self.first + place}"

    def with_settings(self, **settings: object) -> Self:
        """This context with other ``settings`` of its configuration, such as ``temperature``."""
        return replace(self, config=self.config.model_copy(update=settings))

    async def open(self, spec: EpisodeSpec, episode: str) -> EpisodeState:
        """`open_episode` with what the group is played with."""
        return await open_episode(spec, self.policy, self.chat, self.config, episode=episode)

    async def run(self, spec: EpisodeSpec, episode: str) -> Trajectory:
        """`run_episode` with what the group is played with."""
        return await run_episode(spec, self.policy, self.chat, self.config, episode=episode)

    @asynccontextmanager
    async def slot(self, place: int) -> AsyncIterator[None]:
        """Makes the running task the live episode of slot ``place``, on a worker; waits only where every worker is taken.

        Raises:
            ConfigurationError: the slot is taken.
        """
        async with self.worker():
            with (
                nullcontext()
                if self.deterministic_batcher is None
                else self.deterministic_batcher.episode(self.first + place)
            ):
                yield


async def play_alone(spec: EpisodeSpec, context: RolloutContext, place: int) -> list[Trajectory]:
    """One episode in slot ``place``, and nothing that follows from it."""
    async with context.slot(place):
        return [await context.run(spec, context.episode(place))]


async def gather_slots(
    specs: Sequence[EpisodeSpec],
    context: RolloutContext,
    play: Callable[[EpisodeState], Awaitable[Trajectory]],
) -> list[Trajectory]:
    """One trajectory for each start, in their order: each in its slot, its cache released at the end.

    Args:
        specs: Of one group.
        context: Whose slots.
        play: Plays an opened episode to its end.
    """

    async def alone(place: int, spec: EpisodeSpec) -> Trajectory:
        async with context.slot(place):
            episode = context.episode(place)
            state = await context.open(spec, episode)
            try:
                return await play(state)
            finally:
                context.policy.release(episode)

    return await gather_all(alone(place, spec) for place, spec in enumerate(specs))


async def run_rounds(
    context: RolloutContext, slots: int, first: Round[T], then: Callable[[list[list[T]]], Round[T] | None]
) -> list[list[T]]:
    """Plays one round after another, each in the slots 0 to ``slots`` - 1; what comes next depends on all that came before.

    The slot that ends last opens the next round before it leaves, so that no batch is formed in between and which slots
    are live does not depend on time.

    Args:
        context: Whose slots.
        slots: Number of slots.
        first: Plays the first round.
        then: Gets the results of all rounds so far and returns the next round, or None to end.

    Returns:
        The results of each round, by slot.

    Raises:
        Exception: the first error that a round raised.
    """
    rounds: list[list[T]] = []

    async def slot(place: int, play: Round[T], done: dict[int, T]) -> None:
        async with context.slot(place):
            while True:
                done[place] = await play(place)
                if len(done) < slots:
                    return
                rounds.append([done[other] for other in range(slots)])
                following = then(rounds)
                if following is None:
                    return
                play, done = following, {}
                for other in range(slots):
                    if other != place:
                        group.create_task(slot(other, play, done))
                await asyncio.sleep(0)  # the others take their slots

    begun: dict[int, T] = {}
    async with task_group() as group:
        for place in range(slots):
            group.create_task(slot(place, first, begun))
    return rounds
