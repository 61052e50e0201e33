"""The supervised step that ReLIFT puts between those of reinforcement learning, and the demonstrations that wait for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentenv.core.trajectory import Trajectory, checkpoint_record, from_record
from agentenv.core.types import Task
from agentenv.errors import CheckpointMismatch, ConfigurationError
from agentenv.trainers.learner.learner import Learner, Objective, rows_of
from agentenv.trainers.learner.optimizers import SecondMoments
from agentenv.trainers.learner.settings import MemorySettings


class DemonstrationBuffer:
    """Collects demonstrations until there are enough for a supervised step.

    ReLIFT, Ma et al. 2025, arXiv:2506.07527. As in its program, the newest stand first, a step takes the first ``size``, and
    what is left waits for a later step.

    Args:
        size: Demonstrations of a supervised step; 0 takes those of each batch, however many.
        tasks: What the demonstrations may be of.
    """

    def __init__(self, size: int, tasks: Sequence[Task]) -> None:
        self.size = size
        self._tasks = tasks
        self._held: list[Trajectory] = []
        self.moments = SecondMoments()
        """Of the supervised steps."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, demonstrations: Sequence[Trajectory]) -> list[Trajectory]:
        """Takes up the demonstrations of a batch; those that a supervised step is to be made on now, if any."""
        if not self.size:
            return list(demonstrations)
        self._held = [*demonstrations, *self._held]
        if len(self._held) < self.size:
            return []
        taken, self._held = self._held[: self.size], self._held[self.size :]
        return taken

    def state_dict(self) -> dict[str, Any]:
        """The demonstrations that wait, and the moments of the supervised steps so far."""
        return {"held": list(map(checkpoint_record, self._held)), "moments": self.moments.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood.

        Raises:
            CheckpointMismatch: a demonstration is of a task that is not trained on.
        """
        tasks = {task.id: task for task in self._tasks}
        held = [(record["task"]["id"], record) for record in state.get("held", ())]
        if gone := [name for name, _ in held if name not in tasks]:
            raise CheckpointMismatch(
                f"the checkpoint holds a demonstration of task {gone[0]!r}, which is not among the "
                f"{len(tasks)} training tasks of this run: resume with the questions that it was written with"
            )
        self._held = [from_record(record, tasks[name]) for name, record in held]
        self.moments.load_state_dict(state.get("moments", {}))


def imitate(
    learner: Learner, demonstrations: Sequence[Trajectory], rate: float, moments: SecondMoments
) -> dict[str, float]:
    """One optimiser step on the mean of -log p over the demonstrations' tokens, at temperature 1.

    As in the program of ReLIFT, these steps have an optimiser of their own.

    Args:
        learner: Owns the model, and the optimiser of the other steps.
        demonstrations: Trajectories whose policy tokens are to be imitated; none makes no step.
        rate: Step size.
        moments: The optimiser of these steps.

    Returns:
        The loss in nats a token, and the number of demonstrations; nothing where there is none.

    Raises:
        ConfigurationError: the learner has several processes.
    """
    if not demonstrations:
        return {}
    # Not `isinstance`: the sharded learner is a subclass, and a second one of it would need orders of its own.
    if type(learner) is not Learner:
        raise ConfigurationError(
            "the supervised step on demonstrations is for one process: train without torchrun"
        )
    goal = learner.objective
    memory = {name: getattr(goal, name) for name in MemorySettings.model_fields if name != "precision"}
    trained = [parameter for parameter in learner.model.parameters() if parameter.requires_grad]
    supervised = Learner(
        learner.model,
        Objective(objective="opmd", objective_options={"tau": 0.0}, **memory),
        learning_rate=rate,
        max_grad_norm=learner.max_grad_norm,
        optimizer=moments.beside(learner.optimizer, trained, goal, rate),
        image_reader=learner.image_reader,
    )
    metrics = supervised.step(rows_of(demonstrations, [np.ones(len(t.ids)) for t in demonstrations]))
    learner.compute_seconds += supervised.compute_seconds
    return {"supervised_loss": metrics["loss"]}
