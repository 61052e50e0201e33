"""How many of the tasks that are drawn come from each of several sets, by weights that the user gives them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentenv.data.sources import Source
from agentenv.errors import ConfigurationError


@dataclass(frozen=True)
class SetMixture:
    """The tasks of each set that is drawn from, and the weight of the set."""

    places: Sequence[Sequence[int]]
    """Places of the tasks, set by set; each has at least one."""
    weights: Sequence[float]
    """One for each set, above 0."""

    def counts(self, total: int, rng: np.random.Generator) -> list[int]:
        """How many of ``total`` tasks each set gives: its share of them, rounded up or down so that the mean is exact.

        Systematic sampling (Madow 1949): of points at distance 1 behind a common random start within [0, 1), each set gets
        those in its own part of [0, ``total``), which is as long as its share.
        """
        ends = np.cumsum(self.weights)
        ends = ends / ends[-1] * total
        return [int(count) for count in np.diff(np.ceil(ends - rng.random()), prepend=0)]

    def draw(self, total: int, played: Collection[int], rng: np.random.Generator) -> list[int]:
        """Places of ``total`` tasks; within a set all are equally likely, and those of ``played`` come after all others.

        A set with fewer tasks than it has to give is gone through again.
        """
        drawn: list[int] = []
        for places, count in zip(self.places, self.counts(total, rng), strict=True):
            fresh = [place for place in places if place not in played]
            others = [place for place in places if place in played]
            order = np.concatenate(
                [rng.permutation(np.asarray(part, dtype=np.intp)) for part in (fresh, others)]
            )
            drawn += np.resize(order, count).tolist()
        # Mixed, because samplers may treat the first tasks of a step otherwise than the last.
        return [int(place) for place in rng.permutation(np.asarray(drawn, dtype=np.intp))]


def set_mixture(source: Source, weights: Mapping[str, float]) -> SetMixture | None:
    """The mixture of the sets of ``source``; None without weights.

    Args:
        source: Several sets.
        weights: By the name of the set; those of weight 0 are never drawn.

    Raises:
        ConfigurationError: a set of a weight above 0 has no task in ``source``.
    """
    if not weights:
        return None
    places: dict[str, list[int]] = {name: [] for name in source.parts if weights[name] > 0}
    for place, task in enumerate(source.tasks):
        if (own := places.get(source.set_of(task))) is not None:
            own.append(place)
    if empty := next((name for name, own in places.items() if not own), None):
        raise ConfigurationError(
            f"train.weights gives {empty!r} the weight {weights[empty]:g}, and none of the {len(source.tasks)} questions "
            "that are drawn is of it: raise train.limit, or give the set the weight 0"
        )
    return SetMixture([*places.values()], [weights[name] for name in places])
