"""The command ``agentenv compare``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from agentenv.evaluation.compare import compare


@dataclass(frozen=True)
class Compare:
    """Compares two evaluations of the same questions, question by question.

    Prints the difference (second minus first) with its 95 % interval, the number of questions on which the
    two disagree, McNemar's exact test for 0/1 scorers and a paired bootstrap for all.

    Example: agentenv compare runs/before runs/after --scorer em_squad
    """

    first: Annotated[Path, tyro.conf.Positional]
    """An evaluation folder."""
    second: Annotated[Path, tyro.conf.Positional]
    """Another evaluation folder over the same questions."""
    scorer: str | None = None
    """One scorer to compare under; by default all that both runs have."""

    def run(self) -> dict[str, Any]:
        """Compares the two folders."""
        return compare(self.first, self.second, scorer=self.scorer)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints one row for each scorer."""
        left_out = f", {result['left_out']} left out for faults" if result["left_out"] else ""
        title = f"{result['dataset']} {result['split']}: {result['n']} questions{left_out}"
        table = Table(title=title, title_justify="left")
        for heading in ("scorer", "first", "second", "difference", "95 % interval"):
            table.add_column(heading, justify="left" if heading == "scorer" else "right")
        for heading in ("first better", "second better", "p McNemar", "p bootstrap"):
            table.add_column(heading, justify="right")
        for name, row in result["scores"].items():
            low, high = row["ci95"]
            table.add_row(
                f"{name} v{row['version']}",
                f"{row['mean_a']:.3f}",
                f"{row['mean_b']:.3f}",
                f"{row['difference']:+.3f}",
                f"{low:+.3f} to {high:+.3f}",
                str(row["a_better"]),
                str(row["b_better"]),
                f"{row['p_mcnemar']:.2g}" if "p_mcnemar" in row else "",
                f"{row['p_bootstrap']:.2g}",
            )
        console.print(table)
