"""The command ``agentenv rescore``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.evaluation.compare import rescore
from agentenv.evaluation.records import SUITE, read_json
from agentenv.evaluation.suite import summarize_suite


@dataclass(frozen=True)
class Rescore:
    """Scores the episodes of an evaluation again, without running anything.

    The scores are added to results.json; those of other scorers stay as they are. Of a suite every set is scored.

    Example: agentenv rescore runs/hotpotqa --scorer f1_hotpot em_cover
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """An evaluation folder."""
    scorer: tuple[str, ...]
    """One or more scorers, for example em_squad, em_cover, cem, f1_squad, f1_hotpot."""

    def run(self) -> dict[str, Any]:
        """Adds the scores and returns the new results."""
        if not (self.directory / SUITE).is_file():
            return rescore(self.directory, self.scorer)
        names = read_json(self.directory / SUITE)["sets"]
        parts = {name: rescore(self.directory / name, self.scorer) for name in names}
        return {"suite": parts, **summarize_suite(self.directory, names)}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints the new scores."""
        for part in result.get("suite", {"": result}).values():
            self._show(part, console)

    def _show(self, result: dict[str, Any], console: Console) -> None:
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
