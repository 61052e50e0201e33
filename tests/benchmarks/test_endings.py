"""What is missing or misspelt ends a benchmark with one sentence, and a benchmark that a test starts says so itself."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentenv.trainers.config.config_files import load_config

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
WITHOUT_ARGUMENTS = {"miniatures_page", "readme_plot"}
"""They draw a page from published results, and are given nothing that could be wrong."""
A_SERVER = {"reference_server"}
"""Started by another script, which reads what it says."""
SCRIPTS = {
    path.stem: text
    for path in sorted(BENCHMARKS.glob("*.py"))
    if '\nif __name__ == "__main__":' in (text := path.read_text(encoding="utf-8"))
}


@pytest.fixture
def ending(script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a script of a name, without the real sets, and returns the sentence that it ends with."""
    pytest.importorskip("torch", reason="the extra train is not installed")
    monkeypatch.delenv("AGENTENV_DATA", raising=False)

    def run(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / f"{name}.py"), *words])
        with pytest.raises(SystemExit) as stop:
            script("common").run_script(script(name).main)
        return str(stop.value.code)

    return run


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - WITHOUT_ARGUMENTS - A_SERVER))
def test_every_script_ends_with_a_sentence(name: str) -> None:
    assert re.search(r"\n    run_script\(\w+\)\n$", SCRIPTS[name]), f"start main of {name}.py by run_script"


@pytest.mark.parametrize(
    ("name", "words", "named"),
    [
        ("gui_ceilings", (), "AGENTENV_DATA"),
        ("sandbox_bulk", (), "AGENTENV_DATA"),
        ("padding", ("--run", "nowhere"), "nowhere"),
        ("train_real", ("--runs", "nowhere"), "nowhere"),
        ("reward_probes", ("--only", "agentenv/Calcluator-v0"), "Calcluator"),
    ],
)
def test_what_is_missing_is_one_sentence(
    name: str, words: tuple[str, ...], named: str, tmp_path: Path, ending: Callable[..., str]
) -> None:
    said = ending(name, *words, "--out", str(tmp_path / "out.json"))
    assert named in said
    assert "\n" not in said
    assert not (tmp_path / "out.json").exists()


def test_a_run_without_trajectories_is_one_sentence(
    tmp_path: Path, script: Callable[[str], Any], ending: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SimpleNamespace(path=tmp_path, config=load_config("laptop-search"))
    monkeypatch.setattr(script("padding").RunFolder, "open", lambda path: folder)
    assert "trajectories" in ending("padding", "--run", str(tmp_path), "--out", str(tmp_path / "out.json"))


def test_an_evaluation_that_cannot_be_made_ends_with_its_status(
    tmp_path: Path, ending: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The command that it starts has said what is missing."""
    said = ending("extractive", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out.json"))
    assert said.isdigit()
    assert said != "0"
    assert "AGENTENV_DATA" in capfd.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_a_comparison_that_was_not_published_is_refused(
    ending: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending("trl_limit", "--compared", "none.json") == "2"
    assert "none.json" in capsys.readouterr().err
