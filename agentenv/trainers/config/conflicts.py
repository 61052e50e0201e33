"""Settings that do not go together: a run would ignore one of them, count it twice, or stop at its first batch.

Each rule gives the sentence that refuses such a configuration, or nothing.
"""

from collections.abc import Callable

from agentenv.trainers.config.sections import OptimizerSettings, RolloutSettings
from agentenv.trainers.learner.settings import LossSettings
from agentenv.trainers.strategies.strategies import IN_CONTEXT
from agentenv.trainers.task_sampling.samplers import GatedSampler, GuidingSampler, get_sampler

UNCLIPPED = ("opmd", "probability_mask")
"""Objectives without bounds on the ratio."""

Rule = Callable[[RolloutSettings, LossSettings, OptimizerSettings], str]


def conflict_of(rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings) -> str:
    """The first sentence that a rule gives; empty where none does.

    Args:
        rollout: Of the run.
        loss: As ``TrainConfig.resolved_loss`` has it.
        optimizer: Of the run.
    """
    return next((found for rule in _RULES if (found := rule(rollout, loss, optimizer))), "")


def bounds_note(
    rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings, *, apart: bool
) -> str:
    """That clip bounds which are named cannot be reached; empty where they can, or where none are named.

    Args:
        rollout: Of the run.
        loss: As ``TrainConfig.resolved_loss`` has it.
        optimizer: Of the run.
        apart: Whether the sampler's log-probs are not those that the learner would compute.
    """
    named = [name for name in ("clip_low", "clip_high") if getattr(loss, name) is not None]
    recorded = apart or get_sampler(rollout.sampler, rollout.sampler_options).replays
    moves = (loss.proximal == "sampler" and recorded) or loss.correction.off_context == "ratio"
    if not named or moves or optimizer.updates * optimizer.mini_batches > 1:
        return ""
    return (
        f"loss.{named[0]}={getattr(loss, named[0]):g} bounds nothing: with one optimiser step a batch every ratio is 1, so "
        "set optimizer.mini_batches or optimizer.updates above 1"
    )


def _mask_without_movement(rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings) -> str:
    """The mask of prime-rl compares with the sampler; the learner's own weights have not moved before its first step."""
    several = optimizer.updates * optimizer.mini_batches > 1
    if loss.objective != "probability_mask" or loss.proximal == "sampler" or several:
        return ""
    return (
        f"loss.objective='probability_mask' leaves out nothing with loss.proximal={loss.proximal!r} and one optimiser step "
        "a batch, as the weights have not moved yet: set loss.proximal to 'sampler', with which prime-rl compares"
    )


def _watched_elsewhere(rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings) -> str:
    """A sampler that gives episodes up is asked by the strategy ``plain`` alone."""
    watches = isinstance(get_sampler(rollout.sampler, rollout.sampler_options), GatedSampler)
    if not watches or rollout.strategy == "plain":
        return ""
    return (
        f"rollout.sampler={rollout.sampler!r} gives episodes up turn by turn, which rollout.strategy='plain' alone lets it "
        f"do, not {rollout.strategy!r}"
    )


def _penalty_twice(rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings) -> str:
    """The penalty towards the initial policy stands in the return or in the loss."""
    within = loss.estimator_options.get("kl_coefficient", 0.0)
    if loss.estimator != "reinforce_pp" or not within or not loss.kl_coefficient:
        return ""
    return (
        f"loss.estimator_options.kl_coefficient={within:g} and loss.kl_coefficient={loss.kl_coefficient:g} would penalise "
        "the distance to the initial policy twice: set one of them to 0"
    )


def _pairs_without_reference(
    rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings
) -> str:
    """Preference pairs are learned against a reference."""
    if rollout.strategy != "critical_step" or loss.needs_reference:
        return ""
    return (
        "rollout.strategy='critical_step' makes pairs of actions that are learned against the initial policy, which is kept "
        f"where it is compared with: loss.kl_coefficient={loss.kl_coefficient:g} must be above 0"
    )


def _bounds_without_effect(rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings) -> str:
    """Clip bounds are for objectives that have some."""
    named = [name for name in ("clip_low", "clip_high") if getattr(loss, name) is not None]
    if loss.objective not in UNCLIPPED or not named:
        return ""
    return (
        f"loss.{named[0]}={getattr(loss, named[0]):g} bounds a ratio, and loss.objective={loss.objective!r} bounds none: "
        "leave it out"
    )


def _weights_of_trl(rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings) -> str:
    """In TRL's convention of CISPO the upper bound is the largest weight itself, and there is no lower one."""
    options = loss.objective_options
    if loss.objective != "cispo" or options.get("convention") != "trl":
        return ""
    high = options.get("clip_high", loss.clip_high)
    if high is not None and high < 1:
        return (
            f"clip_high={high:g} is the largest weight of a token with convention='trl', so that all would be scaled "
            "down to it: name a number above 1, or leave it out for 5"
        )
    if "clip_low" in options or loss.clip_low is not None:
        return "clip_low bounds no weight with loss.objective_options.convention='trl': leave it out"
    return ""


def _demonstrations_of_nobody(
    rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings
) -> str:
    """A buffer of demonstrations needs a strategy that makes some."""
    if not optimizer.supervised_batch or rollout.strategy == "demonstrate":
        return ""
    return (
        f"optimizer.supervised_batch={optimizer.supervised_batch} collects demonstrations, which "
        f"rollout.strategy='demonstrate' makes, not {rollout.strategy!r}"
    )


def _nothing_off_context(rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings) -> str:
    """What is about tokens of another context needs something that leaves such tokens."""
    sampler = get_sampler(rollout.sampler, rollout.sampler_options)
    window = rollout.strategy == "tree" and rollout.strategy_options.get("window")
    leaves_some = rollout.strategy not in IN_CONTEXT or window or sampler.replays
    if leaves_some or (isinstance(sampler, GuidingSampler) and sampler.guides):
        return ""
    shaped = "loss.objective='guided_clip'" if loss.objective == "guided_clip" else ""
    weighed = "loss.correction.off_context='ratio'" if loss.correction.off_context == "ratio" else ""
    if not shaped and not weighed:
        return ""
    return (
        f"{shaped or weighed} acts on tokens that were sampled in another context alone, and rollout.strategy="
        f"{rollout.strategy!r} leaves none"
    )


def _games_of_nobody(rollout: RolloutSettings, loss: LossSettings, optimizer: OptimizerSettings) -> str:
    """The sampler of self-play learns from games alone."""
    if rollout.sampler != "self_play" or rollout.strategy == "self_play":
        return ""
    return f"rollout.sampler='self_play' draws for games, which rollout.strategy={rollout.strategy!r} does not play"


_RULES: tuple[Rule, ...] = (
    _mask_without_movement,
    _watched_elsewhere,
    _penalty_twice,
    _pairs_without_reference,
    _bounds_without_effect,
    _weights_of_trl,
    _demonstrations_of_nobody,
    _nothing_off_context,
    _games_of_nobody,
)
