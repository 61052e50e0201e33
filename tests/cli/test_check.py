"""``agentenv check`` and ``agentenv list``: rows, exit codes, classes that are not registered."""

import json
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.core.contract import CHECKS

BROKEN = """
from agentenv.envs.calculator import Calculator

class Generous(Calculator):
    def answer(self, text):
        return super().answer(text)._replace(reward=1.0)

class Demanding(Calculator):
    def __init__(self, corpus):
        super().__init__()
"""


def test_a_good_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "agentenv/Calculator-v0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["ok", name] for name in CHECKS]
    assert lines[-1] == "agentenv/Calculator-v0: 0 of 16 checks failed"


def test_json_has_a_row_for_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "agentenv.envs.calculator:Calculator", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert [row["name"] for row in document["checks"]] == list(CHECKS)


def test_a_class_of_this_folder_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_env.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "broken_env:Generous", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert [row["name"] for row in document["checks"] if row["status"] == "failed"] == ["floors"]
    assert main(["check", "broken_env:Demanding"]) == 1
    assert "cannot be made without arguments" in capsys.readouterr().err


def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "agentenv/Calculater-v0"]) == 1
    assert "Did you mean 'agentenv/Calculator-v0'?" in capsys.readouterr().err
    assert main(["check", "no_such_module:Env"]) == 1
    assert "no_such_module" in capsys.readouterr().err


def test_list_names_every_kind_of_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["environments"]["agentenv/LocalSearch-v0"] == "agentenv.envs.local_search:LocalSearch"
    assert {"retrievers", "policies", "datasets", "scorers", "estimators"} < set(document)
    assert "em_squad" in document["scorers"]
    assert main(["list"]) == 0
    assert "agentenv/Calculator-v0" in capsys.readouterr().out
