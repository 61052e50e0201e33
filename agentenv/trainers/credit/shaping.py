"""Terms of reward and credit that training adds; evaluation and the metrics of a step show the reward without them."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

import numpy as np

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason
from agentenv.trainers.credit.group_statistics import Values

ANSWERS = (EndReason.ANSWERED, EndReason.SUBMITTED)
"""Ends of an episode in which the policy handed something in."""

PENALTIES = "penalties"
"""What was subtracted from the reward of a trajectory, by the name of its metric, in its info; `shape_rewards` notes it."""


def overlong_penalty(
    tokens: int, *, limit: int, buffer: int, factor: float = 1.0, floor: float = -1.0
) -> float:
    """DAPO's soft length penalty (Yu et al. 2025, eq. 13): 0 up to limit - buffer, then down by ``factor`` a buffer.

    Args:
        tokens: Length of the episode.
        limit: Where the penalty reaches ``-factor``.
        buffer: Tokens over which it grows; 0 gives none.
        factor: Its size at the limit.
        floor: Least value in units of ``factor``; the published code has none beyond the limit, the paper -1.
    """
    if not buffer:
        return 0.0
    return factor * max(min(-(tokens - (limit - buffer)) / buffer, 0.0), floor)


def relative_length_penalties(
    lengths: Sequence[int], rewards: Sequence[float], *, rate: float
) -> list[float]:
    """Think2SQL's penalty on long successes (arXiv:2504.15077): min(rate z, .9, reward) where z > 0.

    z = (length - mean) / max(std, .2 mean), over the episodes with a reward above .5; fewer than two of these give none.

    Args:
        lengths: Tokens of each episode of a group.
        rewards: Reward of each episode.
        rate: .1 in the published code; 0 gives none.
    """
    good = [length for length, reward in zip(lengths, rewards, strict=True) if reward > 0.5]
    if not rate or len(good) < 2 or not fmean(good):
        return [0.0] * len(rewards)
    mean, scale = fmean(good), max(stdev(good), 0.2 * fmean(good))
    excess = (rate * (length - mean) / scale for length in lengths)
    return [max(min(one, 0.9, reward), 0.0) for one, reward in zip(excess, rewards, strict=True)]


def shape_rewards(
    group: Sequence[Trajectory],
    *,
    limit: int,
    overlong_buffer: int = 0,
    overlong_factor: float = 1.0,
    answer_penalty: float = 0.0,
    relative_length: float = 0.0,
) -> list[Trajectory]:
    """The trajectories with the penalties in the outcome and in the last turn's reward; themselves where there are none.

    What was subtracted stands in ``info`` under ``PENALTIES``, as ``overlong_penalty``, ``answer_penalty`` and
    ``length_penalty``.

    Args:
        group: Valid trajectories.
        limit: Tokens that one row may hold.
        overlong_buffer: See ``overlong_penalty``; counts the longest row.
        overlong_factor: See ``overlong_penalty``.
        answer_penalty: Subtracted from an episode that ended without an answer (Search-R1++): an F1 reward alone makes
            silence as good as a wrong answer.
        relative_length: ``rate`` of ``relative_length_penalties``; counts the tokens that were sampled.
    """
    shaped = []
    lengths, rewards = [t.response_tokens for t in group], [t.reward for t in group]
    relative = relative_length_penalties(lengths, rewards, rate=relative_length)
    for trajectory, lengthy in zip(group, relative, strict=True):
        # The longest row and not their sum, because each row has a context of its own, which is what runs full.
        longest = max((part.stop - part.start for part in trajectory.row_slices), default=0)
        overlong = overlong_penalty(longest, limit=limit, buffer=overlong_buffer, factor=overlong_factor)
        penalties = {
            "overlong_penalty": -overlong,
            "answer_penalty": answer_penalty * (trajectory.end_reason not in ANSWERS),
            "length_penalty": lengthy,
        }
        if penalty := sum(penalties.values()):
            trajectory = add_reward(trajectory, -penalty)
            trajectory = replace(trajectory, info=trajectory.info | {PENALTIES: penalties})
        shaped.append(trajectory)
    return shaped


def penalty_mean(group: Sequence[Trajectory], name: str) -> float:
    """The mean over ``group`` of what `shape_rewards` subtracted under ``name``; 0 for an empty group."""
    return fmean(t.info.get(PENALTIES, {}).get(name, 0.0) for t in group) if group else 0.0


def add_reward(trajectory: Trajectory, amount: float) -> Trajectory:
    """``trajectory`` with ``amount`` in its outcome and in its last turn's reward."""
    turns = trajectory.turns
    if turns:
        # In both places, because estimators of episodes read the outcome and those of turns the rewards of turns.
        turns = (*turns[:-1], replace(turns[-1], reward=turns[-1].reward + amount))
    return replace(trajectory, reward=trajectory.reward + amount, turns=turns)


def novelty_bonus(
    group: Sequence[Trajectory],
    credit: Sequence[Values],
    outcomes: Sequence[float],
    *,
    strength: float,
    cap: float = 0.5,
    success: float = 1.0,
) -> list[Values]:
    """XRPO's bonus (Bamba et al. 2025) for correct episodes: A + min(max(strength (1 - eta), 0), cap A) where A > 0.

    eta = exp(s - mean s), s the mean log-prob of an episode's trained tokens as they were sampled. Tokens that were
    sampled in another context do not count in s. An episode without other tokens has no bonus and does not count in the
    mean. Wrong episodes count in the mean and have no bonus, also where graded rewards put them above the average of their
    group.

    Args:
        group: Valid trajectories of one group.
        credit: float64[T] for each.
        outcomes: Outcome of each, before penalties, so that a correct answer counts as correct even if it is too long.
        strength: 2.5 in the paper; 0 gives no bonus.
        cap: Most of the bonus, in units of A; 0.5 in the paper.
        success: Smallest outcome of a correct episode.
    """
    if not strength:
        return list(credit)
    own = [t.logprobs[t.loss_mask & ~t.context_mismatch].astype(np.float64) for t in group]
    known = [float(logprobs.mean()) for logprobs in own if len(logprobs)]
    middle = sum(known) / max(len(known), 1)
    sharpened = []
    for logprobs, values, outcome in zip(own, credit, outcomes, strict=True):
        correct = outcome >= success and len(logprobs)
        novelty = 1 - np.exp(logprobs.mean() - middle) if correct else 0.0
        bonus = np.minimum(max(strength * novelty, 0.0), cap * values)
        sharpened.append(np.where(values > 0, values + bonus, values))
    return sharpened
