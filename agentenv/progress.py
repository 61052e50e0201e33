"""One live display of a long piece of work: what, how far, how fast, how long still, and the numbers that matter."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.cells import cell_len
from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from agentenv.errors import AgentEnvError
from agentenv.streams import forgiving, make_console, visible

_SHOWN = {
    "score": "score",
    "searches": "searches",
    "faults": "faults",
    "requests": "requests",
    "cost": "cost",
    "reward_mean": "reward",
    "dev_score": "dev",
    "entropy": "entropy",
    "zero_variance_share": "zero var",
    "loss": "loss",
}
_PLAIN_EVERY_S = 30.0  # without a terminal: seconds between two lines
_MANY_PASSAGES = 2_000  # an encoder on two cores takes half a minute or more for them
_LARGE = 1e6  # from here on a figure is shown with its power of ten
_BAR = 40  # cells, on a wide terminal
_TIMES = 29  # cells for counts and times beside it


class _Bar(Progress):
    """A bar with its metrics on a line of their own, and a long name above it: a narrow terminal shows the times whole."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            if above := task.fields["above"]:
                yield Text(above, style="bold", overflow="fold")
        yield from super().get_renderables()
        for task in self.tasks:
            if metrics := task.fields["metrics"]:
                yield Text(f"  {metrics}")


class _LogFile(logging.FileHandler):
    """A log that loses what cannot be written: a full disk ends the work by what the work itself writes, in one sentence."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing, where the standard library prints a traceback for each line."""

    def close(self) -> None:
        """Closes the file, whose last lines may be lost."""
        with contextlib.suppress(OSError):
            super().close()


class Display(Protocol):
    """Gets the progress of a training run, an evaluation or a warm start."""

    def phase(self, name: str, total: int) -> None:
        """A phase of ``total`` units begins; 0 where the number is not known."""

    def advance(self, done: int, metrics: dict[str, Any]) -> None:
        """So many units of the phase are done, and these are the metrics that matter."""

    def note(self, sentence: str) -> None:
        """Something to know before the work begins."""

    def warn(self, sentence: str) -> None:
        """Something looks wrong."""


class SilentDisplay:
    """A display that shows nothing."""

    def phase(self, name: str, total: int) -> None:
        """Shows nothing."""

    def advance(self, done: int, metrics: dict[str, Any]) -> None:
        """Shows nothing."""

    def note(self, sentence: str) -> None:
        """Shows nothing."""

    def warn(self, sentence: str) -> None:
        """Shows nothing."""


class LiveDisplay:
    """A progress bar on a terminal, an occasional line elsewhere; always on stderr, and in full in a log file.

    Args:
        title: of the work.
        log: the log file.
        clock: seconds that only ever grow.
    """

    def __init__(self, title: str, *, log: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Python has none where it was started with that closed.
        shown = forgiving(sys.stderr) if sys.stderr else None
        self._console = make_console(file=shown, stderr=True, soft_wrap=False)
        self._live = self._console.is_terminal
        self._bar = max(4, min(_BAR, self._console.width - 2 * _TIMES))
        self._progress = _Bar(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=self._bar),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._live,
        )
        self._title = _one_line(title)
        self._log = logging.getLogger(f"agentenv.run.{id(self)}")
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        self._log_path = log
        self._task: TaskID | None = None
        self._name, self._total, self._began, self._said = "", 0, 0.0, 0.0
        self._first: tuple[int, float] | None = None  # units done, and when, at the first report of the phase
        self._latest: dict[str, float] = {}

    def __enter__(self) -> Self:
        handler = _LogFile(self._log_path, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._log.addHandler(handler)
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._log.error("ended by %s: %s", type(error).__name__, _one_line(str(error)))
        self._progress.stop()
        for handler in list(self._log.handlers):
            handler.close()
            self._log.removeHandler(handler)

    def phase(self, name: str, total: int) -> None:
        """A phase of ``total`` units begins; 0 units show no bar of their own."""
        name = _one_line(name)
        self._log.info("%s", name)
        self._name, self._total, self._latest, self._first = name, total, {}, None
        self._began = self._said = self._clock()
        if self._task is not None:
            self._progress.remove_task(self._task)
        beside = cell_len(name) <= self._console.width - self._bar - _TIMES
        shown, above = (name, "") if beside else ("", name)
        self._task = self._progress.add_task(shown, total=total or None, metrics="", above=above)
        if not self._live:
            self._say(f"{self._title}: {name}" + (f", {total} in all" if total else ""))

    def advance(self, done: int, metrics: dict[str, Any]) -> None:
        """So many units are done; metrics that are not given keep their last value."""
        self._latest |= {name: metrics[name] for name in _SHOWN if metrics.get(name) is not None}
        line = "  ".join(f"{_SHOWN[name]} {_figure(value)}" for name, value in self._latest.items())
        self._log.info("%s %d/%d %s", self._name, done, self._total, line)
        if self._task is not None:
            self._progress.update(self._task, completed=done, metrics=line)
        now = self._clock()
        self._first = self._first or (done, now)
        if not self._live and (now - self._said > _PLAIN_EVERY_S or done == self._total):
            self._said = now
            of = f"{done}/{self._total}" if self._total else str(done)
            self._say(f"{self._title}: {self._name} {of}, {self._times(done, now)}  {line}".rstrip())

    def _times(self, done: int, now: float) -> str:
        """How long the phase has taken, and how long the rest will at the pace since its first report.

        What was done before that report may come from an earlier process, so it says nothing about the pace.
        """
        spent = f"{_minutes(now - self._began)} spent"
        left = self._total - done
        if self._first is None or left <= 0 or done <= self._first[0]:
            return spent
        pace = (now - self._first[1]) / (done - self._first[0])
        return f"{spent}, about {_minutes(pace * left)} left"

    def _say(self, line: str) -> None:
        """One line of a log, whatever the width of a terminal would be."""
        self._console.print(line, markup=False, soft_wrap=not self._live)

    def note(self, sentence: str) -> None:
        """Shows a sentence above the bar."""
        sentence = _one_line(sentence)
        self._log.info("%s", sentence)
        self._say(sentence)

    def warn(self, sentence: str) -> None:
        """Shows a warning above the bar."""
        sentence = _one_line(sentence)
        self._log.warning("%s", sentence)
        self._console.print(Text.assemble(("warning:", "yellow"), " ", sentence), soft_wrap=not self._live)


class LiveDisplays(ExitStack):
    """The live displays of several benchmarks, one after the other, with one log; a mistake leaves no log of its own behind.

    Args:
        out: folder of the log, made with the first display.
    """

    def __init__(self, out: Path) -> None:
        super().__init__()
        self._out = out
        self._log = out / "run.log"
        self._ours = not self._log.exists()

    def __call__(self, title: str) -> LiveDisplay:
        """The display of the next one, which ends that of the one before."""
        self.close()
        self._out.mkdir(parents=True, exist_ok=True)
        return self.enter_context(LiveDisplay(title, log=self._log))

    def __exit__(self, *details: Any) -> bool:
        suppressed = super().__exit__(*details)
        if isinstance(details[1], AgentEnvError | OSError) and self._ours and self._out.is_dir():
            others = [path for path in self._out.iterdir() if path != self._log]
            if not others:
                self._log.unlink(missing_ok=True)
                self._out.rmdir()
        return bool(suppressed)


def indexing(display: Display, advice: str = "") -> Callable[[int, int], None]:
    """Shows the passages that are encoded as a phase of their own; before a long one it gives ``advice``."""
    total = 0

    def progress(done: int, passages: int) -> None:
        nonlocal total
        if total != passages:
            total = passages
            if advice and total >= _MANY_PASSAGES:
                display.note(advice)
            display.phase("indexing passages", total)
        display.advance(done, {})

    return progress


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else format(value, ".3f" if abs(value) < _LARGE else ".3e")


def _one_line(text: str) -> str:
    """``text`` as one line of a log: what an environment or a service says in an error adds no lines of its own."""
    return visible(" ".join(text.split())).encode("utf-8", "backslashreplace").decode()


def _minutes(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
