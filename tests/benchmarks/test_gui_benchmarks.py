"""The benchmarks of graphical environments in seconds: they run, and their counts add up."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.envs.domsim.env import DomSim
from agentenv.envs.gui.recorder import record, write_dataset
from agentenv.progress import SilentDisplay


@pytest.fixture
def figures(here: Callable[..., str], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """What a benchmark printed, which is what it wrote."""

    def run(name: str, *words: str) -> dict[str, Any]:
        out = tmp_path / "out.json"
        printed: dict[str, Any] = json.loads(here(name, *words, "--out", str(out), "--json"))
        assert printed == json.loads(out.read_text(encoding="utf-8"))
        return printed

    return run


Figures = Callable[..., dict[str, Any]]


def test_speed(figures: Figures) -> None:
    pytest.importorskip("PIL")
    found = figures("gui_speed", "--steps", "20", "--repeats", "5")
    assert found["templates"] == 50
    assert 20 <= found["speed"]["tree"]["steps"] < 60
    assert set(found["time_travel"]) == {"snapshot", "restore", "fork"}


def test_ceilings(tmp_path: Path, figures: Figures) -> None:
    env = DomSim()
    (task,) = env.make_tasks(1, templates=["mail-star"])
    write_dataset([record(env, task)], tmp_path)
    found = figures("gui_ceilings", "--data", str(tmp_path / "recordings.jsonl"))
    # open, letter, star, terminate: nothing fails anywhere, but that UI-S1's measure has no rule for terminate
    replayed = {name: row["exact"] for name, row in found["gold_replay"].items()}
    assert replayed.pop("ui_s1_sop") == 3
    assert set(replayed.values()) == {4}
    assert found["ceilings"]["agentenv"]["terminate"]["all"] == 0.25


def test_ways_of_training(tmp_path: Path, figures: Figures) -> None:
    pytest.importorskip("transformers")
    from agentenv.trainers.warmstart.desktop_warmstart import DesktopWarmstartConfig, desktop_warmstart

    small = DesktopWarmstartConfig(tasks=20, steps=1, episodes=4, layers=1, heads=1, judged=1)
    desktop_warmstart(small, SilentDisplay(), tmp_path / "policy")
    words = f"--policy hf:{tmp_path / 'policy'} --runs {tmp_path / 'runs'} --seeds 1 --steps 1 --batch 1 --tests 2"
    ways = ("offline", "online")
    found = figures("gui_semi_online", *words.split(), "--ways", *ways)
    assert tuple(found["ways"]) == ways
    assert len(found["checkpoints"]) == 1 + len(ways)
    assert all(0 <= sop <= 1 and solved in (0.0, 0.5, 1.0) for sop, solved in found["checkpoints"])
    assert all(min(row["sampled_tokens"]) > 0 for row in found["ways"].values())
