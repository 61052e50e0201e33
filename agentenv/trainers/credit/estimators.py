"""The estimators by name: from the trajectories of one group to one number per token.

An estimator takes the valid trajectories of one group and gives one float64[T] array each; tokens outside the loss mask
get a value as well and the learner ignores it. Faults never arrive here: they are in neither the loss nor the statistics.
Its keyword-only arguments are its options. ``docs/credit.md`` has the formulas, sources and biases in one table.
"""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from agentenv.core.options import bind_options, load_entry, load_part
from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.group_statistics import Values
from agentenv.trainers.credit.step_selection import SHARE, high_entropy_tokens, low_entropy_turns

Estimator = Callable[[Sequence[Trajectory]], list[Values]]


def role_wise(
    group: Sequence[Trajectory],
    *,
    estimators: Mapping[str, str] = {"proposer": "leave_one_out"},
) -> list[Values]:
    """Gives each role of a self-play game an estimator of its own, which compares the episodes of that role alone.

    Multi-Agent Evolve, Chen et al. 2025, arXiv:2510.23595; the baseline of the proposer is this project's.
    Self-play puts the episodes of a role into one group per game or one per step. With ``leave_one_out`` a proposer is
    compared with the other proposers of the step, which is REINFORCE with their mean as its baseline, without bias.
    Biased if the estimator of a role is; by default, for solvers, as ``group_relative``: .536 along, .031 aside.

    Args:
        group: Valid trajectories; ``info["role"]`` says whose they are, ``solver`` where it says nothing.
        estimators: Estimator of each role; roles that are not named have ``group_relative``.
    """
    roles = [str(trajectory.info.get("role", "solver")) for trajectory in group]
    values: dict[int, Values] = {}
    # In the order of first appearance: a set would make the order depend on the hash seed of the process.
    for role in dict.fromkeys(roles):
        mine = [place for place, other in enumerate(roles) if other == role]
        estimate = get_estimator(estimators.get(role, "group_relative"))
        values |= dict(zip(mine, estimate([group[place] for place in mine]), strict=True))
    return [values[place] for place in range(len(group))]


def high_entropy(
    group: Sequence[Trajectory], *, estimator: str = "group_relative", share: float = SHARE
) -> list[Values]:
    """Keeps the values of another estimator on the turns of highest entropy and gives 0 to the other turns.

    DART, Li et al. 2025, arXiv:2509.23866, does not train steps below the 20 % quantile of the entropies of a group, so that
    in training they leave the loss, its penalties and its denominator (`untrained_by`). The estimate of a turn's entropy is
    this project's: the mean -log p of the sampled tokens, so that among turns of few tokens those with rare words are
    chosen. Biased: .509 along, .105 aside.

    Args:
        group: Valid trajectories.
        estimator: The other estimator, with its defaults.
        share: Share of the turns of the group that are trained, within (0, 1]; .8 in the paper.

    Raises:
        ConfigurationError: ``share`` is out of range.
    """
    if not 0 < share <= 1:
        raise ConfigurationError(f"option 'share' of high_entropy must be within (0, 1], not {share}")
    values = get_estimator(estimator)(group)
    kept = high_entropy_tokens(group, share)
    return [np.where(tokens, mine, 0.0) for tokens, mine in zip(kept, values, strict=True)]


ESTIMATORS: Mapping[str, str] = {
    # Named by strings, so that reading a configuration imports none of them.
    "group_relative": "agentenv.trainers.credit.outcome:group_relative",
    "dr_grpo": "agentenv.trainers.credit.outcome:dr_grpo",
    "leave_one_out": "agentenv.trainers.credit.outcome:leave_one_out",
    "median_centered": "agentenv.trainers.credit.outcome:median_centered",
    "optimal_baseline": "agentenv.trainers.credit.outcome:optimal_baseline",
    "reinforce_pp": "agentenv.trainers.credit.outcome:reinforce_pp",
    "return_to_go": "agentenv.trainers.credit.turn:return_to_go",
    "turn_level": "agentenv.trainers.credit.turn:turn_level",
    "anchor_state": "agentenv.trainers.credit.turn:anchor_state",
    "dual_level": "agentenv.trainers.credit.turn:dual_level",
    "pivotal": "agentenv.trainers.credit.tree:pivotal",
    "sibling": "agentenv.trainers.credit.tree:sibling",
    "tree": "agentenv.trainers.credit.tree:tree",
    "role_wise": "agentenv.trainers.credit.estimators:role_wise",
    "high_entropy": "agentenv.trainers.credit.estimators:high_entropy",
    "turn_roles": "agentenv.trainers.credit.turn_roles:turn_roles",
    "decoupled": "agentenv.trainers.credit.decoupled:decoupled",
}


OTHER_NAMES: Mapping[str, str] = {
    "grpo": "group_relative",
    "rloo": "leave_one_out",
    "gigpo": "anchor_state",
    "reinforce_plus_plus": "reinforce_pp",
}
"""What TRL and verl call some of them, for errors: ``grpo`` would otherwise be taken for a misspelt ``dr_grpo``."""


def left_out_by(name: str) -> Callable[[Sequence[float]], int] | None:
    """From the rewards of a group to the place of the member that leaves the loss; None where the estimator has none."""
    found: Callable[[Sequence[float]], int] | None = (
        load_entry(_LEFT_OUT[name]) if name in _LEFT_OUT else None
    )
    return found


_LEFT_OUT = {"median_centered": "agentenv.trainers.credit.outcome:median_member"}


def untrained_by(
    name: str, options: Mapping[str, Any]
) -> Callable[[Sequence[Trajectory]], list[list[int]]] | None:
    """From a group to the turns of each member that leave the loss; None where the estimator has none."""
    return partial(low_entropy_turns, share=options.get("share", SHARE)) if name == "high_entropy" else None


def get_estimator(name: str, options: Mapping[str, Any] | None = None) -> Estimator:
    """The estimator registered under ``name``, or the function ``module:function``, with ``options`` filled in.

    Raises:
        UnknownName: no such estimator, or no such option of it.
        ConfigurationError: an option's value is of another type, or no function of that name can be imported.
    """
    kind = "advantage estimator"
    estimator: Callable[..., list[Values]] = load_part(kind, name, ESTIMATORS, OTHER_NAMES)
    bound = bind_options(kind, name, estimator, options or {})
    return bound if name in ESTIMATORS else partial(_checked_values, name, bound)


def _checked_values(name: str, estimator: Estimator, group: Sequence[Trajectory]) -> list[Values]:
    """The values of an estimator of the user, one number for each token of each trajectory.

    Raises:
        ConfigurationError: they have another shape, or are not finite.
    """
    given = estimator(group)
    try:
        values = [np.asarray(one, dtype=np.float64) for one in given]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the advantage estimator {name!r} returned {reprlib.repr(given)}; it must return a list of arrays of numbers"
        ) from error
    shapes, wanted = [one.shape for one in values], [trajectory.loss_mask.shape for trajectory in group]
    if shapes != wanted:
        raise ConfigurationError(
            f"the advantage estimator {name!r} returned arrays of the shapes {shapes}, and the trajectories of the group "
            f"have {wanted} tokens: return one array for each, with one number for each token"
        )
    if not all(np.isfinite(one).all() for one in values):
        raise ConfigurationError(f"the advantage estimator {name!r} returned a number that is not finite")
    return values


__all__ = ["ESTIMATORS", "Estimator", "Values", "get_estimator"]
