"""Step-level preference optimisation: a better action over a worse one in the same state (EvoCUA, arXiv:2601.15876).

The loss of a pair is direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290, eq. 7) over the tokens of one
turn: -log sigmoid(m), m = beta (log pi(w) / ref(w) - log pi(l) / ref(l)), w the better action and l the worse one. Its
gradient is that of -beta sigmoid(-m) (log pi(w) - log pi(l)) with the factor held fixed, which is how it is taken here: the
two actions of a pair then need not stand in one micro-batch.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log1p
from typing import Any, NamedTuple

import numpy as np

from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.errors import ConfigurationError
from agentenv.policies.lora import without_adapters
from agentenv.trainers.credit.preference_pairs import PAIR
from agentenv.trainers.learner.learner import Learner, Objective, rows_of
from agentenv.trainers.learner.settings import MemorySettings


class PairLoss(NamedTuple):
    """Loss of a pair, and how strongly it pulls."""

    loss: float
    weight: float
    """beta sigmoid(-m): what the log-probs of both actions are weighed by."""


def pair_loss(better: float, worse: float, *, beta: float = 0.1) -> PairLoss:
    """-log sigmoid(m) and beta sigmoid(-m) for m = beta (better - worse).

    Args:
        better: log pi(w) - log ref(w), summed over the tokens of the turn.
        worse: log pi(l) - log ref(l).
        beta: Strength.
    """
    m = beta * (better - worse)
    # Each branch takes exp of a negative number: of a positive one it overflows from 710 on.
    loss = log1p(exp(-m)) if m > 0 else log1p(exp(m)) - m
    pull = exp(-m) / (1.0 + exp(-m)) if m > 0 else 1.0 / (1.0 + exp(m))
    return PairLoss(loss, beta * pull)


def one_turn(trajectory: Trajectory, turn: int) -> Trajectory:
    """``trajectory`` with the tokens of one turn as its only trained ones."""
    segments = (
        replace(s, trained=s.turn == turn) if s.kind is SegmentKind.POLICY else s for s in trajectory.segments
    )
    return replace(trajectory, segments=tuple(segments))


def prefer(
    learner: Learner, trajectories: Sequence[Trajectory], rate: float, *, beta: float = 0.1
) -> dict[str, float]:
    """One optimiser step on the mean loss of pairs; the moments of the optimiser are those of ``learner``.

    Args:
        learner: Owns model, reference and optimiser.
        trajectories: Both of each pair, in any order; none makes no step.
        rate: Step size.
        beta: Strength.

    Returns:
        Mean loss, the share of pairs whose better action is already likelier than under the reference, and their number;
        nothing where there is none.

    Raises:
        ConfigurationError: the learner has no reference, or several processes.
    """
    pairs = _pairs(trajectories)
    if not pairs:
        return {}
    # Not `isinstance`: the sharded learner is a subclass, and the siblings below are made for one process.
    if type(learner) is not Learner or learner.reference is None:
        raise ConfigurationError(
            "preferences are learned in one process and against a reference: train without torchrun, and set "
            "loss.kl_coefficient above 0"
        )
    flat = [t for pair in pairs for t in pair]
    gains = _log_ratios(learner, flat)
    losses = [pair_loss(gains[2 * i], gains[2 * i + 1], beta=beta) for i in range(len(pairs))]
    credit = []
    for trajectory, (loss, sign) in zip(
        flat, ((loss, sign) for loss in losses for sign in (1.0, -1.0)), strict=True
    ):
        # With the loss -A log p these values of A have the slopes of the pair's loss, -weight and weight.
        credit.append(np.where(trajectory.loss_mask, sign * loss.weight, 0.0))
    own = _sibling(learner, learner.model, rate)
    # The mean is over pairs and not over tokens: within a pair the log-probs of a turn are summed.
    metrics = own.step(rows_of(flat, credit), tokens=len(pairs))
    learner.compute_seconds += own.compute_seconds
    return {
        "preference_loss": sum(one.loss for one in losses) / len(losses),
        "preference_won": sum(one.weight < beta / 2 for one in losses) / len(losses),
        "preference_pairs": float(len(pairs)),
        "preference_grad_norm": metrics["grad_norm"],
    }


def _pairs(trajectories: Sequence[Trajectory]) -> list[tuple[Trajectory, Trajectory]]:
    """The pairs, the better one first; what has lost its partner is left out."""
    found: dict[str, dict[bool, Trajectory]] = {}
    for trajectory in trajectories:
        about = trajectory.info[PAIR]
        # One of a pair may have been lost to a fault, or stand in another batch, so both are looked for by name.
        found.setdefault(about["pair"], {})[about["better"]] = one_turn(trajectory, about["turn"])
    whole = [(pair[True], pair[False]) for pair in found.values() if len(pair) == 2]
    return [pair for pair in whole if all(t.loss_mask.any() for t in pair)]


def _log_ratios(learner: Learner, trajectories: Sequence[Trajectory]) -> list[float]:
    """Log pi - log ref of each, summed over its trained tokens."""
    policy, reference = (_sibling(learner, model, 0.0) for model in (learner.model, learner.reference))
    ours = _sums(policy, trajectories)
    with without_adapters(learner.reference):
        theirs = _sums(reference, trajectories)
    learner.compute_seconds += policy.compute_seconds + reference.compute_seconds
    return [a - b for a, b in zip(ours, theirs, strict=True)]


def _sums(learner: Learner, trajectories: Sequence[Trajectory]) -> list[float]:
    """Log-prob of each one's trained tokens, which may stand in several rows."""
    rows = (rows_of([t], [np.ones(len(t.ids))]) for t in trajectories)
    scored = (learner.with_proximal(own) for own in rows)
    return [sum(float(row.proximal.sum()) for row in own if row.proximal is not None) for own in scored]


def _sibling(learner: Learner, model: Any, rate: float) -> Learner:
    """A learner of the same memory and optimiser whose loss is -A log p, on ``model``."""
    goal = learner.objective
    memory = {name: getattr(goal, name) for name in MemorySettings.model_fields if name != "precision"}
    made = Learner(
        model,
        Objective(objective="opmd", objective_options={"tau": 0.0}, aggregation="token_mean", **memory),
        learning_rate=rate,
        max_grad_norm=learner.max_grad_norm,
        optimizer=learner.optimizer,
        image_reader=learner.image_reader,
    )
    # The optimiser is the learner's own, and has the step size of its last step: a sibling that scores leaves it alone.
    if rate:
        made.set_learning_rate(rate)
    return made
