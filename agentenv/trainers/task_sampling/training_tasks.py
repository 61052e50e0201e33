"""The tasks that a run trains on: those of its environment, or of several environments together."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from agentenv.core.rollout import RolloutConfig
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.evaluation.task_env import ENVIRONMENT_KEY, TaskEnv
from agentenv.trainers.task_sampling.set_mixture import SetMixture, set_mixture


@dataclass(frozen=True)
class TrainedEnvironment:
    """One environment that is trained in."""

    name: str
    """What its figures are called."""
    share: float
    """Share of the questions of a step that it poses."""
    task_env: TaskEnv
    """Its questions, its retriever, and how it is made."""
    settings: RolloutConfig
    """Budgets and sampling of its episodes."""
    weights: Mapping[str, float]
    """Of several sets of questions: the weight of each; may be empty."""


class TrainingTasks:
    """The tasks of all environments one after the other, each of which names its environment where there are several."""

    def __init__(self, environments: Sequence[TrainedEnvironment]) -> None:
        """Takes up the tasks.

        Args:
            environments: At least one, the run's own first.

        Raises:
            ConfigurationError: a set of a weight above 0 has no task, or a task says already that it is of an environment.
        """
        self.environments = environments
        own, *further = environments
        self.tasks = tuple(task for one in environments for task in self._named(one))
        self._ends = list(accumulate(len(one.task_env.source.tasks) for one in environments))
        self.mixture = set_mixture(own.task_env.source, own.weights) if not further else self._mixture()

    def environment_at(self, place: int) -> TrainedEnvironment:
        """The environment of the task at ``place``."""
        return self.environments[bisect_right(self._ends, place)]

    def environment_of(self, task: Task) -> str:
        """The name of the environment of ``task``, one of these."""
        return str(task.data[ENVIRONMENT_KEY]) if self.several else self.environments[0].name

    @property
    def several(self) -> bool:
        """Whether there is more than one environment."""
        return len(self.environments) > 1

    def _named(self, environment: TrainedEnvironment) -> Sequence[Task]:
        tasks = environment.task_env.source.tasks
        if not self.several:
            return tasks
        if taken := next((task for task in tasks if ENVIRONMENT_KEY in task.data), None):
            raise ConfigurationError(
                f"task {taken.id!r} of the environment {environment.name!r} has {ENVIRONMENT_KEY!r} in its data, where a "
                "run in several environments names that of a task: call this field of the questions otherwise"
            )
        return [replace(task, data={**task.data, ENVIRONMENT_KEY: environment.name}) for task in tasks]

    def _mixture(self) -> SetMixture:
        """Each environment gives its share, divided among its sets by their weights."""
        places: list[Sequence[int]] = []
        weights: list[float] = []
        for environment, end in zip(self.environments, self._ends, strict=True):
            source = environment.task_env.source
            sets = set_mixture(source, environment.weights)
            sets = sets or SetMixture([range(len(source.tasks))], [1.0])
            begin, total = end - len(source.tasks), sum(sets.weights)
            places += [[begin + place for place in own] for own in sets.places]
            weights += [environment.share * weight / total for weight in sets.weights]
        return SetMixture(places, weights)
