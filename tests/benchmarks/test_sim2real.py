"""The sim-to-real table in seconds: it runs, its counts add up, and the recovered share by hand."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_has_every_arm_under_every_condition(tmp_path: Path) -> None:
    sizes = {
        "seeds": 1,
        "steps": 1,
        "batch": 1,
        "documents": 200,
        "questions": 4,
        "threads": 1,
        "memory-steps": 1,
    }
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    words += ["--arms", "real", "mixed", "self", "--json"]
    out = tmp_path / "out.json"
    script = [sys.executable, str(ROOT / "benchmarks" / "sim2real.py"), "--runs", str(tmp_path / "runs")]
    done = subprocess.run(
        [*script, "--out", str(out), *words],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures == json.loads(out.read_text())
    assert list(figures["table"]) == ["real", "mixed", "self"]
    for row in (figures["before"], *figures["table"].values()):
        assert [(name, cell["n"]) for name, cell in row.items()] == [
            ("real", 4),
            ("simulated", 4),
            ("none", 4),
        ]
    assert list(figures["recovered"]) == ["mixed", "self"]
    assert str(tmp_path) not in done.stdout


@pytest.fixture(scope="module")
def recovered(request: pytest.FixtureRequest) -> Any:
    """The function of the script."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location("sim2real", ROOT / "benchmarks" / "sim2real.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return module.recovered


def test_the_recovered_share_by_hand(recovered: Any) -> None:
    """Means: before .2, real .7, arm .6 over two seeds: (.6 - .2) / (.7 - .2) = .8."""
    before = np.array([1.0] * 2 + [0.0] * 8)
    real = np.stack([np.array([1.0] * 7 + [0.0] * 3)] * 2)
    arm = np.stack([np.array([1.0] * 7 + [0.0] * 3), np.array([1.0] * 5 + [0.0] * 5)])
    share = recovered(arm, real, before)
    assert share["mean"] == pytest.approx(0.8)
    assert share["ci95"][0] <= 0.8 <= share["ci95"][1]
    assert recovered(real, real, before)["mean"] == pytest.approx(1.0)
    assert recovered(arm, np.stack([before]), before)["mean"] is None
