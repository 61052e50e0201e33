"""Which tasks are played: samplers that learn from step to step how hard each task is, or follow a schedule.

Shapes: N tasks, C classes of them. The formulas are pure functions;
``docs/sampling.md`` has them in one table. All of these samplers spend the whole budget in one round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.group_statistics import Values
from agentenv.trainers.task_sampling.step_budget import (
    Selection,
    StatelessSampler,
    StepBudget,
    TaskDraw,
    require,
    whole_groups,
)

Schedule = tuple[tuple[int, float], ...]
"""(first step, value) in the order of steps: the value holds until the next one."""


def decay_evidence(count: float, decay: float) -> float:
    """A parameter of a Beta posterior with its evidence, what it has above the prior's 1, times ``decay``."""
    return 1.0 + decay * (count - 1.0)


@dataclass(kw_only=True)
class PosteriorSampling:
    """Draws a success rate p of every task from its Beta posterior and plays the tasks with the largest p (1 - p).

    VADE, Hu et al. 2025, arXiv:2511.18902; the constants are this project's. The evidence about a task fades, because the
    policy changes: by ``decay`` before new outcomes of the task are added, and by ``idle_decay`` where it was not played.

    Args:
        decay: Factor on the evidence about tasks of the step.
        idle_decay: Factor on the evidence about all other tasks.
    """

    replays = False
    chooses = True
    decay: float = 0.9
    idle_decay: float = 0.99

    def __post_init__(self) -> None:
        require("decay", self.decay, 0 <= self.decay <= 1, "within [0, 1]")
        require("idle_decay", self.idle_decay, 0 <= self.idle_decay <= 1, "within [0, 1]")
        self._successes: list[float] = []
        self._failures: list[float] = []

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """The ``questions`` tasks of largest drawn variance."""
        if not self._successes:
            self._successes = [1.0] * len(step_budget.tasks)
            self._failures = [1.0] * len(step_budget.tasks)
        drawn = step_budget.rng.beta(self._successes, self._failures)
        # A stable sort, so that ties go to the earlier task on every machine.
        return whole_groups(step_budget, np.argsort(-drawn * (1 - drawn), kind="stable"))

    def select(self, step_budget: StepBudget) -> Selection:
        """Every posterior fades, those of the step's tasks get its outcomes. All groups are trained."""
        played = {group.task for group in step_budget.groups if group.rewards}
        for place in range(len(self._successes)):
            decay = self.decay if place in played else self.idle_decay
            self._successes[place] = decay_evidence(self._successes[place], decay)
            self._failures[place] = decay_evidence(self._failures[place], decay)
        for group in step_budget.groups:
            self._successes[group.task] += group.successes
            self._failures[group.task] += len(group.rewards) - group.successes
        known = sum(a + b > 2 for a, b in zip(self._successes, self._failures, strict=True))
        return Selection(step_budget.groups, metrics={"known_tasks": known})

    def state_dict(self) -> dict[str, Any]:
        """The two parameters of each task."""
        return {"successes": list(self._successes), "failures": list(self._failures)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        self._successes = list(state.get("successes", ()))
        self._failures = list(state.get("failures", ()))


def robust_weights(
    losses_C: Sequence[float], shares_C: Sequence[float] | Values, *, strength: float, floor: float
) -> Values:
    """float64[C]: the worst mixture of classes at a price in entropy, share_c exp(strength * loss_c) normalised.

    The exact solution of max_q sum q_c loss_c - KL(q || shares) / strength: ``strength`` 0 gives the shares, a large one
    the class of highest loss alone (group DRO, Sagawa et al. 2020).

    Args:
        losses_C: Losses; only their differences count.
        shares_C: Shares of the tasks.
        strength: Inverse price.
        floor: Part of the mixture that stays with the shares.
    """
    losses, shares = np.asarray(losses_C, dtype=np.float64), np.asarray(shares_C, dtype=np.float64)
    # The largest exponent becomes 0: only differences of losses count, and a large strength would overflow.
    tilted = shares * np.exp(strength * (losses - losses.max()))
    weights: Values = (1 - floor) * tilted / tilted.sum() + floor * shares / shares.sum()
    return weights


@dataclass(kw_only=True)
class GroupRobust:
    """Draws the classes of tasks with the largest loss more often.

    After GDRO, Panaganti et al. 2026, arXiv:2601.19280, and group DRO, Sagawa et al. 2020, arXiv:1911.08731. The loss of a
    class is 1 - its mean outcome, averaged over the steps in which it was played, so that a class that comes up more often
    is not mistaken for a harder one. Tasks state their class, whereas the paper finds classes by difficulty; strength,
    memory and floor are this project's.

    Args:
        by: Key of ``Task.data`` that names the class, such as ``hops`` or ``family``.
        strength: See ``robust_weights``.
        memory: Weight of the past in the mean loss of a class; the first steps are corrected for it.
        floor: See ``robust_weights``.
    """

    replays = False
    chooses = True
    by: str = "hops"
    strength: float = 3.0
    memory: float = 0.9
    floor: float = 0.1

    def __post_init__(self) -> None:
        require("strength", self.strength, self.strength >= 0, "at least 0")
        require("memory", self.memory, 0 <= self.memory < 1, "within [0, 1)")
        require("floor", self.floor, 0 <= self.floor <= 1, "within [0, 1]")
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """``questions`` tasks; a class has its weight, within it all are equally likely."""
        names = [str(task_value(task, self.by)) for task in step_budget.tasks]
        classes, places, sizes = np.unique(names, return_inverse=True, return_counts=True)
        weights = self._weights([str(name) for name in classes], sizes / len(names))
        # A class has its weight as a whole, however many tasks it has.
        return whole_groups(step_budget, step_budget.draw_weighted((weights / sizes)[places]))

    def _weights(self, classes: Sequence[str], shares_C: Values) -> Values:
        return robust_weights(
            [self._loss(name) for name in classes], shares_C, strength=self.strength, floor=self.floor
        )

    def _loss(self, name: str) -> float:
        """The mean loss of a class; of one never played, the highest there is."""
        count = self._counts.get(name, 0)
        # A sum that began at 0 is too small by 1 - memory^count, as Adam's moments are (Kingma and Ba 2015, section
        # 3).
        return self._sums[name] / (1 - self.memory**count) if count else 1.0

    def select(self, step_budget: StepBudget) -> Selection:
        """The losses of the classes that were played move. All groups are trained."""
        outcomes: dict[str, list[float]] = {}
        for group in step_budget.groups:
            name = str(task_value(step_budget.tasks[group.task], self.by))
            outcomes.setdefault(name, []).extend(min(max(reward, 0.0), 1.0) for reward in group.rewards)
        for name, mine in outcomes.items():
            if mine:
                loss = 1 - sum(mine) / len(mine)
                self._sums[name] = self.memory * self._sums.get(name, 0.0) + (1 - self.memory) * loss
                self._counts[name] = self._counts.get(name, 0) + 1
        metrics = {f"loss_{self.by}_{name}": self._loss(name) for name in sorted(self._counts)}
        return Selection(step_budget.groups, metrics=metrics)

    def state_dict(self) -> dict[str, Any]:
        """Sum and count of each class."""
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        self._sums, self._counts = dict(state.get("sums", {})), dict(state.get("counts", {}))


def scheduled(schedule: Schedule, step: int) -> float | None:
    """The value that holds in ``step``; None before the first one."""
    values = [value for first, value in schedule if first <= step]
    return values[-1] if values else None


@dataclass(kw_only=True)
class Curriculum(StatelessSampler):
    """Draws tasks uniformly and changes hops, turns, passages, search noise and paid ranks by a schedule of steps.

    After the curriculum of ZeroSearch, Sun et al. 2025, arXiv:2505.04588. Each schedule is a list of (first step, value).
    Before the first step of a schedule, and if it is empty, the run's own setting holds.

    Args:
        hops: Largest number of hops of a task that may be drawn.
        max_turns: Largest number of turns of an episode.
        passages: Number of passages that a search returns.
        noise: Share of searches that fail; they return the passages that are ranked right behind the right ones.
        paid_ranks: Ranks that ``Rewrite-v0`` pays under its reward ``curriculum`` (ConvSearch-R1, Zhu et al. 2025).
    """

    chooses = True
    _NAMES: ClassVar[tuple[str, ...]] = ("hops", "max_turns", "passages", "noise", "paid_ranks")
    hops: Schedule = ()
    max_turns: Schedule = ()
    passages: Schedule = ()
    noise: Schedule = ()
    paid_ranks: Schedule = ()

    def __post_init__(self) -> None:
        for name in self._NAMES:
            steps = [first for first, _ in getattr(self, name)]
            if steps != sorted(set(steps)):
                raise ConfigurationError(
                    f"option {name!r} of the task sampler must list its steps in order, not {steps}"
                )
        for _, value in self.noise:
            require("noise", value, 0 <= value <= 1, "within [0, 1]")

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """``questions`` tasks of those that the schedule allows."""
        pool = self._pool(step_budget)
        drawn = step_budget.rng.choice(
            pool, size=step_budget.questions, replace=step_budget.questions > len(pool)
        )
        settings = {
            "max_turns": scheduled(self.max_turns, step_budget.step),
            "k": scheduled(self.passages, step_budget.step),
            "paid_ranks": scheduled(self.paid_ranks, step_budget.step),
        }
        env = {name: int(value) for name, value in settings.items() if value is not None}
        noise = scheduled(self.noise, step_budget.step) or 0.0
        return [TaskDraw(int(place), step_budget.group_size, env=env, noise=noise) for place in drawn]

    def _pool(self, step_budget: StepBudget) -> NDArray[np.intp]:
        most = scheduled(self.hops, step_budget.step)
        if most is None:
            return np.arange(len(step_budget.tasks))
        hops = np.array([int(task_value(task, "hops")) for task in step_budget.tasks])
        pool = np.flatnonzero(hops <= most)
        if not len(pool):
            raise ConfigurationError(
                f"the curriculum allows {most:g} hops in step {step_budget.step}, and every task has at least "
                f"{hops.min()}: allow more hops in that step (option hops), or add easier tasks"
            )
        return pool

    def select(self, step_budget: StepBudget) -> Selection:
        """Everything is trained."""
        schedules = {name: getattr(self, name) for name in self._NAMES}
        values = {f"curriculum_{name}": scheduled(own, step_budget.step) for name, own in schedules.items()}
        return Selection(step_budget.groups, metrics={name: v for name, v in values.items() if v is not None})


def task_value(task: Task, key: str) -> Any:
    """``task.data[key]``.

    Raises:
        ConfigurationError: the task has none.
    """
    if key not in task.data:
        known = ", ".join(sorted(task.data)) or "none"
        raise ConfigurationError(f"task {task.id!r} has no {key!r} in its data, which has: {known}")
    return task.data[key]
