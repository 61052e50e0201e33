"""The sandbox's benchmark and its soak, in seconds and on every backend with walls: they run and their counts add up."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentenv.sandbox.backends import unavailable

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["bwrap", "docker"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if reason := unavailable(name):
        pytest.skip(f"{name}: {reason}")
    return name


def result(name: str, out: Path, *words: str) -> dict[str, Any]:
    """What a script printed, which is what it wrote."""
    script = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *words, "--out", str(out), "--json"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    assert printed == json.loads(out.read_text(encoding="utf-8"))
    return printed


def test_a_soak_of_seconds(backend: str, tmp_path: Path) -> None:
    words = ("--backend", backend, "--runs", "20", "--minutes", "0.05", "--every", "0.5")
    found = result("sandbox_soak", tmp_path / "out.json", *words)
    assert found["failures"] == 0
    assert found["started"] == sum(found["outcomes"].values()) > 20
    assert sum(found["outcomes_without_kills"].values()) == 20
    assert all(name.endswith("as it should") for name in found["outcomes_without_kills"])
    assert sum(found["kills"].values()) > 0


def test_the_benchmark_measures_what_it_claims(backend: str, tmp_path: Path) -> None:
    words = ("--backends", backend, "--rounds", "2", "--seconds", "0.1")
    found = result("sandbox", tmp_path / "out.json", *words)
    assert found["left_out"] == {}
    for name in (
        "warm run, print",
        "warm run, numpy",
        "snapshot, 1 MB of files",
        "restore, 14 MB of files",
        "fork(8), 1 MB of files",
    ):
        assert found["rows"][f"{backend}: {name}"]["n"] == 2
    claim = found["claims"][f"{backend}: warm run, ms"]
    assert claim["holds"] == (found["rows"][f"{backend}: warm run, print"]["median_ms"] <= claim["target"])
