"""How long a hint must be: an item response model of one question, fitted to the rounds that were played (SEELE).

The three-parameter logistic model (Birnbaum 1968) says how likely an answer is under a hint that shows the share x of a
solution: p(x) = guess + (1 - guess) / (1 + exp(-slope (x - middle))). SEELE (arXiv:2509.06923) fits it to the rounds of a
question. The estimate here is the most likely one under weak priors on a grid, so that one round is enough, and equal rounds
give equal hints.

Shapes: P points of the grid, K rounds.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from agentenv.trainers.credit.group_statistics import Values

_SLOPES = 4.0 * 2.0 ** np.linspace(0, 4, 17)  # 4 to 64: from all of the hint counting to one action deciding
_MIDDLES = np.linspace(-0.5, 1.5, 81)
_GUESSES = np.linspace(0.0, 0.5, 11)
_SLOPE, _MIDDLE, _GUESS = 10.0, 0.5, 0.1
_SLOPE_SPREAD, _MIDDLE_SPREAD = 1.0, 0.5


class ItemResponse(NamedTuple):
    """The model of one question."""

    slope: float
    middle: float
    guess: float

    def chance(self, share: float) -> float:
        """How likely a success is under a hint that shows ``share`` of a solution."""
        return self.guess + (1 - self.guess) / (1 + float(np.exp(-self.slope * (share - self.middle))))

    def share(self, chance: float) -> float:
        """The share in [0, 1] under which a success is as likely as ``chance``, or as near to it as a hint can make it."""
        if chance <= self.guess:
            return 0.0
        if chance >= 1:
            return 1.0
        odds = (chance - self.guess) / (1 - chance)
        return min(max(self.middle + float(np.log(odds)) / self.slope, 0.0), 1.0)


@lru_cache(maxsize=1)
def _grid() -> tuple[Values, Values, Values, Values]:
    """float64[P] each: slope, middle, guess and log-prior of every point."""
    slopes, middles, guesses = (a.ravel() for a in np.meshgrid(_SLOPES, _MIDDLES, _GUESSES, indexing="ij"))
    prior = (
        -0.5 * (np.log(slopes / _SLOPE) / _SLOPE_SPREAD) ** 2
        - 0.5 * ((middles - _MIDDLE) / _MIDDLE_SPREAD) ** 2
        - guesses / _GUESS
    )
    return slopes, middles, guesses, prior


def fitted_response(
    shares_K: Sequence[float], successes_K: Sequence[int], played_K: Sequence[int]
) -> ItemResponse:
    """The most likely model: the largest sum of log-prior and of the binomial log-likelihoods of the rounds.

    The priors are this project's: log slope is normal around log 10 with deviation 1, the middle is normal around .5 with
    deviation .5, and the chance to guess is exponential with mean .1.

    Args:
        shares_K: What the hint of each round showed.
        successes_K: Episodes that succeeded in each round.
        played_K: Episodes of each round; a round of none says nothing.
    """
    slopes, middles, guesses, scores = _grid()
    for share, successes, played in zip(shares_K, successes_K, played_K, strict=True):
        logistic = 1 / (1 + np.exp(-slopes * (share - middles)))
        chances = np.clip(guesses + (1 - guesses) * logistic, 1e-9, 1 - 1e-9)
        scores = scores + successes * np.log(chances) + (played - successes) * np.log1p(-chances)
    best = int(np.argmax(scores))
    return ItemResponse(float(slopes[best]), float(middles[best]), float(guesses[best]))
