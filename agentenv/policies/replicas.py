"""Which of several engines of equal weights answers, as some of them fail, die or are started again."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from agentenv.errors import PolicyFault

_REST_S = 30.0  # in which an engine that has failed gets no new episode


class Replicas:
    """An episode stays with one engine. One that missed an update of the weights gets nothing until it takes up weights.

    Args:
        count: Engines.
        warn: Is told which engine is left out, and which is there again.
    """

    def __init__(self, count: int, warn: Callable[[str], None]) -> None:
        self.warn = warn
        self.versions = [0] * count
        """Version of the weights that each engine was given last."""
        self._homes: dict[str, int] = {}
        self._failed: dict[int, float] = {}  # when each engine has last failed
        self._left_out: dict[int, PolicyFault] = {}

    def home(self, episode: str | None) -> int:
        """The engine that the episode stays with; a new one goes where the fewest are.

        Raises:
            PolicyFault: no engine has the present weights.
        """
        found = self._homes.get(episode) if episode is not None else None
        if found is None or found in self._left_out:
            found = self._least_crowded()
            if episode is not None:
                self._homes[episode] = found
        return found

    def release(self, episode: str) -> None:
        """Forgets which engine the episode stayed with."""
        self._homes.pop(episode, None)

    def next_home(self, failed: int, episode: str | None) -> int | None:
        """Where an episode goes on whose engine has just failed; None where every engine has failed lately."""
        self._failed[failed] = time.monotonic()
        if len(self._left_out) == len(self.versions) or self._rests(found := self._least_crowded()):
            return None
        if episode is not None:
            self._homes[episode] = found
        return found

    def check_versions(self, place: int, given: int, versions: Sequence[int]) -> None:
        """Leaves out an engine whose sample comes from older weights than it had when it was asked.

        Args:
            place: The engine.
            given: Version of its weights at that time.
            versions: Of the tokens that it sampled.

        Raises:
            PolicyFault: the sample is from older weights: the engine was started again.
        """
        if (found := min(versions)) < given:
            fault = PolicyFault(
                f"it samples with weights of version {found} and was given {given}: it was started again"
            )
            self.leave_out(place, fault)
            raise fault

    def leave_out(self, place: int, fault: PolicyFault) -> None:
        """Gives an engine nothing from now on, until it takes up weights."""
        if place not in self._left_out:
            self.warn(f"{self._name(place)} is left out until it takes up weights at an update: {fault}")
        self._left_out[place] = fault

    def is_left_out(self, place: int) -> bool:
        """Whether an engine gets nothing."""
        return place in self._left_out

    def take_in(self, place: int, version: int) -> None:
        """Notes that an engine has taken up weights."""
        self.versions[place] = version
        if self._left_out.pop(place, None) is not None:
            self._failed.pop(place, None)
            self.warn(f"{self._name(place)} is there again, with the weights of version {version}")

    def _name(self, place: int) -> str:
        return f"engine {place + 1} of {len(self.versions)}"

    def _least_crowded(self) -> int:
        """The engine with the fewest episodes among those that have not failed lately.

        A dead one fails at once, so that it always has the fewest and would get nearly every new episode.
        """
        there = [place for place in range(len(self.versions)) if place not in self._left_out]
        if not there:
            raise PolicyFault(f"no engine has the present weights: {next(iter(self._left_out.values()))}")
        crowds = Counter(self._homes.values())
        return min(there, key=lambda place: (self._rests(place), crowds[place]))

    def _rests(self, place: int) -> bool:
        """Whether an engine has failed lately."""
        failed = self._failed.get(place)
        return failed is not None and time.monotonic() - failed < _REST_S
