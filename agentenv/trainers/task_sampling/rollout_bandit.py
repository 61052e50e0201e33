"""GDRO's game over rollouts as the bandit that the paper plays: how many rollouts each class of difficulty gets.

GDRO, Panaganti et al. 2026, arXiv:2601.19280. Every class has a bandit of its own, whose arms are numbers of rollouts
(EXP3.P, Auer et al. 2002, SIAM J. Comput. 32). The arms of a step are chosen together, so that they spend the budget: those
of the largest product of probabilities. The loss of an arm has a price added for each rollout, and the price follows what is
spent.

Shapes: B classes of a step, K arms.
"""

import math
from collections.abc import Sequence

import numpy as np

from agentenv.trainers.credit.group_statistics import Values


def arm_chances(scores_K: Sequence[float] | Values, *, exploration: float) -> Values:
    """float64[K]: (1 - exploration) softmax(scores) + exploration / K."""
    scores = np.asarray(scores_K, dtype=np.float64)
    # Scores are logarithms of weights and grow over a run, so that exp overflows unless the largest becomes 0.
    weights = np.exp(scores - scores.max())
    chances: Values = (1 - exploration) * weights / weights.sum() + exploration / len(scores)
    return chances


def updated_scores(
    scores_K: Sequence[float], chances_K: Values, arm: int, loss: float, *, exploration: float, bonus: float
) -> list[float]:
    """The logarithms of EXP3.P's weights after one play: scores + exploration / (3 K) (bonus / p - loss [arm] / p).

    A loss and not its gain, as in GDRO: the arms of a step are the likeliest ones and not drawn, and an arm that gained by
    being played would be the likeliest for ever.

    Args:
        scores_K: Before.
        chances_K: With which the arms were played.
        arm: That was played.
        loss: What it cost, in [0, 1].
        exploration: EXP3.P's gamma.
        bonus: Its alpha / sqrt(K T), the bonus for arms that are rarely played.
    """
    rate = exploration / (3 * len(scores_K))
    played = np.arange(len(scores_K)) == arm
    moved: list[float] = (np.asarray(scores_K) + rate * (bonus - loss * played) / chances_K).tolist()
    return moved


def chosen_arms(
    log_chances_B_K: Sequence[Sequence[float]], counts_B: Sequence[int], arms_K: Sequence[int], total: int
) -> list[int]:
    """For each class the number of rollouts of a task, so that together they take ``total`` or as little less as can be.

    Of the choices that come as near, that of the largest sum of log-chances; by dynamic programming over the classes. Where
    even the smallest arms are too many, every class gets the smallest.

    Args:
        log_chances_B_K: Of the arms of each class.
        counts_B: Tasks of each class.
        arms_K: Numbers of rollouts.
        total: Rollouts of all tasks.
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for log_chances, count in zip(log_chances_B_K, counts_B, strict=True):
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for spent, (value, chosen) in best.items():
            for arm, log_chance in zip(arms_K, log_chances, strict=True):
                at, total_value = spent + count * arm, value + log_chance
                # Strictly larger, so that of equal choices the first stays and a resumed run chooses alike.
                if at <= total and total_value > found.get(at, (-math.inf, ()))[0]:
                    found[at] = total_value, (*chosen, arm)
        best = found
    return list(best[max(best)][1]) if best else [min(arms_K)] * len(counts_B)


def priced_loss(variance: float, rollouts: int, price: float, fewest: int) -> float:
    """S^2 / n over its largest value, .25 / (fewest - 1), plus price n, within [0, 1]: the loss of an arm of n rollouts.

    The variance is the unbiased one, so that its mean is the same for all arms. Taken about the mean of the group itself
    without n / (n - 1), two rollouts would seem to vary half as much as many, and the smallest arm to be better than it is.

    Args:
        variance: s^2, the unbiased variance of n rewards in [0, 1]; at most n / (4 (n - 1)).
        rollouts: n.
        price: Of a rollout, which the paper adds.
        fewest: Rollouts of the smallest arm, at least 2.
    """
    return min(max(4 * (fewest - 1) * variance / rollouts + price * rollouts, 0.0), 1.0)


def moved_price(price: float, spent: float, wanted: float, rate: float) -> float:
    """Price + rate (spent - wanted), in rollouts of a task on average."""
    return price + rate * (spent - wanted)
