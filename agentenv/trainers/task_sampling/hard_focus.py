"""The second stage of DRIVE (arXiv:2511.06307): ever fewer tasks, those with the lowest pass rates, in large groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentenv.trainers.task_sampling.step_budget import Selection, StepBudget, TaskDraw, require


def hardest(rates: Mapping[int, float], ids: Mapping[int, str], keep: int) -> list[int]:
    """The ``keep`` tasks with the lowest pass rates, equal ones by their ids.

    Args:
        rates: Pass rate by place of a task.
        ids: Id by place.
        keep: How many.
    """
    return sorted(rates, key=lambda place: (rates[place], ids[place]))[:keep]


@dataclass(kw_only=True)
class HardFocus:
    """Plays the tasks with the lowest pass rates in phases, each with fewer of them than the one before.

    DRIVE, 2025, arXiv:2511.06307. First every task is played once, in groups of the run's own size. Then each phase keeps
    the tasks of the one before that had the lowest mean outcome there, equal ones by their ids, and plays them in larger
    groups; the number of groups falls so that the budget of a step stays as it is. After the last phase its tasks stay. A
    task that was not played in a phase counts with what is known from before, and one that is never solved stays for ever,
    as published.

    Args:
        phases: Steps and number of tasks of each phase; 64 with 72, 32 with 50 and 32 with 25 in the paper.
        group_size: Episodes of a group in the phases; 64 in the paper. The budget of a step bounds it.
        keep: Which tasks a phase keeps: the ``hardest``, or as many at ``random`` of those of the phase before. Random ones
            are the control that says what larger groups on fewer tasks do without the choice.
    """

    replays = False
    chooses = True
    phases: tuple[tuple[int, int], ...] = ((64, 72), (32, 50), (32, 25))
    group_size: int = 64
    keep: Literal["hardest", "random"] = "hardest"
    _phase: int = field(init=False, default=0)
    _steps: int = field(init=False, default=0)
    _pool: list[int] = field(init=False, default_factory=list)
    _known: dict[int, float] = field(init=False, default_factory=dict)
    _sums: dict[int, tuple[float, int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        require("group_size", self.group_size, self.group_size >= 2, "at least 2")
        require("phases", len(self.phases), bool(self.phases), "at least one pair")
        for steps, keep in self.phases:
            require("phases", steps, steps >= 1 and keep >= 1, "pairs of numbers of at least 1")

    def draw(self, step_budget: StepBudget) -> Sequence[TaskDraw]:
        """One round: tasks not surveyed yet, or some of the present phase."""
        if step_budget.rounds:
            return []
        if self._phase == 0:
            unseen = [place for place in range(len(step_budget.tasks)) if place not in self._known]
            # A step without an episode would end the run, so that a task is played even where all are known.
            chosen = unseen[: step_budget.questions] or [0]
            return [TaskDraw(place, step_budget.group_size) for place in chosen]
        budget = step_budget.questions * step_budget.group_size
        size = min(self.group_size, budget)
        count = min(budget // size, len(self._pool))
        drawn = step_budget.rng.choice(self._pool, size=count, replace=False)
        return [TaskDraw(int(place), size) for place in drawn]

    def select(self, step_budget: StepBudget) -> Selection:
        """Notes the outcomes, and begins the next phase where this one is over; everything is trained."""
        phase, tasks = self._phase, len(self._pool) or len(step_budget.tasks)
        for group in step_budget.groups:
            total, count = self._sums.get(group.task, (0.0, 0))
            self._sums[group.task] = (total + group.successes, count + len(group.rewards))
            # A task whose episodes all met an infrastructure failure is not known to be hard.
            self._known.setdefault(group.task, 1.0)
        self._steps += 1
        surveyed = phase == 0 and len(self._known) >= len(step_budget.tasks)
        lasted = 0 < phase < len(self.phases) and self._steps >= self.phases[phase - 1][0]
        if surveyed or lasted:
            self._next(step_budget)
        return Selection(step_budget.groups, metrics={"focus_phase": phase, "focus_tasks": tasks})

    def _next(self, step_budget: StepBudget) -> None:
        """Begins the next phase with some tasks of the present one, by default the hardest."""
        self._known |= {place: total / count for place, (total, count) in self._sums.items() if count}
        pool = self._pool or list(range(len(step_budget.tasks)))
        # In the order of the tasks: the draws from the pool then do not depend on the rates, but only on who is in
        # it.
        self._pool = sorted(self._chosen(step_budget, pool, self.phases[self._phase][1]))
        self._phase, self._steps, self._sums = self._phase + 1, 0, {}

    def _chosen(self, step_budget: StepBudget, pool: Sequence[int], count: int) -> list[int]:
        """``count`` tasks of ``pool``, or all where there are fewer."""
        if self.keep == "random":
            drawn = step_budget.rng.choice(pool, size=min(count, len(pool)), replace=False)
            return [int(place) for place in drawn]
        ids = {place: step_budget.tasks[place].id for place in pool}
        return hardest({place: self._known.get(place, 1.0) for place in pool}, ids, count)

    def state_dict(self) -> dict[str, Any]:
        """Phase, its tasks and what is known of them."""
        return {
            "phase": self._phase,
            "steps": self._steps,
            "pool": list(self._pool),
            "known": [[place, rate] for place, rate in self._known.items()],
            "sums": [[place, total, count] for place, (total, count) in self._sums.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood; an empty mapping is the beginning."""
        self._phase, self._steps = int(state.get("phase", 0)), int(state.get("steps", 0))
        self._pool = [int(place) for place in state.get("pool", ())]
        self._known = {int(place): float(rate) for place, rate in state.get("known", ())}
        self._sums = {int(p): (float(total), int(count)) for p, total, count in state.get("sums", ())}
