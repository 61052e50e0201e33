"""Groups between their draw and their training, and which of them a batch takes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentenv.core.protocols import Policy
from agentenv.core.trajectory import Trajectory
from agentenv.trainers.journal import Journal
from agentenv.trainers.sampling import Draw, Group


@dataclass(eq=False, kw_only=True)
class Pending:
    """Episodes of one group that are not trained yet: waiting for their turn, under way, or complete."""

    step: int
    """The step that drew them."""
    draw: Draw
    group: Group
    lane: int
    """Episodes that the step had asked for before these."""
    seeds: list[int]
    journal: Journal
    born: int | None = None
    """Version of the weights when they began; None while they wait."""
    task: "asyncio.Task[list[Trajectory]] | None" = None

    @property
    def members(self) -> list[Trajectory] | None:
        """The episodes, once all have ended.

        Raises:
            AgentEnvError: what ended the task instead.
        """
        return self.task.result() if self.task and self.task.done() else None

    def state_dict(self) -> dict[str, Any]:
        """All but the episodes themselves, in plain values."""
        return {
            "step": self.step,
            "draw": asdict(self.draw),
            "first": self.group.first,
            "lane": self.lane,
            "seeds": self.seeds,
            "born": self.born,
            "answers": self.journal.state_dict(),
        }

    @classmethod
    def of(cls, state: Mapping[str, Any], policy: Policy) -> "Pending":
        """What ``state_dict`` gave, ready to begin."""
        draw = Draw(**state["draw"])
        group = Group(draw.task, state["first"], step=state["step"])
        answers = Journal(policy, state["answers"])
        kept = {name: state[name] for name in ("step", "lane", "seeds", "born")}
        return cls(draw=draw, group=group, journal=answers, **kept)


def first_complete(
    pending: Sequence[Pending], count: int, *, version: int, staleness: int
) -> list[Pending] | None:
    """The next batch: the ``count`` oldest draws that are complete; None while the learner has to wait.

    It waits for a group that is not complete only where the group would otherwise grow older than ``staleness``. That never
    asks for more than ``count`` groups: what began ``staleness`` versions ago was drawn for this step or an earlier one, and
    every earlier step has taken as many groups as were drawn for it.

    Args:
        pending: All groups that are not trained, in the order in which they were drawn.
        count: Groups of the batch.
        version: Of the weights that are about to be trained.
        staleness: A group that began so many versions ago may not be left for the next batch.
    """
    late = any(p.born is not None and p.born <= version - staleness and p.members is None for p in pending)
    complete = [p for p in pending if p.members is not None][:count]
    return None if late or len(complete) < count else complete
