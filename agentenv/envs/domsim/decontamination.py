"""Detects synthesised tasks that are too similar to test tasks: in their goal, their start, or their check.

EvoCUA (Xue et al. 2026, arXiv:2601.15876) decontaminates in three ways: semantic, configuration, evaluator. Its thresholds
were not found. Here goals are too similar if the cosine of their encodings is at least ``SEMANTIC``, configurations if the
databases at the start are equal, and validators if they require the same changes and the same answer. Infeasible tasks
require no changes and no answer, so all their validators are equal. They are therefore compared only by goal and
configuration.

Shapes: n test tasks, d dimensions of an encoded goal.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from agentenv.envs.domsim.records import WantedEnd
from agentenv.envs.domsim.world import World
from agentenv.retrievers.encoder import HashEncoder

SEMANTIC = 0.9
"""The cosine from which on two goals count as the same."""


NOTHING = repr([([], None)])
"""`wanted_changes` of a task that requires no change and no answer."""


class PosedTask(Protocol):
    """The parts of a task that are compared."""

    goal: str
    start: World

    @property
    def ends(self) -> Sequence[WantedEnd]:
        """The end states, each of which is correct."""


def wanted_changes(task: PosedTask) -> str:
    """Returns the changes from the start and the answer that the validator requires, for each correct end state."""
    start = task.start.facts()
    ends = [
        (sorted((name, value) for name, value in end.wanted.items() if start.get(name) != value), end.answer)
        for end in task.ends
    ]
    return repr(sorted(ends, key=repr))


class HeldOutTasks:
    """Test tasks with which synthesised tasks are compared.

    Args:
        tasks: The test tasks.
        similarity: The cosine from which on two goals count as the same.
    """

    def __init__(self, tasks: Iterable[PosedTask], *, similarity: float = SEMANTIC) -> None:
        held = tuple(tasks)
        self._similarity, self._encoder = similarity, HashEncoder()
        self._goals_nd = self._encoder.encode_passages([task.goal for task in held])
        self._starts = {_configuration(task) for task in held}
        self._changes = {wanted_changes(task) for task in held} - {NOTHING}

    def overlap(self, task: PosedTask) -> str:
        """Returns how ``task`` matches a test task: ``semantic``, ``configuration``, ``evaluator``; empty if it does not."""
        goal_d = self._encoder.encode_passages([task.goal])[0]
        if len(self._goals_nd) and float((self._goals_nd @ goal_d).max()) >= self._similarity:
            return "semantic"
        if _configuration(task) in self._starts:
            return "configuration"
        return "evaluator" if wanted_changes(task) in self._changes else ""


def _configuration(task: PosedTask) -> str:
    return repr(sorted(task.start.facts().items()))
