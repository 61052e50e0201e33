"""SIGINT and SIGTERM in ``agentenv eval``: it ends in order, keeps what it has and goes on; a second one ends it at once."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentenv.cli.main import main

WORDS = ("eval", "--dataset", "env", "--env", "agentenv/Calculator-v0", "--limit", "8", "--concurrency", "2")
POLICY = ("--policy", "scripted")
SIGNALLED = """
import os, signal, sys, threading, time
from agentenv.cli.main import main
from agentenv.envs.calculator import Calculator
from agentenv.evaluation import benchmark
from agentenv.policies.scripted import ScriptedPolicy

place, calls = sys.argv[1], []
first, *second = [getattr(signal, name) for name in sys.argv[2].split(",")]
owner, name, nth = {
    "the policy": (ScriptedPolicy, "generate", 6),
    "the summary": (benchmark, "write_results", 1),
    "the report": (benchmark, "write_report", 1),
}[place]
inner = getattr(owner, name)

def signalled(*args, **kwargs):
    calls.append(1)
    if len(calls) == nth:
        for number in second:
            Calculator.close = lambda self: time.sleep(60)
            threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
        os.kill(os.getpid(), first)
    return inner(*args, **kwargs)

setattr(owner, name, signalled)
sys.argv[1:] = sys.argv[3:]
sys.exit(main())
"""


def child(place: str, numbers: str, out: Path) -> subprocess.CompletedProcess[str]:
    """An evaluation that sends itself signals at ``place``, as a process of its own."""
    words = [sys.executable, "-c", SIGNALLED, place, numbers, *WORDS, *POLICY, "--out", str(out)]
    return subprocess.run(words, capture_output=True, check=False, text=True, timeout=120)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same evaluation, undisturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert main([*WORDS, *POLICY, "--out", str(out), "--json"]) == 0
    return out


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("place", ["the policy", "the summary", "the report"])
def test_a_signal_ends_an_evaluation_in_order(place: str, number: str, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = child(place, number, out)
    assert done.returncode == 128 + getattr(signal, number), done.stderr
    assert number in done.stderr.splitlines()[-1]
    assert str(out) in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    kept = (out / "episodes.jsonl").read_bytes()
    assert 0 < len(kept.splitlines()) <= 8
    assert (whole / "episodes.jsonl").read_bytes().startswith(kept)
    assert not [path for path in out.rglob("*") if path.suffix in (".part", ".old")]
    assert main([*WORDS, *POLICY, "--out", str(out), "--json"]) == 0
    for name in ("episodes.jsonl", "results.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert (out / "report.html").is_file()


@pytest.mark.parametrize("numbers", ["SIGINT,SIGINT", "SIGTERM,SIGINT"])
def test_a_second_signal_ends_an_evaluation_at_once(numbers: str, tmp_path: Path) -> None:
    """Its environments do not close meanwhile."""
    done = child("the policy", numbers, tmp_path / "out")
    assert done.returncode == -getattr(signal, numbers.partition(",")[2])
    assert "Traceback" not in done.stderr
