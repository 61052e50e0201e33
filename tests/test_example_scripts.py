"""The scripts in ``examples/``: each is short, runs by itself in seconds, and shows what it is there to show."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import agentenv
from agentenv.data.world import FictionalWorld
from agentenv.data.world_config import WorldConfig
from agentenv.sandbox import unavailable

FOLDER = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
MAX_LINES = 60


def printed(name: str, folder: Path) -> str:
    """What a script prints, run from another folder than its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(agentenv.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(FOLDER / name)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout


def test_each_is_short_and_named_in_the_readme() -> None:
    assert len(SCRIPTS) == 6
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in SCRIPTS:
        assert len((FOLDER / name).read_text(encoding="utf-8").splitlines()) < MAX_LINES
        assert f"`{name}`" in listed


def test_each_stage_of_drive_begins_with_the_policy_of_the_one_before(tmp_path: Path) -> None:
    """With a command in the place of ``agentenv`` that writes down how it was called, and fails if a stage is to fail."""
    said, command = tmp_path / "said", tmp_path / "agentenv"
    command.write_text(f'#!/bin/sh\necho "$@" >> {said}\n[ "$2" != "$FAILING" ]\n')
    command.chmod(0o755)
    environment = {**os.environ, "FAILING": "", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ["sh", str(FOLDER / "drive.sh"), "runs/all", "--optimizer.steps", "4"]
    assert subprocess.run(words, env=environment, check=False).returncode == 0
    taught, *trained = (shlex.split(line) for line in said.read_text().splitlines())
    assert taught[:3] == ["warmstart", "--imitate", "examples/drive-expand.toml"]
    made = taught[taught.index("--out") + 1]
    for run, name in zip(trained, ("drive-expand", "drive"), strict=True):
        assert run[:2] == ["train", f"examples/{name}.toml"]
        assert run[run.index("--policy") + 1] == f"hf:{made}"
        assert run[-2:] == ["--optimizer.steps", "4"]
        made = f"{run[run.index('--out') + 1]}/policy"
    said.unlink()
    failing = {**environment, "FAILING": "examples/drive-expand.toml"}
    assert subprocess.run(words, env=failing, check=False).returncode != 0
    assert len(said.read_text().splitlines()) == 2
    assert subprocess.run(words[:2], env=environment, check=False, stderr=subprocess.DEVNULL).returncode != 0


def test_an_own_environment_is_trained_and_the_score_rises(tmp_path: Path) -> None:
    said = printed("train_own_environment.py", tmp_path)
    before, after = (float(found) for found in re.findall(r"(?:before|after): ([0-9.]+) on 32", said))
    assert after > before


def test_an_own_agent_is_evaluated_and_its_failure_named(tmp_path: Path) -> None:
    said = printed("evaluate_own_agent.py", tmp_path)
    assert "reward 1.0 on 199 questions" in said
    assert said.count("the model's server has hung up") == 1


def test_an_own_retriever_finds_what_the_questions_need(tmp_path: Path) -> None:
    said = printed("own_corpus_and_retriever.py", tmp_path)
    assert "Title: Danube" in said
    assert [line[-3:] for line in said.splitlines() if "reward" in line] == ["1.0", "0.0"]


def test_time_travel_leaves_the_original_where_it_was(tmp_path: Path) -> None:
    said = printed("time_travel.py", tmp_path)
    rewards = [float(found) for found in re.findall(r"fork that answers .*: reward ([0-9.]+)", said)]
    assert min(rewards) == 0.0
    assert max(rewards) == 1.0
    assert "whose episode still runs" in said


def test_programs_run_and_are_rewound_in_the_sandbox(tmp_path: Path) -> None:
    if why := unavailable("bwrap"):
        pytest.skip(f"bubblewrap runs no program here: {why}")
    said = printed("code_in_the_sandbox.py", tmp_path)
    assert "ok, printed 42" in said
    assert "([1, 2, 3], 'second')" in said
    assert "rewound: ([1, 2], 'first')" in said
    assert "{'twin': '[]', 'original': '[1, 2]'}" in said
    assert len(re.findall("the (?:greedy|endless|curious) one: (?!ok)", said)) == 3


def test_the_agent_that_is_no_environment_searches_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="needs the train extra")
    pytest.importorskip("bm25s", reason="needs the retrieval extra")
    pytest.importorskip("fastapi", reason="needs the serve extra")
    monkeypatch.syspath_prepend(str(FOLDER))
    world = FictionalWorld.generate(WorldConfig(seed=3, documents=1000, questions=40, families=("lookup",)))
    result = agentenv.evaluate(
        "tiny",
        env="agentenv/AgentProgram-v0",
        options={"agent": "python:train_inside_an_agent:solve", "max_turns": 3},
        tasks=world.questions[:16],
    )
    assert result.n == 16
    assert result.score.mean  # nobody guesses a fact of an invented world
