"""A window of turns in which a tree branches, each turn of it at a temperature of its own (Dynamic-TreeRPO, for turns).

Dynamic-TreeRPO, 2025, arXiv:2509.23352, branches the denoising steps of an image within a window that slides over
a training run, and samples them with a noise that depends on the layer. Here turns stand for these steps and temperatures
for the noise, which is this project's reading: the paper's schedules are not known to it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any

from agentenv.core.trajectory import Trajectory

LAYERS = "tree_layers"
"""Entry of ``info``: layer, tokens and sum of -log p of each turn that a branch has sampled in the window itself."""
COOLEST, WARMEST = 0.5, 1.5
"""Bounds of a temperature that follows the entropy."""


def window_start(step: int, *, hold: int, stride: int, turns: int, width: int) -> int:
    """floor(step / hold) stride mod max(1, turns - width + 1): the first turn of the window in a training step.

    Args:
        step: The training step.
        hold: Steps for which the window stays where it is.
        stride: Turns by which the window then moves.
        turns: Turns of a usual episode; a window that would reach beyond them begins again at the first turn.
        width: Number of turns of the window.
    """
    return step // hold * stride % max(1, turns - width + 1)


def on_line(ends: Sequence[float], width: int) -> tuple[float, ...]:
    """Values for the ``width`` layers of a window, interpolated linearly from the first of ``ends`` to the last."""
    first, last = ends
    return tuple(first + (last - first) * layer / max(1, width - 1) for layer in range(width))


@dataclass(frozen=True)
class BranchWindow:
    """The window of one training step."""

    start: int
    temperatures: tuple[float, ...]
    """Temperature of each turn of the window."""
    outside: float
    """Temperature of every other turn."""

    def __contains__(self, turn: int) -> bool:
        return self.start <= turn < self.start + len(self.temperatures)

    def temperature(self, turn: int) -> float:
        """The temperature at which a turn is sampled."""
        return self.temperatures[turn - self.start] if turn in self else self.outside


def followed(temperature: float, *, wanted: float, measured: float, rate: float) -> float:
    """Tau exp(rate (wanted - measured)) within [.5, 1.5]: the temperature of the next step.

    Args:
        temperature: Temperature of this step.
        wanted: Entropy that the layer should have, in nats a token.
        measured: Entropy that the layer had in this step.
        rate: How fast the temperature follows.
    """
    return min(max(temperature * exp(rate * (wanted - measured)), COOLEST), WARMEST)


@dataclass
class EntropyTemperatures:
    """Controls the temperature of each layer of a window so that its entropy approaches a wanted one.

    The entropy of a layer is estimated by the mean -log p of the tokens that were sampled there, at the temperature of the
    layer.

    Args:
        temperatures: Temperature of each layer at the start.
        entropies: Entropy that each layer should have, in nats a token.
        rate: How fast a temperature follows.
    """

    temperatures: tuple[float, ...]
    entropies: tuple[float, ...]
    rate: float
    _measured: dict[int, float] = field(init=False, default_factory=dict)

    def learn(self, played: Sequence[Trajectory]) -> None:
        """Moves the temperature of each layer by the entropy that it had in the episodes of a step."""
        sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for trajectory in played:
            for layer, tokens, surprise in trajectory.info.get(LAYERS, ()) if trajectory.valid else ():
                sums[int(layer)][0] += tokens
                sums[int(layer)][1] += surprise
        self._measured = {layer: total / tokens for layer, (tokens, total) in sorted(sums.items()) if tokens}
        self.temperatures = tuple(
            followed(heat, wanted=wanted, measured=self._measured[layer], rate=self.rate)
            if layer in self._measured
            else heat
            for layer, (heat, wanted) in enumerate(zip(self.temperatures, self.entropies, strict=True))
        )

    @property
    def metrics(self) -> dict[str, float]:
        """The entropy of each layer in the last step, and its temperature in the next one."""
        found = {f"tree_entropy_{layer}": value for layer, value in self._measured.items()}
        return found | {f"tree_temperature_{layer}": heat for layer, heat in enumerate(self.temperatures)}

    def state_dict(self) -> dict[str, Any]:
        """The temperatures of the next step."""
        return {"temperatures": list(self.temperatures)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what ``state_dict`` returned; an empty mapping restores the temperatures of the start."""
        self.temperatures = tuple(float(heat) for heat in state.get("temperatures", self.temperatures))
