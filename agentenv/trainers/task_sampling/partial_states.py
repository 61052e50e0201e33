"""Tasks that begin with a part of a solution that the policy found itself (ReST-GRPO of ReST-RL).

ReST-RL, 2025, arXiv:2508.19576. The formulas are pure functions; ``docs/sampling.md`` has them in one table.

Shapes: L turns of a solution behind which it can be cut: all but the last.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import pstdev
from typing import Any

import numpy as np

from agentenv.core.trajectory import Trajectory, checkpoint_record
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.group_statistics import Values
from agentenv.trainers.task_sampling.step_budget import Group, Selection, StepBudget, TaskDraw, require


def cut_chances(count: int, decay: float) -> Values:
    """float64[L]: chances decay^i, normalised, of the cut behind turn i + 1; early cuts are preferred."""
    weights = decay ** np.arange(count, dtype=np.float64)
    chances: Values = weights / weights.sum()
    return chances


def states_of(turns: int, share: float) -> int:
    """ceil(share turns): how many states of a solution are drawn. Its end is a turn too, and never a state (ReST-GRPO)."""
    return math.ceil(share * turns - 1e-9)  # a product of floats may stand a little above


def drawn_cuts(count: int, amount: int, decay: float, rng: np.random.Generator) -> list[int]:
    """``amount`` numbers of turns that are kept, each from 1 to L, drawn with replacement by ``cut_chances``."""
    return [int(i) + 1 for i in rng.choice(count, size=amount, p=cut_chances(count, decay))]


@dataclass(kw_only=True)
class PartialStates:
    """Plays some groups from states within the policy's own best solutions, and drops groups of equal outcomes.

    ReST-GRPO of ReST-RL, 2025, arXiv:2508.19576. Where the outcomes of a group differ enough and its best episode is good
    enough, some of the states within that episode become starts of groups of later steps. Such a group replays the turns
    before its state, token by token; they are not trained. Starts wait in a queue, and each is played once. The paper
    makes this data before each run of GRPO, here it is made while the run goes on, and a state is the beginning of a turn
    in place of a line of code.

    Args:
        part: Share of the groups of a step that begin with such a state, where there are enough; one at least is a whole
            task, because the means of a step show what the policy does from the beginning.
        min_spread: Smallest population deviation of the outcomes of a group that is trained or gives starts.
        good: Smallest outcome of the episode that gives starts.
        share: States that are drawn from it with replacement, as a share of its turns, rounded up.
        count: A fixed number of them instead; 0 takes ``share``.
        all: Whether each of its states is a start once, and none is drawn: the mode of all lines.
        decay: Factor on the chance of a state for each turn before it.
        queue: Starts that may wait; the oldest leave first.
    """

    replays = False
    chooses = True
    part: float = 0.5
    min_spread: float = 0.05
    good: float = 0.9
    share: float = 0.5
    count: int = 0
    all: bool = False
    decay: float = 0.95
    queue: int = 512

    def __post_init__(self) -> None:
        require("part", self.part, 0 <= self.part <= 1, "within [0, 1]")
        require("min_spread", self.min_spread, self.min_spread >= 0, "at least 0")
        require("share", self.share, 0 < self.share <= 1, "within (0, 1]")
        require("count", self.count, self.count >= 0, "at least 0")
        if self.all and self.count:
            raise ConfigurationError(
                f"count={self.count} and all=true exclude each other: leave one of them out"
            )
        require("decay", self.decay, 0 < self.decay <= 1, "within (0, 1]")
        require("queue", self.queue, self.queue >= 1, "at least 1")
        self._starts: deque[tuple[int, dict[str, Any]]] = deque(maxlen=self.queue)

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """The groups of the step: those that begin with a waiting state first, then whole tasks."""
        if step_budget.rounds:
            return []
        questions = step_budget.questions
        count = min(round(self.part * questions), len(self._starts), questions - 1)
        begun = [self._starts.popleft() for _ in range(count)]
        size = step_budget.group_size
        whole = step_budget.draw_unplayed(questions - count)
        return [
            *(TaskDraw(task, size, prefix=prefix) for task, prefix in begun),
            *(TaskDraw(place, size) for place in whole),
        ]

    def select(self, step_budget: StepBudget) -> Selection:
        """Groups whose outcomes differ are trained; of whole tasks they give states for later."""
        kept = [group for group in step_budget.groups if self._spread(group) >= self.min_spread]
        for group in kept:
            best = max((t for t in group.members if t.valid), key=lambda t: t.reward)
            # A guided episode was sampled with help that its ids do not show, so its states are not the policy's own.
            if best.reward >= self.good and not best.guided:
                self._starts += [(group.task, _cut(best, n)) for n in self._cuts(best, step_budget.rng)]
        metrics = {"waiting_states": len(self._starts)}
        return Selection(kept, metrics=metrics)

    def _spread(self, group: Group) -> float:
        outcomes = [t.reward for t in group.members if t.valid]
        return pstdev(outcomes) if len(outcomes) > 1 else -math.inf

    def _cuts(self, best: Trajectory, rng: np.random.Generator) -> list[int]:
        """Turns that are kept of an episode; of one turn, or of several rows, there is no state within."""
        turns = len(best.turns)
        if turns < 2 or len(best.row_slices) != 1:
            return []
        if self.all:
            return list(range(1, turns))
        return drawn_cuts(turns - 1, self.count or states_of(turns, self.share), self.decay, rng)

    def state_dict(self) -> dict[str, Any]:
        """The starts that wait."""
        return {"starts": [list(start) for start in self._starts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        self._starts = deque(((int(task), prefix) for task, prefix in state.get("starts", ())), self.queue)


def _cut(trajectory: Trajectory, turns: int) -> dict[str, Any]:
    """The record of the first turns of an episode; it keeps the id of the whole."""
    return checkpoint_record(trajectory.cut(turns)) | {"id": trajectory.id}
