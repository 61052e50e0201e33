"""Which synthesised tasks are too near to those of a test: by what they say, where they begin, or what they check.

EvoCUA (Xue et al. 2026, arXiv:2601.15876) decontaminates in three ways: semantic, configuration, evaluator. Its thresholds
were not found. Here a goal is too near where the cosine of the encoded goals is at least ``SEMANTIC``, a configuration where
the database at the start is the same, and a validator where it wants the same changes and the same answer. A task that
cannot be done wants neither, so that the validators of all such tasks are alike: those are compared by goal and
configuration alone.

Shapes: n tasks of the test, d dimensions of an encoded goal.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from agentenv.envs.domsim.records import WantedEnd
from agentenv.envs.domsim.world import World
from agentenv.retrievers.encoder import HashEncoder

SEMANTIC = 0.9
"""Cosine of two goals from which on one says what the other says."""


NOTHING = repr([([], None)])
"""`wanted_changes` of a task that wants none."""


class PosedTask(Protocol):
    """What is compared of a task."""

    goal: str
    start: World

    @property
    def ends(self) -> Sequence[WantedEnd]:
        """The ends of which one is right."""


def wanted_changes(task: PosedTask) -> str:
    """What the validator wants to be otherwise than at the start, and the answer that it wants, for each right end."""
    start = task.start.facts()
    ends = [
        (sorted((name, value) for name, value in end.wanted.items() if start.get(name) != value), end.answer)
        for end in task.ends
    ]
    return repr(sorted(ends, key=repr))


class HeldOutTasks:
    """The tasks of a test, against which synthesised ones are compared.

    Args:
        tasks: Those of the test.
        similarity: Cosine from which on two goals say the same.
    """

    def __init__(self, tasks: Iterable[PosedTask], *, similarity: float = SEMANTIC) -> None:
        held = tuple(tasks)
        self._similarity, self._encoder = similarity, HashEncoder()
        self._goals_nd = self._encoder.encode_passages([task.goal for task in held])
        self._starts = {_configuration(task) for task in held}
        self._changes = {wanted_changes(task) for task in held} - {NOTHING}

    def overlap(self, task: PosedTask) -> str:
        """In which way ``task`` is one of the test: ``semantic``, ``configuration``, ``evaluator``; empty where in none."""
        goal_d = self._encoder.encode_passages([task.goal])[0]
        if len(self._goals_nd) and float((self._goals_nd @ goal_d).max()) >= self._similarity:
            return "semantic"
        if _configuration(task) in self._starts:
            return "configuration"
        return "evaluator" if wanted_changes(task) in self._changes else ""


def _configuration(task: PosedTask) -> str:
    return repr(sorted(task.start.facts().items()))
