"""What a task sampler sees of a step and what it gives back, and the loop that plays its draws in rounds.

A step may play ``questions * group_size`` episodes, however they are divided: that budget is the same for every sampler,
so that their runs can be compared. A sampler draws a round, sees how it came out and may draw another one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from agentenv.core.rollout import EpisodeState
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.group_statistics import has_zero_variance
from agentenv.trainers.task_sampling.set_mixture import SetMixture


@dataclass(frozen=True)
class TaskDraw:
    """Episodes to play of one task."""

    task: int
    """Place of the task; that of the group, where they join one."""
    rollouts: int
    """How many."""
    group: int | None = None
    """Place of the group of this step that they join; None opens a new one."""
    env: Mapping[str, Any] = field(default_factory=dict)
    """Options of the environment that differ from the run's."""
    noise: float = 0.0
    """Share of searches that miss; see ``LossyRetriever``."""
    guidance: str = ""
    """Text that stands before the first turn while the policy samples, and is cut out of the record (strategy ``plain``)."""
    prefix: Mapping[str, Any] | None = None
    """The record of the turns that the episodes begin with (``to_record``), which are not trained (strategy ``plain``)."""
    temperatures: Sequence[float] = ()
    """Temperatures of the turns of a tree's window, where they follow the entropy (strategy ``tree``)."""


@dataclass
class Group:
    """The episodes of one task in one step."""

    task: int
    """Place of the task."""
    first: int
    """Episodes that the step had asked for before this group's first one."""
    members: list[Trajectory] = field(default_factory=list)
    step: int = 0
    """The step that opened it."""

    @property
    def rewards(self) -> list[float]:
        """Outcomes of the valid members that the policy played unaided."""
        return [
            trajectory.reward for trajectory in self.members if trajectory.valid and not trajectory.guided
        ]

    @property
    def compared(self) -> list[Trajectory]:
        """The members that a group consists of, help or not, lost ones included: those of the first member's group id."""
        return [t for t in self.members if t.group_id == self.members[0].group_id]

    @property
    def credited(self) -> list[Trajectory]:
        """The valid ones of these, which credit compares with each other."""
        return [t for t in self.compared if t.valid]

    @property
    def apart(self) -> list[Trajectory]:
        """Members with groups of their own, such as demonstrations, preference pairs and reflections."""
        return [t for t in self.members if t.group_id != self.members[0].group_id]

    @property
    def successes(self) -> float:
        """Sum of the outcomes, each bounded to [0, 1]; of binary outcomes their number."""
        return float(sum(min(max(reward, 0.0), 1.0) for reward in self.rewards))

    @property
    def zero_variance(self) -> bool:
        """Whether it has fewer than two credited members, or equal outcomes, before penalties."""
        return has_zero_variance([trajectory.reward for trajectory in self.credited])


@dataclass
class StepBudget:
    """What one step has asked for and got so far."""

    step: int
    """From 1."""
    tasks: Sequence[Task]
    """All tasks of the training set."""
    rng: np.random.Generator
    """Seeded by run and step; the only source of chance."""
    questions: int
    """Groups of a plain step."""
    group_size: int
    """Episodes a group of a plain step."""
    mixture: SetMixture | None = None
    """Of several sets with weights: how many tasks come from each. Without it all tasks are equally likely."""
    groups: list[Group] = field(default_factory=list)
    """In the order in which they were opened."""
    rounds: int = 0
    """Rounds played."""
    last_round: int = 0
    """Place of the first group that the last round opened."""
    reserved: int = 0
    """Episodes asked for; those that met an infrastructure failure count."""

    @property
    def remaining(self) -> int:
        """Episodes that may still be asked for."""
        return self.questions * self.group_size - self.reserved

    def draw_unplayed(self, count: int) -> list[int]:
        """Places of ``count`` tasks drawn uniformly among those not yet played in this step; repeated where too few are.

        With a ``mixture`` each set gives its share of them, and they are drawn uniformly within the sets.
        """
        played = {group.task for group in self.groups}
        if self.mixture is not None:
            return self.mixture.draw(count, played, self.rng)
        # A training set smaller than a step is gone through again, where it would otherwise end the run.
        pool = [place for place in range(len(self.tasks)) if place not in played] or range(len(self.tasks))
        drawn = self.rng.choice(np.asarray(pool), size=count, replace=count > len(pool))
        return [int(place) for place in drawn]

    def draw_weighted(self, weights_N: NDArray[np.float64]) -> NDArray[np.intp]:
        """Places of ``questions`` tasks drawn by their weights, each once; with replacement where there are too few."""
        count = len(weights_N)
        return self.rng.choice(
            count, size=self.questions, replace=self.questions > count, p=weights_N / weights_N.sum()
        )

    def reserve(self, draws: Sequence[TaskDraw]) -> list[Group]:
        """The group of each draw, new ones opened.

        Raises:
            ConfigurationError: together they ask for more than is left, or one for nothing.
        """
        wanted = sum(draw.rollouts for draw in draws)
        if wanted > self.remaining or any(draw.rollouts < 1 for draw in draws):
            raise ConfigurationError(
                f"the task sampler asks for {[draw.rollouts for draw in draws]} episodes where step {self.step} has "
                f"{self.remaining} of {self.questions * self.group_size} left: each draw takes at least 1, all together at "
                "most what is left"
            )
        groups = []
        for draw in draws:
            # Before `reserved` grows: a group's first episode is numbered by what was asked for before it.
            if draw.group is None:
                self.groups.append(Group(draw.task, self.reserved, step=self.step))
            groups.append(self.groups[-1 if draw.group is None else draw.group])
            self.reserved += draw.rollouts
        return groups


@dataclass(frozen=True)
class Selection:
    """What a sampler makes of a step once it is played."""

    trained: Sequence[Group]
    """Groups of the step that credit is assigned in; of the others, only members with groups of their own are trained."""
    replayed: Sequence[list[Trajectory]] = ()
    """Groups of earlier steps to train on as well."""
    added_members: Mapping[int, list[Trajectory]] = field(default_factory=dict)
    """Episodes of earlier steps that join a group, by its place among ``trained``."""
    given_up: Sequence[Trajectory] = ()
    """Episodes of the step that have left their groups; what was sampled in them counts, and nothing else of them."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What else is worth a line in the metrics."""


class TaskSampler(Protocol):
    """Decides which tasks are played, how often, and which of the groups are trained."""

    @property
    def replays(self) -> bool:
        """Whether episodes of earlier weights are trained as well."""

    def draw(self, step_budget: StepBudget) -> Sequence[TaskDraw]:
        """The next round; none ends the step. Not asked once the budget is spent."""

    def select(self, step_budget: StepBudget) -> Selection:
        """Learns from the outcomes of the step and says what is trained."""

    def state_dict(self) -> dict[str, Any]:
        """All that it has learned, in plain values: lists, dictionaries, numbers, text. Saved with each checkpoint."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood; an empty mapping is the beginning."""


@runtime_checkable
class GatedSampler(Protocol):
    """A sampler that is asked after each turn of its episodes, where the strategy ``plain`` plays them."""

    def gate(self, state: EpisodeState) -> bool:
        """Whether the episode goes on."""


@runtime_checkable
class GuidingSampler(Protocol):
    """A sampler whose draws may carry guidance, where the strategy ``plain`` plays them."""

    @property
    def guides(self) -> bool:
        """Whether they ever do."""


@runtime_checkable
class ChoosingSampler(Protocol):
    """A sampler that may choose tasks by a rule of its own, and not by ``StepBudget.draw_unplayed``.

    Sets of questions keep the weights that a user gives them only where it does not.
    """

    @property
    def chooses(self) -> bool:
        """Whether it does so with its present options."""


def chooses_tasks(sampler: "TaskSampler") -> bool:
    """Whether ``sampler`` chooses tasks by a rule of its own; one that does not say so draws as the step does."""
    return isinstance(sampler, ChoosingSampler) and sampler.chooses


class StatelessSampler:
    """A sampler that learns nothing from step to step and trains on every group."""

    replays = False

    def select(self, step_budget: StepBudget) -> Selection:
        """Everything is trained."""
        return Selection(step_budget.groups)

    def state_dict(self) -> dict[str, Any]:
        """An empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up nothing."""


@dataclass(frozen=True)
class Batch:
    """The episodes of one step."""

    played: list[list[Trajectory]]
    """Every group of the step."""
    trained: list[list[Trajectory]]
    """Groups that credit is assigned in."""
    metrics: dict[str, float]
    """What the sampler did."""
    given_up: Sequence[Trajectory] = ()
    """Episodes that are in no group any more, because the sampler has given them up."""


Play = Callable[[Sequence[TaskDraw], Sequence[Group], StepBudget], Sequence[Sequence[Trajectory]]]
"""From draws and their groups to the episodes of each draw."""


def collect(sampler: TaskSampler, step_budget: StepBudget, play: Play) -> Batch:
    """Plays round after round until the sampler has enough or the budget is spent.

    Raises:
        ConfigurationError: the sampler asks for more than the step has left.
    """
    while step_budget.remaining > 0 and (draws := sampler.draw(step_budget)):
        step_budget.last_round = len(step_budget.groups)
        groups = step_budget.reserve(draws)
        for group, members in zip(groups, play(draws, groups, step_budget), strict=True):
            group.members += members
        step_budget.rounds += 1
    selection = sampler.select(step_budget)
    added_members = selection.added_members
    own = [
        [*g.members, *added_members[i]] if i in added_members else g.members
        for i, g in enumerate(selection.trained)
    ]
    # By identity: two groups of one task and equal members would compare equal.
    kept = {id(group) for group in selection.trained}
    # Demonstrations and pairs carry a signal of their own, also where the outcomes of their group are all equal.
    apart = [group.apart for group in step_budget.groups if id(group) not in kept and group.apart]
    trained = [*own, *apart, *selection.replayed]
    return Batch(
        [group.members for group in step_budget.groups],
        trained,
        _metrics(step_budget, selection, trained),
        selection.given_up,
    )


def _metrics(
    step_budget: StepBudget, selection: Selection, trained: Sequence[list[Trajectory]]
) -> dict[str, float]:
    rewards = [[t.reward for t in group if t.valid and t.group_id == group[0].group_id] for group in trained]
    return {
        "rounds": step_budget.rounds,
        "rollouts": sum(len(group.members) for group in step_budget.groups),
        "unspent_rollouts": step_budget.remaining,
        "dropped_groups": len(step_budget.groups) - len(selection.trained),
        "replayed_groups": len(selection.replayed),
        "effective_groups": effective_group_count(
            [len(mine) for mine in rewards if not has_zero_variance(mine)]
        ),
    } | dict(selection.metrics)


def effective_group_count(sizes: Sequence[float]) -> float:
    """(sum n)^2 / sum n^2 (Kish 1965): the number of groups of equal size that weigh as much; 0 for none."""
    total = sum(size * size for size in sizes)
    return sum(sizes) ** 2 / total if total else 0.0


def whole_groups(step_budget: StepBudget, places: Sequence[int] | NDArray[np.intp]) -> list[TaskDraw]:
    """``questions`` groups of the usual size; the places are gone through again where they are fewer."""
    return [
        TaskDraw(int(place), step_budget.group_size) for place in np.resize(places, step_budget.questions)
    ]


def require(name: str, value: float, holds: bool, range_: str) -> None:
    """Raises a ``ConfigurationError`` for an option of a sampler out of its range."""
    if not holds:
        raise ConfigurationError(f"option {name!r} of the task sampler must be {range_}, not {value}")
