"""A group sequential permutation test with family-wise error control: have enough seeds been run to decide?

After AdaStop (Mathieu, Della Vecchia, Shilova, Centa, Kohler, Maillard, Preux 2023, "AdaStop: adaptive
statistical testing for sound comparisons of Deep RL agents", arXiv:2306.10882, algorithm 1). Systems are run
on a few seeds at a time. After each interim analysis, the sums of all scores so far are compared with those under
permutations of the scores between two systems within each interim. So no assumption about the distribution
of scores is needed. The error level is divided evenly among the interims, so early tests do not exceed it.

Of several pairs, the most extreme one is decided first and leaves the family (step-down with the maximum). All pairs use the
same permutations. For two systems the level is exact. For more it is asymptotic, because each pair is permuted by itself and
not all scores together: with five seeds per interim, any two of three to seven equal systems are distinguished in .06 to .07
of comparisons at a level of .05 (``benchmarks/error_levels.py``).

S is the number of permutations besides the identity, P that of undecided pairs, N that of seeds per interim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentenv.errors import ConfigurationError
from agentenv.evaluation.statistics.intervals import welch_interval

Floats = NDArray[np.float64]
Scores = Sequence[float] | Floats
_Names = tuple[str, str]


class Verdict(StrEnum):
    """What the test has decided about a pair of systems so far."""

    FIRST_BETTER = "first better"
    SECOND_BETTER = "second better"
    NO_DIFFERENCE = "no difference found"
    UNDECIDED = "undecided"


class _PairDecision(NamedTuple):
    """How a pair was decided."""

    interim: int
    """Number of the interim analysis, from 1, that decided the pair."""
    decisive: int
    """The interim, from 1, whose scores distinguish the pair; it may be earlier if the family was larger then."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The result of the test for two systems."""

    first: str
    second: str
    difference: float
    """Mean of the first system minus that of the second, over the seeds that the verdict is based on."""
    ci95: tuple[float, float] | None
    """Welch's interval of that difference; None for fewer than two seeds, or if all seeds of each system have equal scores.
    It treats the number of seeds as fixed beforehand, so the difference of a pair that an early interim analysis
    distinguished is too large on average."""
    seeds: int
    """Number of seeds of each system on which the verdict is based. For a distinguished pair, these are the seeds up to the
    interim analysis that distinguishes it; otherwise those of all interim analyses, or all common seeds before the first
    one. Seeds run later change neither."""
    verdict: Verdict
    """For a distinguished pair, the direction of ``difference``."""
    interim: int
    """The interim, from 1, that decided the pair; for an undecided pair the last one."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The state of a sequential comparison."""

    pairs: tuple[Pair, ...]
    interims: int
    """Number of interim analyses so far."""
    more_seeds: int
    """Number of further seeds that each undecided system needs before the next interim analysis; 0 if there are enough."""

    @property
    def enough(self) -> bool:
        """Whether every pair is decided."""
        return self.more_seeds == 0


def compare_sequentially(
    scores: Mapping[str, Scores],
    *,
    per_interim: int = 5,
    interims: int = 5,
    alpha: float = 0.05,
    permutations: int = 10_000,
    seed: int = 0,
) -> Decision:
    """Tests all scores so far.

    ``per_interim``, ``interims`` and ``alpha`` must be chosen before the first interim analysis and must not change
    afterwards. Seeds beyond the last complete interim wait for the next one.

    Args:
        scores: One number per seed for each system, in the order of running. A system whose pairs are all decided may have
            stopped.
        per_interim: The number of seeds between two interim analyses.
        interims: The largest number of interim analyses.
        alpha: The probability of finding, at any interim analysis, a difference between any two equal systems.
        permutations: The number of random permutations, in addition to the identity.
        seed: The seed of the permutations.

    Raises:
        ConfigurationError: there are fewer than two systems, a score is not finite, or a setting is not valid.
    """
    _check(scores, per_interim, interims, alpha, permutations)
    rng = np.random.default_rng(seed)
    undecided = list(combinations(scores, 2))
    sums: dict[_Names, list[Floats]] = {pair: [] for pair in undecided}
    found: dict[_Names, _PairDecision] = {}
    interim = 0
    while undecided and interim < interims:
        part = slice(interim * per_interim, (interim + 1) * per_interim)
        if any(len(scores[name][part]) < per_interim for pair in undecided for name in pair):
            break
        interim += 1
        # All pairs use the same permutations, so that the maximum over pairs belongs to a single permutation.
        drawn = signs(rng, permutations, per_interim)
        for first, second in undecided:
            pool = np.array([*scores[first][part], *scores[second][part]], dtype=np.float64)
            before = sums[first, second][-1] if interim > 1 else 0.0
            sums[first, second].append(before + drawn @ pool)
        while extreme := _most_extreme({pair: sums[pair] for pair in undecided}, alpha / interims):
            names, decisive = extreme
            found[names] = _PairDecision(interim, decisive)
            # The test is repeated on the smaller family, whose maximum under permutations is lower (step-down).
            undecided.remove(names)
    last = Verdict.NO_DIFFERENCE if interim == interims else Verdict.UNDECIDED
    pairs = tuple(_pair(scores, names, found.get(names), interim, per_interim, last) for names in sums)
    waiting = {name for pair in undecided for name in pair} if interim < interims else set()
    more = max(((interim + 1) * per_interim - len(scores[name]) for name in waiting), default=0)
    return Decision(pairs, interim, more)


def signs(rng: np.random.Generator, permutations: int, n: int) -> Floats:
    """Returns the signs by which 2N scores count for two systems -> [1 + S, 2N] of +1 and -1, the identity first."""
    identity = np.repeat([1.0, -1.0], n)
    return np.vstack([identity, rng.permuted(np.tile(identity, (permutations, 1)), axis=1)])


def _most_extreme(sums: Mapping[_Names, Sequence[Floats]], step: float) -> tuple[_Names, int] | None:
    """Returns the pair of ``sums`` that is distinguished at any interim analysis so far, and the number of that one.

    At interim analysis k, the most extreme permutations not selected earlier are selected, as many as keep the share of all
    selected ones within k times ``step``. The family is distinguished if the identity is among them.
    """
    if not sums:
        return None
    names = list(sums)
    depth = len(sums[names[0]])
    left = np.ones(sums[names[0]][0].size, dtype=np.bool_)
    for k in range(depth):
        sizes = np.abs([sums[pair][k] for pair in names])  # [P, 1 + S]
        largest = sizes.max(axis=0)
        # The small addition prevents a product such as .01 * 5 * 20 from being rounded down to one less.
        allowed = int((k + 1) * step * left.size + 1e-9) - int((~left).sum())
        taken = left & (largest > _threshold(largest[left], allowed))
        if taken[0]:
            return names[int(sizes[:, 0].argmax())], k + 1
        left &= ~taken
    return None


def _threshold(values: Floats, allowed: int) -> float:
    """Returns the value that at most ``allowed`` of ``values`` exceed; rounding does not break ties with it."""
    if allowed >= values.size:
        return -1.0
    cut = float(np.sort(values)[values.size - 1 - max(allowed, 0)])
    return cut + 1e-9 * max(1.0, abs(cut))


def _pair(
    scores: Mapping[str, Scores],
    names: _Names,
    found: _PairDecision | None,
    interim: int,
    per_interim: int,
    last: Verdict,
) -> Pair:
    """Makes the result of a pair; ``last`` is the verdict on a pair that was not distinguished."""
    both = [np.asarray(scores[name], dtype=np.float64) for name in names]
    seeds = (found.decisive if found else interim) * per_interim or min(one.size for one in both)
    first, second = (one[:seeds] for one in both)
    difference = float(first.mean() - second.mean()) if seeds else 0.0
    interval = welch_interval(first, second)
    if found is None:
        return Pair(*names, difference, interval, seeds, last, interim)
    verdict = Verdict.FIRST_BETTER if difference > 0 else Verdict.SECOND_BETTER
    return Pair(*names, difference, interval, seeds, verdict, found.interim)


def _check(
    scores: Mapping[str, Scores], per_interim: int, interims: int, alpha: float, permutations: int
) -> None:
    if len(scores) < 2:
        raise ConfigurationError("A comparison needs at least two systems.")
    if per_interim < 2 or interims < 1 or permutations < 1 or not 0 < alpha < 1:
        raise ConfigurationError(
            f"A test needs at least 2 seeds an interim, 1 interim, 1 permutation and 0 < alpha < 1, not {per_interim}, "
            f"{interims}, {permutations} and {alpha}."
        )
    for name, values in scores.items():
        if not np.isfinite(np.asarray(values, dtype=np.float64)).all():
            raise ConfigurationError(f"{name!r} has a score that is not finite.")
