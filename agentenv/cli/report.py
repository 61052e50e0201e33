"""The command ``agentenv report``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.evaluation.report.report import write_report
from agentenv.evaluation.results import load_measure


@dataclass(frozen=True)
class Report:
    """Writes report.html into the folder of an evaluation or of a training run.

    The page is one file without any network: scores with intervals, learning curves, and every episode turn
    by turn.

    Example: agentenv report runs/quickstart
    Example: agentenv report runs/suite-b --against runs/suite-a
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """An evaluation folder (with episodes.jsonl), a suite, or a training folder (with metrics.jsonl)."""
    against: Path | None = None
    """Another evaluation or suite of the same questions, which the page then compares with this one."""
    scorer: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A scorer of your own, as module:NAME, by which the folder was scored; may be repeated. Those of agentenv need
    not be named."""

    def run(self) -> dict[str, Any]:
        """Writes the page and says where it is."""
        for name in self.scorer:
            load_measure(name)
        path = write_report(self.directory, self.against)
        return {"report": str(path), "bytes": path.stat().st_size}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints the path of the page."""
        console.print(f"Report: {result['report']} ({result['bytes'] / 1e6:.1f} MB)")
