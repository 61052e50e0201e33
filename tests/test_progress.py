"""Covers what is said of a long piece of work where there is no terminal: how far, how fast, how long still."""

import contextlib
import os
import re
import sys
from pathlib import Path

import pytest

from agentenv.progress import LiveDisplay
from agentenv.streams import forgiving


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_pipe_is_told_how_long_the_rest_will_take(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run stands at 40 of 100; ten more take 100 s, so the other 50 will take 500 s."""
    with LiveDisplay("run", log=tmp_path / "run.log", clock=clock) as display:
        display.phase("training", 100)
        display.advance(40, {})
        clock.now += 100
        display.advance(50, {"reward_mean": 0.5})
    *_, line = capsys.readouterr().err.splitlines()
    assert "training 50/100" in line
    assert "0:01:40 spent" in line
    assert "0:08:20 left" in line
    assert line.endswith("reward 0.500")


def test_each_phase_has_a_pace_of_its_own(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveDisplay("run", log=tmp_path / "run.log", clock=clock) as display:
        for seconds in (1000.0, 40.0):
            display.phase("evaluation", 10)
            display.advance(0, {})
            clock.now += seconds
            display.advance(5, {})
    lines = [line for line in capsys.readouterr().err.splitlines() if "5/10" in line]
    assert [line.partition("about ")[2] for line in lines] == ["0:16:40 left", "0:00:40 left"]


@pytest.mark.parametrize(("total", "done"), [(0, 7), (10, 10), (10, 3)])
def test_nothing_is_foretold_where_nothing_is_known(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str], total: int, done: int
) -> None:
    """Of a phase without a length, at its end, and at its first report."""
    with LiveDisplay("run", log=tmp_path / "run.log", clock=clock) as display:
        display.phase("index", total)
        clock.now += 60
        display.advance(done, {})
    *_, line = capsys.readouterr().err.splitlines()
    assert "0:01:00 spent" in line
    assert "left" not in line


def test_a_line_is_never_broken_and_a_warning_is_no_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveDisplay("run", log=tmp_path / "run.log") as display:
        display.phase("x" * 200, 1)
        display.warn("[red]" + "y" * 200 + "[/oops]")
    first, second = capsys.readouterr().err.splitlines()
    assert "x" * 200 in first
    assert second == "warning: [red]" + "y" * 200 + "[/oops]"


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_times_and_figures_whole(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    figures = {"score": 0.067, "searches": 1.033, "faults": 0, "requests": 60, "cost": 0.048}
    with LiveDisplay("run", log=tmp_path / "run.log") as display:
        display.phase("hotpotqa", 30)
        display.advance(12, figures)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "12/30 0:00:" in shown
    assert "score 0.067  searches 1.033  faults 0  requests 60" in shown
    assert "…" not in shown


def test_a_log_on_a_full_disk_loses_its_lines_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """The work itself says that the disk is full, in one sentence, when it cannot write."""
    with LiveDisplay("run", log=Path("/dev/full")) as display:
        display.phase("training", 2)
        display.advance(2, {"reward_mean": 0.5})
        display.note("a sentence")
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    assert "a sentence" in printed


def test_a_terminal_that_is_gone_does_not_end_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    gone = os.fdopen(write, "w", buffering=1)
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", forgiving(gone))
        with LiveDisplay("run", log=tmp_path / "run.log") as display:
            display.phase("training", 2)
            display.warn("look here")
            display.advance(2, {})
        assert forgiving(sys.stderr) is sys.stderr
        assert sys.stderr.fileno() == write
    with contextlib.suppress(OSError):
        gone.close()
    assert "look here" in (tmp_path / "run.log").read_text()


def test_a_process_without_stderr_shows_nothing_and_writes_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python has None there where a program was started with that stream closed."""
    monkeypatch.setattr("sys.stderr", None)
    with LiveDisplay("run", log=tmp_path / "run.log") as display:
        display.phase("training", 2)
        display.warn("look here")
        display.advance(2, {})
    assert "look here" in (tmp_path / "run.log").read_text()
    assert capsys.readouterr().out == ""


def test_a_long_name_leaves_times_and_counts_whole_on_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    with LiveDisplay("run", log=tmp_path / "run.log") as display:
        display.phase("fictional[a] (test), bound [/closed_book]", 30)
        display.advance(12, {"loss": 1e300})
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "fictional[a] (test), bound" in shown
    assert "[/closed_book]" in shown
    assert "12/30 0:00:" in shown
    assert "loss 1.000e+300" in shown
    assert "…" not in shown


@pytest.mark.parametrize("terminal", [False, True])
def test_what_an_error_quotes_commands_no_terminal_and_forges_no_line_of_the_log(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "200")
    said = "fault: \x1b]52;c;aGk=\x07\x9b2J\r\n2026-11-28 10:00:00 INFO all is well \ud800"
    with (
        contextlib.suppress(OSError),
        LiveDisplay(f"run {said}", log=tmp_path / "run.log") as display,
    ):
        display.phase(f"a {said}", 1)
        display.note(f"b {said}")
        display.warn(f"c {said}")
        raise OSError(f"d {said}")
    whole = (tmp_path / "run.log").read_text("utf-8")
    lines = whole.splitlines()
    assert len(lines) == 4
    for line, letter in zip(lines, "abcd", strict=True):
        assert (
            f"{letter} fault: \\x1b]52;c;aGk=\\x07\\x9b2J 2026-11-28 10:00:00 INFO all is well \\ud800"
            in line
        )
    shown = capsys.readouterr().err
    assert not {"\x1b]", "\x9b", "\x07"} & {
        shown[at : at + length] for at in range(len(shown)) for length in (1, 2)
    }
    assert "\\x1b]52;c;aGk=\\x07\\x9b2J 2026" in shown
