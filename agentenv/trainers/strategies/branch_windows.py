"""A window of turns in which a tree branches, each turn of it at a temperature of its own (Dynamic-TreeRPO, for turns).

Dynamic-TreeRPO, 2025, arXiv:2509.23352, branches the denoising steps of an image within a window that slides over
a training run, and samples them with a noise that depends on the layer. Here turns stand for these steps and temperatures
for the noise, which is this project's reading: the paper's schedules are not known to it.
"""

from dataclasses import dataclass


def window_start(step: int, *, hold: int, stride: int, turns: int, width: int) -> int:
    """floor(step / hold) stride mod max(1, turns - width + 1): the first turn of the window in a training step.

    Args:
        step: The training step.
        hold: Steps for which the window stays where it is.
        stride: Turns by which it then moves.
        turns: Of a usual episode; the window begins again at the first turn where it would leave them.
        width: Turns of the window.
    """
    return step // hold * stride % max(1, turns - width + 1)


@dataclass(frozen=True)
class BranchWindow:
    """The window of one training step."""

    start: int
    width: int
    temperatures: tuple[float, float]
    """Of the first and of the last turn of the window; between them on a line."""
    outside: float
    """Temperature of every other turn."""

    def __contains__(self, turn: int) -> bool:
        return self.start <= turn < self.start + self.width

    def temperature(self, turn: int) -> float:
        """At which a turn is sampled."""
        if turn not in self:
            return self.outside
        first, last = self.temperatures
        return first + (last - first) * (turn - self.start) / max(1, self.width - 1)
