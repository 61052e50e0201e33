"""What a batch of episodes teaches a set of weights: credit, mini-batches, optimiser steps, a new version of the policy."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from agentenv.core.trajectory import Origin, Trajectory
from agentenv.core.types import EndReason
from agentenv.errors import ConfigurationError
from agentenv.trainers.config.sections import OptimizerSettings, RewardShapingSettings, RolloutSettings
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.credit.decoupled import with_decoupled_deviation
from agentenv.trainers.credit.estimators import get_estimator, left_out_by, untrained_by
from agentenv.trainers.credit.group_statistics import (
    CREDIT_WEIGHT,
    Values,
    has_zero_variance,
    rewards_of,
    with_batch_deviation,
)
from agentenv.trainers.credit.outcome import LOG_RATIOS, MEASURED
from agentenv.trainers.credit.preference_pairs import PAIR
from agentenv.trainers.credit.progress import progress_credit, progress_weight
from agentenv.trainers.credit.redundancy import redundant_in, without_redundant
from agentenv.trainers.credit.shaping import novelty_bonus, penalty_mean, shape_rewards
from agentenv.trainers.credit.step_selection import without_turns
from agentenv.trainers.credit.tree import shared_means
from agentenv.trainers.learner.imitation import DemonstrationBuffer, imitate
from agentenv.trainers.learner.learner import Learner, TrainingRow, rows_of
from agentenv.trainers.learner.optimizers import SecondMoments
from agentenv.trainers.learner.preferences import prefer
from agentenv.trainers.learner.schedules import batch_scale, learning_rate_share
from agentenv.trainers.learner.settings import LossSettings
from agentenv.trainers.run_folder.folder import TrainedPolicy

Shape = Callable[[Sequence[Trajectory]], list[Trajectory]]
"""Gives the trajectories of a group the rewards by which they are credited."""

_TRUNCATED = (EndReason.TURN_LIMIT, EndReason.TOKEN_LIMIT)


@dataclass(frozen=True)
class Credited:
    """A trajectory once it has credit: its rows that carry a gradient, and what it counts in a mean over the batch."""

    rows: tuple[TrainingRow, ...]
    tokens: int


def update_weights(
    config: TrainConfig,
    step: int,
    groups: Sequence[list[Trajectory]],
    policy: TrainedPolicy,
    learner: Learner,
    *,
    rate: float,
    factor: float = 1.0,
    buffer: DemonstrationBuffer | None = None,
) -> dict[str, Any]:
    """Credit, the optimiser steps of one batch, that on demonstrations, a new version of the policy.

    Args:
        config: Of the run.
        step: Its number.
        groups: The episodes of the step.
        policy: Gets the new weights.
        learner: Makes them.
        rate: The peak of the step size.
        factor: What the guard has left of it.
        buffer: Where demonstrations wait for a supervised step, with its optimiser; None makes one on those of this batch.

    Returns:
        Metrics of the last pass over the batch, and under ``updates`` those of every optimiser step where there are several.

    Raises:
        Diverged: a loss or a gradient is not finite.
        ConfigurationError: the loss compares states, and the environment names none.
    """
    settings = config.optimizer
    _refuse_without_states(config.loss, groups)
    shape = partial(shape_group, config.reward_shaping, config.rollout.context_tokens)
    groups = _measured_for(config.loss, shape, groups, learner, policy.version)
    credited, figures = assign_credit(
        config.loss,
        config.reward_shaping,
        config.rollout,
        groups,
        policy.version,
        keep_zero_variance=learner.objective.keeps_zero_variance,
    )
    rate *= _rate_share(settings, config.rollout, step, factor)
    learner.set_learning_rate(rate)
    # Drawn by run and step, so that a resumed run cuts the batch alike.
    steps = _optimizer_steps(
        learner, split_batch(credited, settings.mini_batches, (config.seed, step)), settings.updates
    )
    metrics = mean_metrics(steps[-settings.mini_batches :])
    metrics |= {"updates": steps} if len(steps) > 1 else {}
    metrics |= figures | _redundant(config.loss, groups)
    # Demonstrations had no part in credit, and are learned by steps and an optimiser of their own.
    given = [t for group in groups for t in group if t.valid and t.origin is Origin.DEMONSTRATION]
    demonstrations, preferred = [t for t in given if PAIR not in t.info], [t for t in given if PAIR in t.info]
    metrics |= _imitate(learner, demonstrations, settings.supervised_rate * factor, buffer)
    metrics |= prefer(learner, preferred, settings.supervised_rate * factor, beta=settings.preference_beta)
    # A learner that shares the model with the policy has moved it already; only the version is new then.
    policy.set_weights(learner.weights() if learner.model is not policy.model else None)
    return metrics | {"learning_rate": rate}


def _rate_share(optimizer: OptimizerSettings, rollout: RolloutSettings, step: int, factor: float) -> float:
    """What the peak of the step size is multiplied by in ``step``; ``factor`` is what the guard has left of it."""
    share = learning_rate_share(
        step,
        steps=optimizer.steps,
        warmup=optimizer.warmup_steps,
        schedule=optimizer.schedule,
        final=optimizer.final_rate,
    )
    return share * factor * batch_scale(rollout.questions * rollout.group_size, optimizer.reference_batch)


def _refuse_without_states(loss: LossSettings, groups: Sequence[list[Trajectory]]) -> None:
    """Refuses what would act on nothing, where no turn of a batch says in which state it was chosen.

    Raises:
        ConfigurationError: see above.
    """
    compares = loss.estimator == "anchor_state" and loss.estimator_options.get("turn_weight", 1.0)
    name = "loss.estimator='anchor_state'" if compares else "loss.mask_redundant"
    keys = [turn.anchor_key for group in groups for t in group if t.valid for turn in t.turns]
    if (compares or loss.mask_redundant) and keys and all(key is None for key in keys):
        raise ConfigurationError(
            f"{name} compares turns by the anchor_key of their state, and none of {len(keys)} turns has one: give the "
            f"environment an anchor_key, or leave {name} out"
        )


def _redundant(loss: LossSettings, groups: Sequence[list[Trajectory]]) -> dict[str, int]:
    """How many redundant turns the loss leaves out, where it leaves them out."""
    if not loss.mask_redundant:
        return {}
    return {"redundant_masked": sum(sum(redundant_in(t)) for group in groups for t in group if t.valid)}


def _imitate(
    learner: Learner, demonstrations: Sequence[Trajectory], rate: float, buffer: DemonstrationBuffer | None
) -> dict[str, float]:
    """The supervised step on demonstrations, if there is one."""
    if buffer is None:
        return imitate(learner, demonstrations, rate, SecondMoments())
    taken = buffer.add(demonstrations)
    held = {"demonstrations_held": len(buffer)} if buffer.size else {}
    return held | imitate(learner, taken, rate, buffer.moments)


def credited_members(group: Sequence[Trajectory]) -> list[Trajectory]:
    """The members of ``group`` that an estimator compares."""
    return [t for t in group if _is_credited(t)]


def _is_credited(trajectory: Trajectory) -> bool:
    return trajectory.valid and trajectory.origin is not Origin.DEMONSTRATION


def shape_group(
    shaping: RewardShapingSettings, context_tokens: int, group: Sequence[Trajectory]
) -> list[Trajectory]:
    """The trajectories of ``group`` that are credited, with the rewards by which they are."""
    return shape_rewards(
        credited_members(group),
        limit=context_tokens,
        overlong_buffer=shaping.overlong_buffer,
        overlong_factor=shaping.overlong_factor,
        answer_penalty=shaping.answer_penalty,
        relative_length=shaping.relative_length,
    )


def _measured_for(
    loss: LossSettings, shape: Shape, groups: Sequence[list[Trajectory]], learner: Learner, version: int
) -> Sequence[list[Trajectory]]:
    """``groups`` with what the estimator reads besides rewards, which takes passes of the models.

    Raises:
        ConfigurationError: the learner has several processes, or no reference.
    """
    if loss.estimator_options.get("norm") == "gradient":
        groups = measured_groups(shape, groups, learner, version)
    if loss.estimator_options.get("kl_coefficient"):
        groups = with_log_ratios(groups, learner)
    return groups


def measured_groups(
    shape: Shape,
    groups: Sequence[list[Trajectory]],
    learner: Learner,
    version: int,
) -> list[list[Trajectory]]:
    """``groups``, measured where the rewards by which they are credited differ; the others as they are.

    Args:
        shape: As of ``shape_group``, with what it is told of the run.
        groups: The episodes of a step.
        learner: Measures them.
        version: Of the weights at the start of the update.

    Raises:
        ConfigurationError: the learner has several processes.
    """
    equal = [has_zero_variance(rewards_of(shape(group))) for group in groups]
    return [g if same else measured_group(g, learner, version) for g, same in zip(groups, equal, strict=True)]


def measured_group(group: Sequence[Trajectory], learner: Learner, version: int) -> list[Trajectory]:
    """``group`` with the importance weights and gradient norms that ``optimal_baseline`` reads.

    Raises:
        ConfigurationError: the learner has several processes.
    """
    if type(learner) is not Learner:
        raise ConfigurationError(
            "gradient norms of single episodes are for one process: train without torchrun, or take norm='logits'"
        )
    found = []
    for trajectory in group:
        rows = rows_of([trajectory], [np.ones(len(trajectory.ids))], version=version)
        measures = learner.measure(rows) if trajectory.valid and rows else (1.0, 0.0)
        found.append(replace(trajectory, info=trajectory.info | {MEASURED: list(measures)}))
    return found


def with_log_ratios(groups: Sequence[list[Trajectory]], learner: Learner) -> list[list[Trajectory]]:
    """``groups`` with the log-ratios to the reference that ``reinforce_pp`` reads, of all trajectories that are credited.

    Raises:
        ConfigurationError: the learner has no reference.
    """
    credited = [t for group in groups for t in credited_members(group)]
    ends = np.cumsum([len(t.ids) for t in credited])
    places = [np.arange(end - len(t.ids), end) + 1 for t, end in zip(credited, ends, strict=True)]
    found = np.zeros(sum(len(t.ids) for t in credited) + 1)
    # Rows come back in another order, so each token brings its place as its advantage, which is never 0.
    rows = rows_of(credited, [own.astype(np.float64) for own in places])
    for row in learner.with_log_ratios(rows):
        found[row.advantages[row.trained].astype(np.int64)] = row.proximal
    noted = (
        replace(t, info=t.info | {LOG_RATIOS: found[own]}) for t, own in zip(credited, places, strict=True)
    )
    return [[next(noted) if _is_credited(t) else t for t in group] for group in groups]


def weigh_credit(trajectory: Trajectory, values: Values) -> Values:
    """``values`` times the weight that the task sampler has given the trajectory, if any."""
    return values * trajectory.info[CREDIT_WEIGHT] if CREDIT_WEIGHT in trajectory.info else values


def _optimizer_steps(
    learner: Learner, parts: Sequence[Sequence[Credited]], passes: int
) -> list[dict[str, float]]:
    """One optimiser step for each part in each pass; ratios are formed with the weights before the first of them."""
    rows = [[row for one in part for row in one.rows] for part in parts]
    count = passes * len(parts)
    # With a single step the recorded log-probs are those of the present weights, and a forward pass is saved.
    if count > 1:
        rows = [learner.with_proximal(mine) if learner.reads_proximal(mine) else mine for mine in rows]
    totals = [
        {"tokens": sum(one.tokens for one in part), "sequences": sum(one.tokens > 0 for one in part)}
        for part in parts
    ]
    steps: list[dict[str, float]] = []
    for _ in range(passes):
        for mine, counts in zip(rows, totals, strict=True):
            # All steps of a batch together are one version, so each is a share of it.
            steps.append(learner.step(mine, **counts, update=len(steps) / count))
    return steps


def split_batch(credited: Sequence[Credited], count: int, seed: Sequence[int]) -> list[list[Credited]]:
    """``count`` parts of like size (Schulman et al. 2017, algorithm 1), drawn by ``seed``; a single part keeps the order."""
    if count == 1:
        return [list(credited)]
    order = np.random.default_rng(list(seed)).permutation(len(credited))
    return [[credited[place] for place in part] for part in np.array_split(order, count)]


def mean_metrics(steps: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The metrics of several optimiser steps as those of one: the mean of each, and the sum of the trained tokens.

    A step without rows lacks the metrics of a forward pass, which are then means over the others.
    """
    if len(steps) == 1:
        return dict(steps[0])
    names = dict.fromkeys(name for step in steps for name in step)
    metrics = {name: fmean(step[name] for step in steps if name in step) for name in names}
    return metrics | {"trained_tokens": sum(step["trained_tokens"] for step in steps)}


def _shares_turns(rollout: RolloutSettings, estimator: str) -> bool:
    """Whether one leaf of a tree trains a turn for several, and the estimator does not know it."""
    once = rollout.strategy_options.get("shared", "once") == "once"
    return rollout.strategy == "tree" and once and estimator not in ("tree", "sibling")


def assign_credit(
    loss: LossSettings,
    shaping: RewardShapingSettings,
    rollout: RolloutSettings,
    groups: Sequence[list[Trajectory]],
    version: int,
    *,
    keep_zero_variance: bool,
) -> tuple[list[Credited], dict[str, float]]:
    """The credit of every trajectory, and what the terms that are asked for did to it.

    Episodes that a limit cut off may be left out of the loss (``truncated_masked``). They take part in the statistics of
    their group all the same (DAPO, Yu et al. 2025, section 3.4).
    """
    estimate = get_estimator(loss.estimator, loss.estimator_options)
    credited, masked, changed = [], 0, Counter[str]()
    played = [shape_group(shaping, rollout.context_tokens, group) for group in groups]
    played = _with_step_noted(loss, played)
    # Left out of the loss alone: the estimator has compared all members, which is why one more was played.
    left_out = left_out_by(loss.estimator)
    untrained = untrained_by(loss.estimator, loss.estimator_options)
    for group, valid in zip(groups, played, strict=True):
        spare = left_out(rewards_of(valid)) if left_out and valid else -1
        credit = estimate(valid)
        if _shares_turns(rollout, loss.estimator):
            credit = shared_means(valid, credit)
        credit, counts = _with_bonuses(shaping, group, valid, credit)
        changed += counts
        if untrained:
            valid = list(map(without_turns, valid, untrained(valid)))
        for place, (trajectory, values) in enumerate(
            zip(valid, map(weigh_credit, valid, credit), strict=True)
        ):
            if place == spare:
                continue
            if loss.mask_truncated and trajectory.end_reason in _TRUNCATED:
                masked += 1
                continue
            if loss.mask_redundant:
                values = without_redundant(trajectory, values)
            rows = rows_of([trajectory], [values], keep_zero_variance=keep_zero_variance, version=version)
            weight = progress_weight(trajectory, shaping.progress) if shaping.progress else None
            if weight is not None:
                rows = [replace(row, clip_margin=shaping.progress_clip * weight) for row in rows]
            credited.append(Credited(tuple(rows), int(trajectory.loss_mask.sum())))
    figures = {"truncated_masked": masked} if loss.mask_truncated else {}
    return credited, figures | _shaping_figures(shaping, [t for group in played for t in group], changed)


def _with_step_noted(loss: LossSettings, groups: list[list[Trajectory]]) -> list[list[Trajectory]]:
    """``groups`` with what an estimator has to know of the rewards of the whole step, where it does."""
    options = loss.estimator_options
    if options.get("scale") != "batch":
        return groups
    if loss.estimator == "decoupled":
        return with_decoupled_deviation(groups, **{key: options[key] for key in options if key != "scale"})
    return with_batch_deviation(groups)


def _with_bonuses(
    shaping: RewardShapingSettings,
    group: Sequence[Trajectory],
    valid: Sequence[Trajectory],
    credit: Sequence[Values],
) -> tuple[list[Values], Counter[str]]:
    """The credit with what shaping adds to it, and in how many trajectories each term has changed any of it."""
    novel = novelty_bonus(
        valid,
        credit,
        rewards_of(credited_members(group)),  # before penalties
        strength=shaping.novelty,
        cap=shaping.novelty_cap,
        success=shaping.novelty_success,
    )
    advanced = progress_credit(valid, novel, weight=shaping.progress)
    steps = {"novelty_share": (credit, novel), "progress_share": (novel, advanced)}
    return advanced, Counter(
        {
            name: sum(not np.array_equal(old, new) for old, new in zip(*pair, strict=True))
            for name, pair in steps.items()
        }
    )


def _shaping_figures(
    shaping: RewardShapingSettings, played: Sequence[Trajectory], changed: Counter[str]
) -> dict[str, float]:
    """What each term of shaping that is on did in the step: penalties as means over episodes, bonuses as shares of them."""
    penalties = {
        "overlong_penalty": shaping.overlong_buffer,
        "answer_penalty": shaping.answer_penalty,
        "length_penalty": shaping.relative_length,
    }
    bonuses = {"novelty_share": shaping.novelty, "progress_share": shaping.progress}
    means = {name: penalty_mean(played, name) for name, on in penalties.items() if on}
    return means | {name: changed[name] / max(len(played), 1) for name, on in bonuses.items() if on}
