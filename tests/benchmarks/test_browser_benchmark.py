"""The benchmark of Browser-v0 in small: it runs, its counts add up, and memory stays where it is over some episodes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentenv.envs.browser.driver import unavailable

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    out = tmp_path / "browser.json"
    few = ["--groups", "1", "--limit", "2", "--seeds", "1", "--episodes", "20", "--opened", "2"]
    script = [sys.executable, str(ROOT / "benchmarks" / "browser.py"), *few, "--out", str(out)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=600, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["resets"]["reset_ms"]["n"] == 8
    assert found["resets"]["reset_and_preparation_ms"]["median"] >= found["resets"]["reset_ms"]["median"]
    assert found["pages"] == {"pages": 2, "failed": {}}
    assert found["experts"] == {"experts": 2, "seeds": 1, "always_reward_1": 2, "lost": {}}
    rows = found["memory"]["mib"]
    assert [row["episode"] for row in rows] == list(range(21))
    assert all(len(found["memory"]["quarters"][name]) == 4 for name in ("python", "browser"))
    assert found["runs"].keys() == {"memory", "resets", "pages", "experts", "browsers"}
    costs = found["browsers"].values()
    assert costs
    assert all(row["processor_s_a_page"] > 0 and row["mib"] > 0 for row in costs)
    assert max(row["processes"] for row in rows[11:]) <= max(row["processes"] for row in rows[:11]) + 3
    assert rows[-1]["python"] < rows[10]["python"] + 64  # MiB
