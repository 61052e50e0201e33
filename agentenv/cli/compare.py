"""The command ``agentenv compare``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from agentenv.evaluation.compare import compare, compare_suites
from agentenv.evaluation.records import SUITE

_TESTS = ("p_mcnemar", "p_mcnemar_holm", "p_bootstrap", "p_bootstrap_holm")


@dataclass(frozen=True)
class Compare:
    """Compares two evaluations of the same questions, question by question.

    Prints the difference (second minus first) with its 95 % interval, the number of questions on which the
    two disagree, McNemar's exact test for 0/1 scorers and a paired bootstrap for all; both are over passages where
    questions share one. Of two suites every set is compared, and the p-values are corrected for their number (Holm).

    Example: agentenv compare runs/before runs/after --scorer em_squad
    """

    first: Annotated[Path, tyro.conf.Positional]
    """An evaluation folder."""
    second: Annotated[Path, tyro.conf.Positional]
    """Another evaluation folder over the same questions."""
    scorer: str | None = None
    """One scorer, or a judge as judge_RUBRIC, to compare under; by default all that both runs have."""

    def run(self) -> dict[str, Any]:
        """Compares the two folders."""
        both = all((directory / SUITE).is_file() for directory in (self.first, self.second))
        return (compare_suites if both else compare)(self.first, self.second, scorer=self.scorer)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints one table a set, with one row for each scorer."""
        for found in result.get("sets", {"": result}).values():
            console.print(_table(found))
        for name, difference in result.get("macro", {}).items():
            console.print(f"{name}: mean difference over sets {difference:+.3f}", highlight=False)


def _table(result: dict[str, Any]) -> Table:
    left_out = f", {result['left_out']} left out for faults" if result["left_out"] else ""
    title = f"{result['dataset']} {result['split']}: {result['n']} questions{left_out}"
    table = Table(title=title, title_justify="left")
    tests = [test for test in _TESTS if any(test in row for row in result["scores"].values())]
    headings = ("n", "first", "second", "difference", "95 % interval", "first better", "second better")
    table.add_column("scorer")
    for heading in (*headings, *(test.replace("_", " ") for test in tests)):
        table.add_column(heading, justify="right")
    for name, row in result["scores"].items():
        low, high = row["ci95"]
        table.add_row(
            f"{name} v{row['version']}",
            str(row["n"]),
            f"{row['mean_a']:.3f}",
            f"{row['mean_b']:.3f}",
            f"{row['difference']:+.3f}",
            f"{low:+.3f} to {high:+.3f}",
            str(row["a_better"]),
            str(row["b_better"]),
            *(f"{row[test]:.2g}" if test in row else "" for test in tests),
        )
    return table
