"""The supervised step that ReLIFT puts between those of reinforcement learning."""

from collections.abc import Sequence

import numpy as np

from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError
from agentenv.trainers.learner.learner import Learner, Objective, rows_of
from agentenv.trainers.learner.settings import MemorySettings


def imitate(learner: Learner, demonstrations: Sequence[Trajectory], rate: float) -> dict[str, float]:
    """One optimiser step on the mean of -log p over the demonstrations' tokens, at temperature 1.

    The moments of the optimiser are those of ``learner``, so that a checkpoint holds all there is.

    Args:
        learner: Owns model and optimiser.
        demonstrations: Trajectories whose policy tokens are to be imitated; none makes no step.
        rate: Step size.

    Returns:
        The loss in nats a token, and the number of demonstrations; nothing where there is none.

    Raises:
        ConfigurationError: the learner has several processes.
    """
    if not demonstrations:
        return {}
    if type(learner) is not Learner:
        raise ConfigurationError(
            "the supervised step on demonstrations is for one process: train without torchrun"
        )
    goal = learner.objective
    memory = {name: getattr(goal, name) for name in MemorySettings.model_fields if name != "precision"}
    supervised = Learner(
        learner.model,
        Objective(objective="opmd", objective_options={"tau": 0.0}, **memory),
        learning_rate=rate,
        max_grad_norm=learner.max_grad_norm,
        optimizer=learner.optimizer,
        image_reader=learner.image_reader,
    )
    supervised.set_learning_rate(rate)
    metrics = supervised.step(rows_of(demonstrations, [np.ones(len(t.ids)) for t in demonstrations]))
    learner.compute_seconds += supervised.compute_seconds
    return {"supervised_loss": metrics["loss"]}
