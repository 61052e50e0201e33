"""Credit: what each token of an episode is worth to the loss."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.trainers.credit.estimators import ESTIMATORS, get_estimator
    from agentenv.trainers.credit.outcome import group_relative
    from agentenv.trainers.credit.shaping import shape_rewards

__all__ = [
    "ESTIMATORS",
    "get_estimator",
    "group_relative",
    "shape_rewards",
]

__getattr__, __dir__ = lazy_exports(__name__)
