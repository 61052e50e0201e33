"""``agentenv warmstart``: the tiny policy from nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentenv.errors import ConfigurationError, MissingExtra


@dataclass(frozen=True)
class Warmstart:
    """Makes the tiny policy by supervised learning in worlds of the training split.

    Example: agentenv warmstart --out runs/tiny
    """

    out: Path
    """Folder for weights, tokenizer and card; must not exist."""
    seed: int = 0
    """Seeds weights and worlds."""
    copying_steps: int | None = None
    """Optimiser steps on single pages; default: as for the shipped policy, like the two below."""
    reader_steps: int | None = None
    """Optimiser steps on drills and careful episodes."""
    crowd_steps: int | None = None
    """Optimiser steps on the mixed crowd; 0 stops at the reader."""
    reader: Path | None = None
    """Folder of a reader that an earlier call with --crowd-steps 0 made; only the crowd phase is run."""

    def run(self) -> dict[str, Any]:
        """Trains and saves."""
        try:
            from agentenv.trainers import warmstart as maker
        except ModuleNotFoundError as error:
            raise MissingExtra.of(error.name or "torch", "train") from error
        if self.out.exists():
            raise ConfigurationError(f"{self.out} exists already; choose another --out")
        steps = {name: getattr(self, name) for name in ("copying_steps", "reader_steps", "crowd_steps")}
        given = {name: value for name, value in steps.items() if value is not None}
        config = maker.WarmstartConfig(seed=self.seed, **given)
        from agentenv.cli.progress import LiveDisplay

        self.out.parent.mkdir(parents=True, exist_ok=True)
        with LiveDisplay("warmstart", log=self.out.parent / f"{self.out.name}.log") as display:
            figures = maker.warmstart(config, display, self.out, reader=self.reader)
        return figures | {"out": str(self.out)}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Accuracy of the reader, cost, and where the policy is."""
        console.print(
            f"Read and copied right on unseen worlds: {result['reading_accuracy']:.3f}\n"
            f"{result['tokens']:,} tokens in {result['minutes']:.1f} minutes\nPolicy: {result['out']}",
            highlight=False,
        )
