"""The command ``agentenv seeds``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.errors import ConfigurationError
from agentenv.evaluation.records import read_results
from agentenv.evaluation.repeats import compare_runs, read_runs, summarize_runs
from agentenv.evaluation.report.flat_tables import interval_text
from agentenv.evaluation.results import load_measure


@dataclass(frozen=True)
class Seeds:
    """Combines evaluations of the same questions with different seeds, and says whether enough seeds have been run.

    Prints avg@n and, for 0/1 scorers, pass@k (one of k right) and all@k (all of k right), by the unbiased
    estimators, and the spread over seeds apart from the error over questions. With --against, a group sequential
    permutation test (AdaStop) says which system is better, or how many more seeds each needs.

    Example: agentenv seeds runs/a-0 runs/a-1 runs/a-2 runs/a-3 --k 1 4
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Evaluation folders of one system, one for each seed."""
    against: tuple[Path, ...] = ()
    """Evaluation folders of another system over the same questions."""
    scorer: str = ""
    """The scorer of all of them; by default the one by which the first folder is compared first."""
    k: tuple[int, ...] = ()
    """The k of pass@k and all@k; default: powers of two up to the number of runs, and that number."""
    per_interim: int = 5
    """Seeds of each system between two interim analyses of the sequential test. Choose it before the first one."""
    interims: int = 5
    """Largest number of interim analyses."""
    alpha: float = 0.05
    """Probability that the test finds a difference between two equal systems."""

    def run(self) -> dict[str, Any]:
        """Reads the folders and does the sums."""
        scorer = self.scorer or _headline(self.runs)
        load_measure(scorer)
        result: dict[str, Any] = {"scorer": scorer, "first": self._side(self.runs, scorer)}
        if self.against:
            result["second"] = self._side(self.against, scorer)
            result["comparison"] = compare_runs(
                self.runs,
                self.against,
                scorer,
                per_interim=self.per_interim,
                interims=self.interims,
                alpha=self.alpha,
            )
        return result

    def _side(self, folders: tuple[Path, ...], scorer: str) -> dict[str, Any]:
        return summarize_runs(read_runs(folders, scorer), scorer, self.k)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints one block a system, then the verdict."""
        for name in ("first", "second"):
            if name in result:
                _show(name, result[name], result["scorer"], console)
        if "comparison" not in result:
            return
        found = result["comparison"]
        questions = found["questions"]
        console.print(
            f"first less second {found['difference']:+.3f}, over {questions['n']} questions 95 % "
            f"{interval_text(questions['ci95'], '+.3f')}{_left_out(questions['left_out'])}"
        )
        for note in found.get("notes", ()):
            console.print(note, markup=False)
        test = found["sequential"]
        more = "enough seeds" if test["enough"] else f"run {test['more_seeds']} more seeds of each"
        console.print(
            f"over seeds, interim analysis {test['interim']} of {test['interims']}: {test['verdict']}; {more}"
        )
        console.print(
            f"in {test['seeds']} seeds of each {test['difference']:+.3f}, over seeds 95 % "
            f"{interval_text(test['ci95'], '+.3f')}"
        )


def _headline(folders: tuple[Path, ...]) -> str:
    """The scorer by which the first of the evaluations is compared first."""
    if not folders:
        raise ConfigurationError("name at least one folder of an evaluation")
    return str(next(iter(read_results(folders[0])["scores"])))


def _left_out(questions: int) -> str:
    """How many questions no figure counts, for people."""
    return f"; left out, with an infrastructure failure in some run: {questions}" if questions else ""


def _show(name: str, side: dict[str, Any], scorer: str, console: Console) -> None:
    spread = side["over_seeds"]
    error = f", standard error {spread['standard_error']:.3f}" if spread["standard_error"] is not None else ""
    console.print(
        f"{name} {scorer}: {side['n']} questions, {side['seeds']} seeds from {spread['low']:.3f} "
        f"to {spread['high']:.3f}{error}{_left_out(side['left_out'])}",
        style="bold",
    )
    for key, value in side.items():
        if "@" in key:
            console.print(f"  {key:<8}{value['mean']:.3f}  {interval_text(value['ci95'])}")
