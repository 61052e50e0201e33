"""``agentenv new``: the generated environment passes its own test and ``check`` unchanged; nothing is overwritten."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agentenv
from agentenv.cli.main import main
from agentenv.policies.fakes import random_policy


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
    assert "0 of 17 checks failed" in done.stdout
    odd = (
        "from treasure_hunt import TreasureHunt; env = TreasureHunt(); env.reset(seed=1); "
        "assert not env.step('9' * 5000).info['valid']"
    )
    subprocess.run([sys.executable, "-c", odd], cwd=out, env=environ, check=True)


def test_what_is_written_is_checked_trained_and_evaluated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    random_policy(tmp_path / "small", ["Guess a number from 0 to 9999; Higher. Lower."])

    def run(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    entry = run("new", "walked_through")["entry_point"]
    assert run("check", entry)["ok"]
    small = (
        "--optimizer.steps 2 --rollout.questions 2 --rollout.group_size 2 --rollout.turn_tokens 4 "
        "--rollout.context_tokens 200 --test.limit 3 --dev.limit 2 --threads 1 --policy hf:small"
    )
    overrides = ["--env.id", entry, *small.split()]
    assert run("train", "own-env", *overrides, "--plan")["episodes_per_step"] == 4
    trained = run("train", "own-env", *overrides, "--out", "run")
    assert (trained["steps"], trained["before"]["n"], trained["after"]["n"]) == (2, 3, 3)
    assert trained["bounds"]["expert"]["mean"] == 1.0
    asked = run("eval", "--env", entry, "--policy", "hf:run/policy", "--limit", "3", "--out", "asked")
    assert (asked["split"], asked["n"]) == ("test", 3)
    expert = run("eval", "--env", entry, "--policy", "scripted", "--limit", "3", "--out", "expert")
    assert expert["scores"]["reward"]["mean"] == 1.0
    for folder in ("run", "asked"):
        assert Path(run("report", folder)["report"]).is_file()


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
    assert taken in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(taken, "mine")]


@pytest.mark.parametrize("name", ["Maze", "my-env", "1st", "class", "a/b", "../up", "é", ""])
def test_bad_names_are_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", name, "--out", str(tmp_path)]) == 1
    assert repr(name) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "numpy"])
def test_a_module_that_exists_is_not_hidden(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", name, "--out", str(tmp_path)]) == 1
    assert repr(name) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
