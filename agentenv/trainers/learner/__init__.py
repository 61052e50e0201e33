"""The learner: losses, packing of rows, and the optimizer's steps."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.trainers.learner.learner import Learner, Objective, rows_of
    from agentenv.trainers.learner.losses import OBJECTIVES, get_objective
    from agentenv.trainers.learner.packing import TrainingRow, micro_batches

__all__ = [
    "OBJECTIVES",
    "Learner",
    "Objective",
    "TrainingRow",
    "get_objective",
    "micro_batches",
    "rows_of",
]

__getattr__, __dir__ = lazy_exports(__name__)
