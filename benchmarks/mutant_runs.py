"""A plugin of pytest that runs the tests of mutants, each in a fork of a process that has only collected them.

``mutants.py`` uses it. ``--mutants FILE`` names a JSON list of ``{"mutant": ..., "files": [...]}``: the files of tests that
may notice the mutant, in the order in which they are run, until a test fails. ``--verdicts FILE`` gets a line of JSON for
each: how it ended, the test that failed, and the seconds of processor time that it took.

A test that fails says nothing where it fails without the mutant too, as on a machine under load: it is run again without
one, and if it fails there, it is left out and the mutant is run again.

A mutant may make its tests run for ever. Time is bounded as time of the processor, which other load on the machine does not
lengthen, and generously by the clock for what waits; a mutant that passes either bound is ``out of time``.
"""

import json
import os
import resource
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CPU_S = 90
CLOCK_S = 600
_SURVIVED, _FAILED, _NO_TESTS = 0, 1, 5


def pytest_addoption(parser: pytest.Parser) -> None:
    """What ``mutants.py`` gives."""
    parser.addoption("--mutants", type=Path)
    parser.addoption("--verdicts", type=Path)
    parser.addoption("--children", type=int, default=1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Runs the mutants in place of the tests."""
    _Runs(session).work()
    return True


@dataclass
class _Run:
    """Tests of a mutant, or one test without a mutant: the control of ``of``."""

    mutant: str
    items: list[pytest.Item]
    of: dict[str, Any] | None = None
    began: float = 0.0


class _Runs:
    """Everything that is to be run, and what runs."""

    def __init__(self, session: pytest.Session) -> None:
        option = session.config.option
        self.children, self.verdicts = option.children, option.verdicts
        self.items = {item.nodeid: item for item in session.items}
        self.waiting = [
            _Run(
                one["mutant"],
                [item for file in one["files"] for item in session.items if _file(item) == file],
            )
            for one in json.loads(option.mutants.read_text(encoding="utf-8"))[::-1]
        ]
        self.running: dict[int, _Run] = {}
        self.sound: dict[str, bool] = {}
        """Whether a test passes without a mutant, as far as it is known."""

    def work(self) -> None:
        """Forks until everything has run."""
        while self.waiting or self.running:
            while self.waiting and len(self.running) < self.children:
                self._start(self.waiting.pop())
            for pid, run in self.running.items():
                if time.monotonic() > run.began + CLOCK_S:
                    os.killpg(pid, signal.SIGKILL)
            pid, status, used = os.wait3(os.WNOHANG)
            if pid:
                self._ended(pid, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)
            else:
                time.sleep(0.02)

    def _start(self, run: _Run) -> None:
        run.began = time.monotonic()
        run.items = [item for item in run.items if self.sound.get(item.nodeid, True)]
        if pid := os.fork():
            self.running[pid] = run
            return
        status = 2
        try:
            os.setpgid(0, 0)
            for number in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
            os.environ["MUTANT_UNDER_TEST"] = run.mutant
            status = _play(run.items, self._note(os.getpid()))
        finally:
            os._exit(status)

    def _note(self, pid: int) -> Path:
        """Where a process names the test that failed."""
        return Path(self.verdicts.with_suffix(f".{pid}"))

    def _ended(self, pid: int, code: int, seconds: float) -> None:
        run, note = self.running.pop(pid), self._note(pid)
        by = note.read_text(encoding="utf-8") if note.exists() else ""
        note.unlink(missing_ok=True)
        if run.of is not None:
            self.sound[run.items[0].nodeid] = code == _SURVIVED
            self._settle(run.of)
            return
        names = {_SURVIVED: "survived", _NO_TESTS: "no tests", _FAILED: "killed"}
        names |= dict.fromkeys((-signal.SIGXCPU, -signal.SIGKILL), "out of time")
        ended = names.get(code, "died")
        self._settle(
            {"mutant": run.mutant, "ended": ended, "by": by, "exit": code, "seconds": round(seconds, 2)}, run
        )

    def _settle(self, verdict: dict[str, Any], run: _Run | None = None) -> None:
        """Writes a verdict, once the test that killed the mutant is known to pass without one."""
        by = verdict["by"]
        if run is not None:
            verdict["files"] = list(dict.fromkeys(map(_file, run.items)))
        if by and by not in self.sound:
            self.waiting.append(_Run("", [self.items[by]], of=verdict))
            return
        if by and not self.sound[by]:
            items = [item for item in self.items.values() if _file(item) in verdict["files"]]
            items.sort(key=lambda item: verdict["files"].index(_file(item)))
            self.waiting.append(_Run(verdict["mutant"], items))
            return
        with self.verdicts.open("a", encoding="utf-8") as out:
            print(json.dumps({key: verdict[key] for key in verdict if key != "files"}), file=out)


def _play(items: list[pytest.Item], note: Path) -> int:
    """Runs tests until one fails, whose name it notes."""
    if not items:
        return _NO_TESTS
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            note.write_text(item.nodeid, encoding="utf-8")
            return _FAILED
    return _SURVIVED


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
