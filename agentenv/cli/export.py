"""The command ``agentenv export``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from agentenv.core.io.files import write_text
from agentenv.core.registry import is_class
from agentenv.evaluation.report.export import export_table
from agentenv.evaluation.report.flat_tables import as_text
from agentenv.evaluation.results import load_measure


@dataclass(frozen=True)
class Export:
    """Writes the scores of evaluations, suites and training runs as a table of CSV, Markdown or LaTeX.

    Every score stands with its n and its 95 % interval, bounds and the means of a suite as rows of their own. With
    --against the table holds the paired differences of two runs instead, as `agentenv compare` computes them. CSV has every
    digit, for programs; Markdown and LaTeX (package booktabs) have three, for papers.

    Example: agentenv export runs/suite-a runs/suite-b --format csv --out scores.csv
    Example: agentenv export runs/suite-b --against runs/suite-a --format latex --scorer em_squad
    """

    run_folders: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER [FOLDER ...]")
    ]
    """Folders of evaluations, suites or training runs."""
    against: Path | None = None
    """An evaluation or a suite to compare the one folder with; differences are the folder's less this one's."""
    format: Literal["csv", "markdown", "latex"] = "csv"
    """csv, markdown or latex."""
    scorer: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A scorer, or a judge as judge_RUBRIC, may be repeated; default: all that the folders hold."""
    out: Path | None = None
    """File to write; default: the terminal."""

    def run(self) -> dict[str, Any]:
        """Reads the folders and writes the table."""
        for name in filter(is_class, self.scorer):
            load_measure(name)
        table = export_table(self.run_folders, self.against, self.scorer)
        text = as_text(table, self.format)
        if self.out is not None:
            write_text(self.out, text)
        return {
            "format": self.format,
            "rows": len(table.rows),
            "text": text,
            "out": None if self.out is None else str(self.out),
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints the table as it is, or where it was written."""
        if result["out"] is None:
            console.out(result["text"], end="")
        else:
            console.print(f"{result['rows']} rows: {result['out']}", markup=False)
