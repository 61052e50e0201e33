"""Settings that do not go together: a run would ignore one of them, count it twice, or stop at its first batch.

Each conflict is the sentence that refuses such a configuration.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from math import isclose

from agentenv.evaluation.task_env import OWN_ENVIRONMENT
from agentenv.trainers.config.sections import (
    EnvironmentSettings,
    EvaluationSettings,
    OptimizerSettings,
    RolloutSettings,
)
from agentenv.trainers.learner.settings import LossSettings
from agentenv.trainers.strategies.strategies import IN_CONTEXT
from agentenv.trainers.task_sampling.samplers import (
    GatedSampler,
    GuidingSampler,
    chooses_tasks,
    get_sampler,
)

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
UNCLIPPED = ("opmd", "probability_mask")
"""Objectives without bounds on the ratio."""


def conflict_of(rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings) -> str:
    """The first conflict; empty where there is none.

    Args:
        rollout: Of the run.
        loss: As ``TrainConfig.resolved_loss`` has it.
        optimizer: Of the run.
    """
    several = optimizer.updates * optimizer.mini_batches > 1
    found = chain(
        _within_loss(loss, several_steps=several),
        _with_strategy(rollout, loss, supervised_batch=optimizer.supervised_batch),
    )
    return next(found, "")


def environments_conflict(
    environments: Mapping[str, EnvironmentSettings],
    own_sets: Collection[str],
    rollout: RolloutSettings,
    evaluation: EvaluationSettings,
) -> str:
    """What keeps further environments out of a run; empty where nothing does.

    Args:
        environments: By their names.
        own_sets: What several sets of training or dev questions of the run's own environment are called.
        rollout: Of the run.
        evaluation: Of the run.
    """
    for name in environments:
        if name in (OWN_ENVIRONMENT, evaluation.strategy) or not _ENVIRONMENT_NAME.fullmatch(name):
            return (
                f"environments.{name}: the name of a further environment is a word of letters, digits and '_', and neither "
                f"{OWN_ENVIRONMENT!r} nor the strategy of the evaluation: its figures and folders are named after it"
            )
    if twice := next((name for name in (OWN_ENVIRONMENT, *environments) if name in own_sets), None):
        return (
            f"the environment {twice!r} is called as one of several sets of questions in train.dataset or dev.dataset, and "
            "figures are called after both: give one of them another name"
        )
    total = sum(one.share for one in environments.values())
    # .7 + .2 + .1 is just below 1 in floating-point numbers.
    if total > 1 or isclose(total, 1):
        return (
            f"the shares of environments add up to {total:g}, which leaves no question to the run's own environment: lower "
            "them, so that they add up to less than 1"
        )
    if rollout.strategy in ("self_play", "demonstrate"):
        return (
            f"rollout.strategy={rollout.strategy!r} is for one environment alone: leave environments out, or take another "
            "strategy"
        )
    if chooses_tasks(get_sampler(rollout.sampler, rollout.sampler_options)):
        return (
            f"rollout.sampler={rollout.sampler!r} chooses tasks by a rule of its own, which the shares of environments would"
            " change: leave environments out, or take a sampler that draws uniformly, such as 'uniform' or 'dapo'"
        )
    return ""


def bounds_note(
    rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings, *, mismatch: bool
) -> str:
    """A sentence that says that the clip bounds cannot be reached; empty where they can, or where none are named.

    Args:
        rollout: Of the run.
        loss: As ``TrainConfig.resolved_loss`` has it.
        optimizer: Of the run.
        mismatch: Whether the sampler's log-probs are not those that the learner would compute.
    """
    named = [name for name in ("clip_low", "clip_high") if getattr(loss, name) is not None]
    recorded = mismatch or get_sampler(rollout.sampler, rollout.sampler_options).replays
    moves = (loss.proximal == "sampler" and recorded) or loss.correction.off_context == "ratio"
    if not named or moves or optimizer.updates * optimizer.mini_batches > 1:
        return ""
    return (
        f"loss.{named[0]}={getattr(loss, named[0]):g} bounds nothing: with one optimiser step a batch every ratio is 1, so "
        "set optimizer.mini_batches or optimizer.updates above 1"
    )


def _within_loss(loss: LossSettings, *, several_steps: bool) -> Iterator[str]:
    """Conflicts among the settings of the loss; ``several_steps`` says whether a batch has more than one optimiser step."""
    # The mask of prime-rl compares with the sampler; the learner's own weights have not moved before its first step.
    if loss.objective == "probability_mask" and loss.proximal != "sampler" and not several_steps:
        yield (
            f"loss.objective='probability_mask' leaves out nothing with loss.proximal={loss.proximal!r} and one optimiser "
            "step a batch, as the weights have not moved yet: set loss.proximal to 'sampler', with which prime-rl compares"
        )
    within = loss.estimator_options.get("kl_coefficient", 0.0)
    if loss.estimator == "reinforce_pp" and within and loss.kl_coefficient:
        yield (
            f"loss.estimator_options.kl_coefficient={within:g} and loss.kl_coefficient={loss.kl_coefficient:g} would "
            "penalise the distance to the initial policy twice: set one of them to 0"
        )
    named = [name for name in ("clip_low", "clip_high") if getattr(loss, name) is not None]
    if loss.objective in UNCLIPPED and named:
        yield (
            f"loss.{named[0]}={getattr(loss, named[0]):g} bounds a ratio, and loss.objective={loss.objective!r} bounds "
            "none: leave it out"
        )
    # In TRL's convention of CISPO the upper bound is the largest weight itself, and there is no lower one.
    options = loss.objective_options
    if loss.objective == "cispo" and options.get("convention") == "trl":
        high = options.get("clip_high", loss.clip_high)
        if high is not None and high < 1:
            yield (
                f"clip_high={high:g} is the largest weight of a token with convention='trl', so that all would be scaled "
                "down to it: name a number above 1, or leave it out for 5"
            )
        if "clip_low" in options or loss.clip_low is not None:
            yield "clip_low bounds no weight with loss.objective_options.convention='trl': leave it out"


def leaves_contexts(rollout: RolloutSettings) -> bool:
    """Whether the strategy may leave tokens that were sampled in another context than theirs, or at another temperature."""
    options = rollout.strategy_options
    if rollout.strategy == "tree":
        return bool(options.get("window"))
    if rollout.strategy == "self_play":
        return any(one != rollout.temperature for one in options.get("temperatures", {}).values())
    return rollout.strategy not in IN_CONTEXT


def _with_strategy(rollout: RolloutSettings, loss: LossSettings, *, supervised_batch: int) -> Iterator[str]:
    """Conflicts of the rollout strategy with the task sampler, the loss and the supervised steps."""
    strategy, sampler = rollout.strategy, get_sampler(rollout.sampler, rollout.sampler_options)
    if isinstance(sampler, GatedSampler) and strategy != "plain":
        yield (
            f"rollout.sampler={rollout.sampler!r} gives episodes up turn by turn, which rollout.strategy='plain' alone lets "
            f"it do, not {strategy!r}"
        )
    if strategy == "critical_step" and not loss.needs_reference:
        yield (
            "rollout.strategy='critical_step' makes pairs of actions that are learned against the initial policy, which is "
            f"kept where it is compared with: loss.kl_coefficient={loss.kl_coefficient:g} must be above 0"
        )
    if supervised_batch and strategy != "demonstrate":
        yield (
            f"optimizer.supervised_batch={supervised_batch} collects demonstrations, which rollout.strategy='demonstrate' "
            f"makes, not {strategy!r}"
        )
    # What is about tokens of another context needs something that leaves such tokens.
    leaves_some = leaves_contexts(rollout) or sampler.replays
    guided = isinstance(sampler, GuidingSampler) and sampler.guides
    shaped = "loss.objective='guided_clip'" if loss.objective == "guided_clip" else ""
    weighed = "loss.correction.off_context='ratio'" if loss.correction.off_context == "ratio" else ""
    if not leaves_some and not guided and (shaped or weighed):
        yield (
            f"{shaped or weighed} acts on tokens that were sampled in another context alone, and rollout.strategy="
            f"{strategy!r} leaves none"
        )
    if rollout.sampler == "self_play" and strategy != "self_play":
        yield f"rollout.sampler='self_play' draws for games, which rollout.strategy={strategy!r} does not play"
