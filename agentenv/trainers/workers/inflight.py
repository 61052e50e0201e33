"""Groups between their draw and their training, and which of them a batch takes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from agentenv.core.protocols import Policy
from agentenv.core.trajectory import Trajectory
from agentenv.trainers.task_sampling.samplers import Group, TaskDraw
from agentenv.trainers.workers.recorded_policy import RecordedPolicy


@dataclass(eq=False, kw_only=True)
class InflightGroup:
    """Episodes of one group that are not trained yet: waiting for their turn, under way, or complete."""

    step: int
    """The step that drew them."""
    draw: TaskDraw
    group: Group
    slot: int
    """Episodes that the step had asked for before these."""
    seeds: list[int]
    policy: RecordedPolicy
    start_version: int | None = None
    """Version of the weights when they began; None while they wait."""
    task: "asyncio.Task[list[Trajectory]] | None" = None

    @property
    def members(self) -> list[Trajectory] | None:
        """The episodes, once all have ended.

        Raises:
            AgentEnvError: what ended the task instead.
        """
        return self.task.result() if self.task and self.task.done() else None

    @property
    def failed(self) -> bool:
        """Whether all episodes have ended, each through an infrastructure failure: there is nothing to train."""
        return bool(self.members) and not any(member.valid for member in self.members or ())

    def state_dict(self) -> dict[str, Any]:
        """All but the episodes themselves, in plain values."""
        return {
            "step": self.step,
            "draw": asdict(self.draw),
            "first": self.group.first,
            "slot": self.slot,
            "seeds": self.seeds,
            "start_version": self.start_version,
            "answers": self.policy.state_dict(),
        }

    @classmethod
    def of(cls, state: Mapping[str, Any], policy: Policy) -> "InflightGroup":
        """What ``state_dict`` gave, ready to begin."""
        draw = TaskDraw(**state["draw"])
        group = Group(draw.task, state["first"], step=state["step"])
        answers = RecordedPolicy(policy, state["answers"])
        kept = {name: state[name] for name in ("step", "slot", "seeds", "start_version")}
        return cls(draw=draw, group=group, policy=answers, **kept)


def choose_batch(
    inflight: Sequence[InflightGroup], counts: Sequence[int], *, version: int, staleness: int
) -> list[InflightGroup] | None:
    """The next batch: of the groups that are complete those that began first; None while the learner has to wait.

    A group that began at version b is trained at version b + ``staleness`` at the latest. The learner waits only where the
    groups that it would leave could not all be trained in time: where, for some number of steps to come, more of them are
    due within these steps than are trained in them. To take those that began first leaves the fewest of these, and as no
    more groups begin than all of ``counts`` together, a batch without that flaw is there once every group has ended.

    Groups that failed end early, so that they might fill a batch which would end the run while others are fine. So where a
    batch would be such groups alone, the learner waits for one that has something to train, until all have ended. A group
    that failed has no version and may be left.

    Args:
        inflight: All groups that are not trained, in the order in which they were drawn.
        counts: Groups of this step, then of each later one that is open.
        version: Of the weights that are about to be trained.
        staleness: The bound.
    """
    # A stable sort: of those that began with one version the first drawn is the first taken, which does not depend on
    # time.
    begun = sorted((p for p in inflight if p.start_version is not None), key=lambda p: p.start_version or 0)
    complete = [p for p in begun if p.members is not None]
    size = counts[0]
    # A batch is never smaller than configured: the size of a step would depend on time otherwise.
    if len(complete) < size:
        return None

    def fits(batch: Sequence[InflightGroup]) -> bool:
        left = [
            (p.start_version or 0) + staleness - version for p in begun if p not in batch and not p.failed
        ]
        # Places of the steps to come, added up: what is due within k steps must fit into the first k of them.
        room = accumulate(counts[1:], initial=0)
        return all(sum(due <= step for due in left) <= places for step, places in enumerate(room))

    useful = [p for p in complete if not p.failed]
    oldest = complete[:size]
    # First the oldest alone; if that leaves too many that are due, groups that have something to train before failed ones.
    if size == 0 or any(not p.failed for p in oldest):
        batches = [oldest, [*useful, *(p for p in complete if p.failed)][:size]]
    elif useful:
        batches = [[*oldest[:-1], useful[0]], [*useful, *oldest][:size]]
    else:
        return oldest if len(complete) == len(inflight) else None
    return next((batch for batch in batches if fits(batch)), None)
