"""The estimators by name: from the trajectories of one group to one number per token.

An estimator takes the valid trajectories of one group and gives one float64[T] array each; tokens outside the loss mask
get a value as well and the learner ignores it. Faults never arrive here: they are in neither the loss nor the statistics.
Its keyword-only arguments are its options. ``docs/credit.md`` has the formulas, sources and biases in one table.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentenv.core.trajectory import Trajectory
from agentenv.errors import UnknownName
from agentenv.trainers.group_statistics import Values, is_flat, standardize
from agentenv.trainers.options import bind_options
from agentenv.trainers.outcome_credit import (
    dr_grpo,
    group_relative,
    leave_one_out,
    median_centered,
    optimal_baseline,
)
from agentenv.trainers.tree_credit import pivotal, sibling, tree
from agentenv.trainers.turn_credit import anchor_state, dual_level, return_to_go, turn_level

Estimator = Callable[[Sequence[Trajectory]], list[Values]]

ESTIMATORS: Mapping[str, Callable[..., list[Values]]] = {
    "group_relative": group_relative,
    "dr_grpo": dr_grpo,
    "leave_one_out": leave_one_out,
    "median_centered": median_centered,
    "optimal_baseline": optimal_baseline,
    "return_to_go": return_to_go,
    "turn_level": turn_level,
    "anchor_state": anchor_state,
    "dual_level": dual_level,
    "pivotal": pivotal,
    "sibling": sibling,
    "tree": tree,
}


def get_estimator(name: str, options: Mapping[str, Any] | None = None) -> Estimator:
    """The estimator registered under ``name``, with ``options`` filled in.

    Raises:
        UnknownName: no such estimator, or no such option of it.
        ConfigurationError: an option's value is of another type.
    """
    if name not in ESTIMATORS:
        raise UnknownName.among("advantage estimator", name, ESTIMATORS)
    return bind_options("advantage estimator", name, ESTIMATORS[name], options or {})


__all__ = ["ESTIMATORS", "Estimator", "Values", "get_estimator", "group_relative", "is_flat", "standardize"]
