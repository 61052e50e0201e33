"""Tasks by their own record: how many rollouts, how many turns, a stored success where none comes (DART, Li et al. 2025).

The paper's thresholds are kept, and what it leaves open is said where it is filled in; ``docs/sampling.md`` has the table.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

from agentenv.core.io.strict_json import read_json_text
from agentenv.core.io.tables import open_text, reason_of
from agentenv.core.trajectory import Origin, Trajectory, checkpoint_record, from_record
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.task_sampling.step_budget import Group, Selection, StepBudget, TaskDraw, require


def rollout_count(rate: float, size: int, *, easy: float = 0.6, min_rollouts: int = 2) -> int:
    """Rollouts of a task: ``size`` up to a success rate of ``easy``, then linearly fewer, down to ``min_rollouts`` at 1.

    That tasks above .6 get fewer than 8 is the paper's, the line is ours. Rounded up.

    Args:
        rate: Share of successes.
        size: Rollouts of a task that is not easy.
        easy: Rate above which it gets fewer.
        min_rollouts: Rollouts of a task that always succeeds; at most ``size`` counts.
    """
    excess = max(0.0, rate - easy) / (1 - easy)
    # Float noise must not cost a rollout.
    return size - math.floor(excess * (size - min(min_rollouts, size)) + 1e-9)


@dataclass(kw_only=True)
class AdaptiveCuration:
    """Plays easy tasks less often, and adds stored successes to groups without one.

    The data curation of DART, Li et al. 2025, arXiv:2509.23866. Tasks are drawn uniformly. The number of rollouts and turns
    of a task depends on its outcomes so far, and the budget that easy tasks leave over goes to further tasks. An episode may
    take as many turns as the longest success of its task took. If every episode of a group failed, the stored success of its
    task joins the group as a member, with its own ids and the log-probs of its own sampling, which the ratios of
    ``proximal = "sampler"`` and the weights of a correction read. The store begins with ``pool`` and keeps the newest
    success of each task.

    Args:
        easy: See ``rollout_count``.
        min_rollouts: See ``rollout_count``.
        memory: Number of outcomes of a task, the latest ones, over which its success rate is taken.
        success: Smallest outcome that counts as a success.
        longest: Number of turns of an episode of a task that was never solved.
        turns: Name of the environment's option that bounds turns.
        pool: Successes to begin with: a file of trajectories in JSON lines, gzipped or not, or a folder of such files, for
            example the ``trajectories`` of a run with the same tokenizer; empty for none.
    """

    replays = True
    chooses = True
    easy: float = 0.6
    min_rollouts: int = 2
    memory: int = 16
    success: float = 1.0
    longest: int = 30
    turns: str = "max_turns"
    pool: str = ""

    def __post_init__(self) -> None:
        require("easy", self.easy, 0 <= self.easy < 1, "within [0, 1)")
        require("min_rollouts", self.min_rollouts, self.min_rollouts >= 2, "at least 2")
        require("memory", self.memory, self.memory >= 1, "at least 1")
        require("longest", self.longest, self.longest >= 1, "at least 1")
        self._outcomes: dict[int, deque[bool]] = {}
        self._lengths: dict[int, int] = {}
        self._stored: dict[int, dict[str, Any]] = {}

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """Tasks in a random order, each with its rollouts and its turns, until at most one rollout is left."""
        if step_budget.rounds:
            return []
        if self.pool and step_budget.step == 1:
            self._fill(step_budget.tasks)
        draws: list[TaskDraw] = []
        left = step_budget.remaining
        order = step_budget.rng.permutation(len(step_budget.tasks)).tolist()
        for place in cycle(order):
            # A group of one has nothing to be compared with.
            if left < 2:
                break
            count = min(self._rollouts(place, step_budget.group_size), left)
            draws.append(TaskDraw(place, count, env={self.turns: self._limit(place)}))
            left -= count
        return draws

    def _rollouts(self, place: int, size: int) -> int:
        known = self._outcomes.get(place)
        return (
            rollout_count(fmean(known), size, easy=self.easy, min_rollouts=self.min_rollouts)
            if known
            else size
        )

    def _limit(self, place: int) -> int:
        return min(self.longest, self._lengths.get(place, self.longest))

    def select(self, step_budget: StepBudget) -> Selection:
        """Every group is trained, those without a success with a stored one; then the outcomes are taken into account."""
        lost = [i for i, group in enumerate(step_budget.groups) if self._is_lost(group)]
        added_members = {
            i: self._added_member(step_budget.groups[i], step_budget.tasks)
            for i in lost
            if step_budget.groups[i].task in self._stored
        }
        # Before the outcomes are taken in: these are the limits that the episodes of the step were played with.
        limits = [self._limit(group.task) for group in step_budget.groups]
        for group in step_budget.groups:
            self._outcomes.setdefault(group.task, deque(maxlen=self.memory)).extend(
                map(self._is_success, group.rewards)
            )
            self._keep(group.task, group.members)
        metrics = {
            "lost_groups": len(lost),
            "rescued_groups": len(added_members),
            "success_pool": len(self._stored),
            "turn_limit": fmean(limits),
        }
        return Selection(step_budget.groups, added_members=added_members, metrics=metrics)

    def _is_success(self, reward: float) -> bool:
        return reward >= self.success

    def _is_lost(self, group: Group) -> bool:
        return bool(group.rewards) and not any(map(self._is_success, group.rewards))

    def _added_member(self, group: Group, tasks: Sequence[Task]) -> list[Trajectory]:
        stored = from_record(self._stored[group.task], tasks[group.task])
        return [replace(stored, origin=Origin.REPLAY, group_id=group.members[0].group_id)]

    def _keep(self, place: int, played: Iterable[Trajectory]) -> None:
        """Takes up successes of the policy alone and of demonstrators; a retry had help that its ids do not show."""
        for trajectory in played:
            whole = trajectory.origin is Origin.DEMONSTRATION or not trajectory.guided
            if trajectory.valid and whole and self._is_success(trajectory.reward):
                self._lengths[place] = max(self._lengths.get(place, 0), len(trajectory.turns))
                self._stored[place] = checkpoint_record(trajectory)

    def _fill(self, tasks: Sequence[Task]) -> None:
        places = {task.id: place for place, task in enumerate(tasks)}
        for record in _records(Path(self.pool)):
            try:
                place = places.get(record["task"]["id"])
                found = [] if place is None else [from_record(record, tasks[place])]
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise ConfigurationError(
                    f"the pool {self.pool} holds a record that is no trajectory ({type(error).__name__}: {error})"
                ) from error
            if place is not None:
                self._keep(place, found)
        if not self._stored:
            raise ConfigurationError(f"the pool {self.pool} holds no success of a task of this run")

    def state_dict(self) -> dict[str, Any]:
        """Latest outcomes, longest success and stored success of each task."""
        return {
            "outcomes": [[place, list(outcomes)] for place, outcomes in self._outcomes.items()],
            "lengths": [list(pair) for pair in self._lengths.items()],
            "stored": [list(pair) for pair in self._stored.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        self._outcomes = {place: deque(known, self.memory) for place, known in state.get("outcomes", ())}
        self._lengths = dict(state.get("lengths", ()))
        self._stored = dict(state.get("stored", ()))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The trajectories of a file or of a folder's files, by name."""
    files = sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]
    for file in files:
        try:
            with open_text(file) as lines:
                yield from map(read_json_text, lines)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"the pool {file} cannot be read as trajectories in JSON lines: {reason_of(error)}"
            ) from error
