"""SIGINT and SIGTERM in ``agentenv eval``: it ends in order, keeps what it has and goes on; a second one ends it at once."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.envs.calculator import Calculator
from agentenv.evaluation import benchmark
from agentenv.policies.scripted import ScriptedPolicy

WORDS = ("eval", "--dataset", "env", "--env", "agentenv/Calculator-v0", "--limit", "8", "--concurrency", "2")
POLICY = ("--policy", "scripted")
PLACES: dict[str, tuple[Any, str, int]] = {
    "the policy": (ScriptedPolicy, "generate", 6),
    "the summary": (benchmark, "write_results", 1),
    "the report": (benchmark, "write_report", 1),
}
"""Whose function is it, its name, and at which call the signal comes."""


def signals_at(place: str, numbers: str, patch: Callable[[object, str, object], None]) -> None:
    """Lets this process send itself the first signal at ``place``, and the second one soon after."""
    owner, name, nth = PLACES[place]
    first, *second = (getattr(signal, number) for number in numbers.split(","))
    calls, inner = [], getattr(owner, name)

    def signals(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == nth:
            for number in second:
                patch(Calculator, "close", lambda _: time.sleep(60))
                threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
            os.kill(os.getpid(), first)
        return inner(*args, **kwargs)

    patch(owner, name, signals)


PROGRAM = f"""
import importlib.util, sys
from agentenv.cli.main import main

spec = importlib.util.spec_from_file_location("signalled", {__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.signals_at(sys.argv[1], sys.argv[2], setattr)
sys.argv[1:] = sys.argv[3:]
sys.exit(main())
"""


def child(place: str, numbers: str, out: Path) -> subprocess.CompletedProcess[str]:
    """An evaluation that sends itself signals at ``place``, as a process of its own."""
    words = [sys.executable, "-c", PROGRAM, place, numbers, *WORDS, *POLICY, "--out", str(out)]
    return subprocess.run(words, capture_output=True, check=False, text=True, timeout=120)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same evaluation, undisturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert main([*WORDS, *POLICY, "--out", str(out), "--json"]) == 0
    return out


def ended_in_order(out: Path, code: int, errors: str, whole: Path, number: str) -> None:
    """Checks the end of an evaluation that a signal ended, and that it goes on to the bytes of the undisturbed one."""
    assert code == 128 + getattr(signal, number), errors
    assert number in errors.splitlines()[-1]
    assert str(out) in errors.splitlines()[-1]
    assert "Traceback" not in errors
    kept = (out / "episodes.jsonl").read_bytes()
    assert 0 < len(kept.splitlines()) <= 8
    assert (whole / "episodes.jsonl").read_bytes().startswith(kept)
    assert not [path for path in out.rglob("*") if path.suffix in (".part", ".old")]
    assert main([*WORDS, *POLICY, "--out", str(out), "--json"]) == 0
    for name in ("episodes.jsonl", "results.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert (out / "report.html").is_file()


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("place", PLACES)
def test_a_signal_ends_an_evaluation_in_order(
    place: str, number: str, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        signals_at(place, number, patch.setattr)
        code = main([*WORDS, *POLICY, "--out", str(tmp_path / "out")])
    ended_in_order(tmp_path / "out", code, capfd.readouterr().err, whole, number)


def test_a_signal_ends_the_process_of_an_evaluation(whole: Path, tmp_path: Path) -> None:
    """With the code of the signal, whatever threads are left in it."""
    done = child("the policy", "SIGTERM", tmp_path / "out")
    ended_in_order(tmp_path / "out", done.returncode, done.stderr, whole, "SIGTERM")


@pytest.mark.parametrize("numbers", ["SIGINT,SIGINT", "SIGTERM,SIGINT"])
def test_a_second_signal_ends_an_evaluation_at_once(numbers: str, tmp_path: Path) -> None:
    """Its environments do not close meanwhile."""
    done = child("the policy", numbers, tmp_path / "out")
    assert done.returncode == -getattr(signal, numbers.partition(",")[2])
    assert "Traceback" not in done.stderr
