"""README and tutorial are run as they are written: their files, Python and commands, with fewer steps and episodes."""

import importlib
import re
import shlex
import sqlite3
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agentenv.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r'^```(python|shell|toml)(?: title="([\w.]+)")?\n(.*?)^```$', re.M | re.S)

# What the tests change, so that they take seconds; every entry stands in the page.
TUTORIAL = {
    "steps = 40": "steps = 1",
    "questions = 8": "questions = 1",
    "group_size = 8": "group_size = 2",
    "limit = 200": "limit = 4",
    "limit = 100": "limit = 2",
    "limit = 20\n": "limit = 2\n",
    "--steps 120": "--steps 1",
    "--limit 100": "--limit 2",
    "limit=20)": "limit=2)",
}
README = {
    '"laptop-search"': '"small.toml"',
    "optimizer__steps=20": "optimizer__steps=1",
    "limit=100": "limit=2",
}
SMALL = """
base = "lab-search"
train = { limit = 4, world = { documents = 200, questions = 8 } }
dev = { limit = 2, world = { documents = 200, questions = 4 } }
test = { limit = 2, world = { documents = 200, questions = 4 } }
rollout = { questions = 1, group_size = 2 }
evaluation = { every = 0, bounds = false }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in which the reader works; what was imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


def run_blocks(page: Path, smaller: Mapping[str, str], folder: Path) -> dict[str, object]:
    """Writes the titled blocks of ``page`` into ``folder`` and runs the others in their order; the names that they leave."""
    text = page.read_text(encoding="utf-8")
    for written, replacement in smaller.items():
        assert written in text
        text = text.replace(written, replacement)
    names: dict[str, object] = {"__name__": "__main__"}
    for language, file, block in BLOCK.findall(text):
        if file:
            (folder / file).write_text(block)
        elif language == "python":
            exec(compile(block, str(page), "exec"), names)
        else:
            for command in block.splitlines():
                name, *arguments = shlex.split(command)
                assert name == "agentenv"
                assert main(arguments) == 0, command
    return names


@pytest.mark.slow
def test_the_tutorial_runs(folder: Path) -> None:
    run_blocks(ROOT / "docs" / "tutorial.md", TUTORIAL, folder)
    assert (folder / "runs" / "stockroom" / "report.html").is_file()
    entry_points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    for target in entry_points["agentenv.envs"].values():
        module, _, name = target.partition(":")
        assert hasattr(importlib.import_module(module), name)


def test_the_guide_to_tools_runs(folder: Path) -> None:
    """Its environment passes the check, its database goes back with it, and each episode closes that of the one before."""
    run_blocks(ROOT / "docs" / "guides" / "tools.md", {}, folder)
    env = importlib.import_module("ledger").Ledger()
    opening, _ = env.reset(seed=3)
    assert [message.role for message in opening] == ["system", "user", "assistant", "user"]
    pay, answer = env.expert()
    begun, (twin,) = env.snapshot(), env.fork(1)
    for action in (pay, pay, answer):
        step = env.step(action)
    assert (step.reward, step.info["reward_parts"]) == (0.8, {"right": 0.8, "recorded": 0.0})  # it paid twice
    env.restore(begun)
    for other in (env, twin):
        other.step(pay)
        assert other.step(answer).reward == 1.0
    first = env.state.database.connection
    env.reset(seed=4)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        first.execute("select 1")


def test_the_readme_runs(folder: Path) -> None:
    (folder / "small.toml").write_text(SMALL)
    names = run_blocks(ROOT / "README.md", README, folder)
    assert names["step"].info["valid"]  # type: ignore[attr-defined]
    assert names["result"].n == 2  # type: ignore[attr-defined]
