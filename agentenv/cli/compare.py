"""The command ``agentenv compare``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.cli.grid import print_table
from agentenv.core.registry import is_class
from agentenv.evaluation.compare import compare, compare_suites
from agentenv.evaluation.records import SUITE
from agentenv.evaluation.report.export import difference_table
from agentenv.evaluation.report.flat_tables import interval_text
from agentenv.evaluation.results import load_measure


@dataclass(frozen=True)
class Compare:
    """Compares two evaluations of the same questions, question by question.

    Prints the difference (second minus first) with its 95 % interval, the number of questions on which the
    two disagree, McNemar's exact test for 0/1 scorers and a paired bootstrap for all; both are over passages where
    questions share one. Of two suites, or of two evaluations over several sets, every set is compared as well, and its
    p-values are corrected for the number of sets (Holm). Each interval is by itself one of 95 %.
    `agentenv export SECOND --against FIRST` gives the same as CSV, Markdown or LaTeX.

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
        if self.scorer is not None and is_class(self.scorer):
            load_measure(self.scorer)
        both = all((directory / SUITE).is_file() for directory in (self.first, self.second))
        return (compare_suites if both else compare)(self.first, self.second, scorer=self.scorer)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints a table of the scorers, of several sets a table of the sets for each scorer."""
        console.print(f"first: {result['a']}\nsecond: {result['b']}", markup=False)
        several = "sets" in result or "by_set" in result
        for table in difference_table(result).parts("scorer" if several else "set"):
            console.print()
            print_table(console, table)
        for name, part in result.get("sets", {"": result}).items():
            if left := part["left_out"]:
                questions = "1 question is" if left == 1 else f"{left} questions are"
                console.print(
                    f"{name and f'{name}: '}{questions} left out: {part['faults_a']} met an infrastructure failure in the "
                    f"first run, {part['faults_b']} in the second",
                    markup=False,
                )
            for note in part.get("notes", ()):
                console.print(f"{name and f'{name}: '}{note}", markup=False)
        for name, difference in result.get("macro", {}).items():
            ends = interval_text(result["macro_ci95"][name], "+.3f")
            console.print(f"{name}: mean difference over sets {difference:+.3f} {ends}", markup=False)
