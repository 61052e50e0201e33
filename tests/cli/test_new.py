"""``agentenv new``: the generated environment passes its own test and ``check`` unchanged; nothing is overwritten."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agentenv
from agentenv.cli.main import main


def test_the_generated_environment_passes_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "here"
    assert main(["new", "treasure_hunt", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["entry_point"] == "treasure_hunt:TreasureHunt"
    assert len((out / "treasure_hunt.py").read_text().splitlines()) < 70
    package = str(Path(agentenv.__file__).parents[1])
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([package, str(out)])}
    for command in (
        ["-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_treasure_hunt.py"],
        ["-m", "agentenv.cli.main", "check", "treasure_hunt:TreasureHunt"],
    ):
        done = subprocess.run(
            [sys.executable, *command], cwd=out, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 16 checks failed" in done.stdout


def test_people_are_told_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "maze", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "agentenv check maze:Maze" in out
    assert 'agentenv.register("maze/Maze-v0", "maze:Maze")' in out
    assert '"maze/Maze-v0" = "maze:Maze"' in out  # the line of an entry point, by which commands know it


@pytest.mark.parametrize("taken", ["maze.py", "test_maze.py"])
def test_nothing_is_overwritten_and_nothing_half_written(
    taken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / taken).write_text("mine")
    assert main(["new", "maze", "--out", str(tmp_path)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(taken, "mine")]


@pytest.mark.parametrize("name", ["Maze", "my-env", "1st", "class", "a/b", "../up", "é", ""])
def test_bad_names_are_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", name, "--out", str(tmp_path)]) == 1
    assert "is no module name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
