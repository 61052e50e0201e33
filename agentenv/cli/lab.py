"""The commands ``agentenv lab list``, ``agentenv lab starts`` and ``agentenv lab run``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.errors import ConfigurationError, check_known, needs_extra

_RUNS, _PAGES = Path("runs/lab"), Path("docs/lab")


@dataclass(frozen=True)
class List:
    """Shows the experiments: how each was decided, by which test, with which power, and how many of its runs are done.

    Example: agentenv lab list
    """

    out: Path = _RUNS
    """Folder of the runs."""
    pages: Path = _PAGES
    """Folder of the published pages."""

    def run(self) -> dict[str, Any]:
        """Title, arms, finished and missing runs of each, and what its published page says."""
        from agentenv.trainers.lab.lab import experiments, load_experiment
        from agentenv.trainers.lab.results_table import decided_by, read_pages
        from agentenv.trainers.lab.trials import finished, pending_runs

        found, pages = {}, read_pages(self.pages)
        for name in experiments():
            experiment = load_experiment(name)
            runs = finished(experiment, self.out / name)
            found[name] = {
                "title": experiment.title,
                "claim": experiment.claim,
                "measure": experiment.measure,
                "arms": list(experiment.arms),
                "finished": sum(map(len, runs.values())),
                "missing": len(pending_runs(experiment, runs)),
                "decided": decided_by(pages[name]) if name in pages else None,
            }
        return found

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints two lines for each experiment."""
        from agentenv.trainers.lab.results_table import power_in_words

        for name, row in result.items():
            state = f"{row['finished']} runs here, {row['missing']} before the next interim analysis"
            console.print(f"{name:<14} {row['title']} ({state})", style="bold")
            page = row["decided"]
            none = "no published page in the folder of --pages"
            said = none if page is None else f"{page['verdict']}: {power_in_words(page)}"
            console.print(f"{'':<15}{said}")


@dataclass(frozen=True)
class Starts:
    """Makes the policies that the experiments start from, each once.

    A start that is there and would be made alike is kept. Together they take about two hours of one core.

    Example: agentenv lab starts tiny-chains
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Names of the starts to make; default: all."""
    out: Path = Path("runs")
    """Folder of the starts; the experiments look for them in `runs`."""

    def run(self) -> dict[str, Any]:
        """The minutes that each start took, None for one that was there, and which of these were made by other source."""
        with needs_extra("train"):
            import torch  # noqa: F401 (the extra is there)
        from agentenv.cli.main import main
        from agentenv.trainers.lab.starts import STARTS, has_other_source, is_made, make_start

        for name in self.names:
            check_known("start", name, STARTS)
        made: dict[str, Any] = {}
        older = []
        for name in self.names or STARTS:
            folder = self.out / name
            made[name] = None if is_made(name, folder) else round(make_start(name, folder, main), 1)
            if has_other_source(folder):
                older.append(name)
        return {"minutes": made, "other_source": older, "out": str(self.out)}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints one line for each start."""
        for name, minutes in result["minutes"].items():
            took = "is there" if minutes is None else f"made in {minutes:.1f} minutes"
            if name in result["other_source"]:
                took += ", made by other source of agentenv: delete it to make it anew"
            console.print(f"{result['out']}/{name}: {took}")


@dataclass(frozen=True)
class Run:
    """Runs an experiment, or continues it, until the sequential test has decided, and writes its page beside the runs.

    Finished training runs are never repeated, and a run that was interrupted is continued. --runs ends the command earlier.
    Published pages change only with --publish.

    Example: agentenv lab run group-size --runs 4
    """

    name: Annotated[str, tyro.conf.Positional]
    """A name that `agentenv lab list` shows, or a TOML file."""
    runs: int | None = None
    """The largest number of training runs of this call; default: all that are needed. 0 only writes the page."""
    out: Path = _RUNS
    """Folder of the runs; the page, its chart and its figures are written into the folder of the experiment there."""
    publish: bool = False
    """Whether the page is written into --pages as well, and the table of all pages there anew."""
    pages: Path = _PAGES
    """Folder of the published pages."""
    trust_config: bool = False
    """Whether a TOML file may run code without a sandbox or contact hosts; otherwise that is asked at the terminal."""

    def run(self) -> dict[str, Any]:
        """Runs, and writes the page before the first run, so that one that cannot be written is known, and after each."""
        with needs_extra("train"):
            import torch  # noqa: F401 (the extra is there)
        from agentenv.core.concurrency.signals import Interrupted
        from agentenv.core.io.claims import claim
        from agentenv.core.trust import confirm_file
        from agentenv.trainers.lab.lab import experiments, load_experiment
        from agentenv.trainers.lab.results_table import publish
        from agentenv.trainers.lab.starts import refuse_missing_starts
        from agentenv.trainers.lab.trials import refuse_other_plan

        if self.name not in experiments():
            confirm_file(Path(self.name), trusted=self.trust_config)
        if self.runs is not None and self.runs < 0:
            raise ConfigurationError(f"--runs is {self.runs}; give a number of 0 or more")
        experiment, name = load_experiment(self.name), Path(self.name).stem
        out = self.out / name
        refuse_other_plan(experiment, out)
        if self.runs != 0:
            refuse_missing_starts(experiment)
        out.mkdir(parents=True, exist_ok=True)
        with claim(out, f"another process runs {name} in {self.out}: wait for it, or choose another --out"):
            try:
                metrics = self._run_trials(experiment, name, out)
            except Interrupted as error:  # which says how to go on with the run alone
                said = f"; what is done is kept in {out}: the same command goes on from there"
                raise Interrupted(error.signal, said) from error
            if self.publish:
                publish(name, out, self.pages)
        return metrics | {"page": str((self.pages if self.publish else out) / f"{name}.md")}

    def _run_trials(self, experiment: Any, name: str, out: Path) -> dict[str, Any]:
        """What the page says after the last run, and how many were made."""
        from agentenv.progress import LiveDisplay
        from agentenv.trainers.lab.lab_page import write_page
        from agentenv.trainers.lab.trials import drop_left_weights, next_trial, run_trial

        drop_left_weights(experiment, out)
        done, metrics = 0, write_page(name, experiment, out)
        while done != self.runs and (trial := next_trial(experiment, out)):
            with LiveDisplay(f"{name}: {trial.arm}, seed {trial.seed}", log=out / "lab.log") as display:
                run_trial(experiment, trial, out, display)
            done, metrics = done + 1, write_page(name, experiment, out)
        return metrics | {"runs": done}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """The means, the verdicts, and where the page is."""
        from agentenv.trainers.lab.lab_page import pair_verdict

        for arm, row in result["arms"].items():
            found = row["measure"]
            mean = "" if found["mean"] is None else f"{found['mean']:.3f}"
            console.print(f"  {arm:<20} {len(found['values'])} seeds  {mean}")
        for family in result["families"]:
            for pair in family["pairs"]:
                console.print(f"  {pair_verdict(pair, family['interims'])}")
        console.print(f"{result['missing_runs']} runs missing. Page: {result['page']}")
