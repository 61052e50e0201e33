"""The command ``agentenv rescore``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.evaluation.compare import rescore


@dataclass(frozen=True)
class Rescore:
    """Scores the episodes of an evaluation again, without running anything.

    The scores are added to results.json; those of other scorers stay as they are.

    Example: agentenv rescore runs/hotpotqa --scorer f1_hotpot em_cover
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """An evaluation folder."""
    scorer: tuple[str, ...]
    """One or more scorers, for example em_squad, em_cover, cem, f1_squad, f1_hotpot."""

    def run(self) -> dict[str, Any]:
        """Adds the scores and returns the new results."""
        return rescore(self.directory, self.scorer)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints the new scores."""
        console.print(f"{result['dataset']} {result['split']}: {result['n']} questions", highlight=False)
        for name in self.scorer:
            score = result["scores"][name]
            if score["mean"] is None:
                console.print(f"{name} v{score['version']}: every episode was a fault", highlight=False)
                continue
            low, high = score["ci95"]
            console.print(
                f"{name} v{score['version']}: {score['mean']:.3f} (95 % interval {low:.3f} to {high:.3f})",
                highlight=False,
            )
