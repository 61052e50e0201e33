"""What a rollout strategy plays on: policy, chat format, budgets, and the lanes of the step's lockstep.

A *lane* is the place of one live episode in a step. Batches are formed by lane and only when every live lane waits on one,
so which lanes are live must never depend on time:

- A strategy enters lanes at its beginning, all of them in ``together``, or from inside a lane that is live: between two
  waits of that one, no batch runs.
- What plays one after the other (base, reflection, retry) does so inside one lane.
- Inside a lane nothing is awaited but policy and environment, never another lane.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agentenv.core.batching import Lockstep
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import RolloutConfig


@dataclass(frozen=True)
class Stage:
    """What the episodes of one group are played with. A group of n starts has the lanes 0 to n - 1."""

    policy: Policy
    chat: ChatFormat
    config: RolloutConfig
    decode: Callable[[Sequence[int]], str]
    """Text of a run of token ids."""
    name: str = "e"
    """Prefix of the episode ids; equal names and seeds give equal records."""
    first: int = 0
    """The number in the step of the group's first lane."""
    lockstep: Lockstep | None = None
    """None forms batches by arrival."""

    def episode(self, place: int) -> str:
        """The episode id that belongs to the group's lane ``place``; a trajectory of a group has one of these."""
        return f"{self.name}-{self.first + place}"

    @contextmanager
    def lane(self, place: int) -> Iterator[None]:
        """Makes the running task the live episode of lane ``place``.

        Raises:
            ConfigurationError: the lane is taken.
        """
        if self.lockstep is None:
            yield
            return
        with self.lockstep.episode(self.first + place):
            yield
