"""``agentenv check`` and ``agentenv list``: rows, exit codes, classes that are not registered."""

import json
import threading
from pathlib import Path

import gymnasium
import pytest

from agentenv.cli.main import main
from agentenv.core.env_contract import CHECKS, run_check
from agentenv.core.probes import PROBES
from agentenv.envs.calculator import Calculator

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
    assert [line.split()[:2] for line in lines[: len(CHECKS)]] == [["ok", name] for name in CHECKS]
    table = lines[len(CHECKS) + 1 : -1]
    assert len(table) == len(PROBES)
    assert all(line.strip().startswith(name) for line, name in zip(table, PROBES, strict=True))
    assert lines[-1] == "agentenv/Calculator-v0: 0 of 17 checks failed"


def test_json_has_a_row_for_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "agentenv.envs.calculator:Calculator", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert [row["name"] for row in document["checks"]] == list(CHECKS)
    assert [row["probe"] for row in document["checks"][-1]["probes"]] == list(PROBES)
    assert {row["expert"] for row in document["checks"][-1]["probes"]} == {1.0}


def test_a_class_of_this_folder_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_env.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "broken_env:Generous", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert [row["name"] for row in document["checks"] if row["status"] == "failed"] == ["floors", "probes"]
    earned = {row["probe"]: row["reward"] for row in document["checks"][-1]["probes"]}
    assert (earned["answer at once"], earned["first action repeated"]) == (1.0, 0.0)
    assert main(["check", "broken_env:Demanding"]) == 1
    assert "broken_env:Demanding" in capsys.readouterr().err


def test_a_table_without_an_expert_names_the_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = "class Idle(Calculator):\n    def expert(self):\n        return None\n"
    (tmp_path / "idle_env.py").write_text(f"from agentenv.envs.calculator import Calculator\n\n{idle}")
    monkeypatch.chdir(tmp_path)
    main(["check", "idle_env:Idle"])
    lines = capsys.readouterr().out.splitlines()
    heads = [line.split() for line in lines if "probe of the reward" in line]
    assert heads == [["probe", "of", "the", "reward", "earns", "ceiling", "episodes", "masked", "cut"]]


PAYING = """
from agentenv.envs.calculator import Calculator

class Paying(Calculator):
    def __init__(self, *, always: float = 0.0):
        super().__init__()
        self.always = always

    def answer(self, text):
        ended = super().answer(text)
        return ended._replace(reward=max(ended.reward, self.always))
"""


def test_an_option_chooses_the_reward_that_is_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "paying_env.py").write_text(PAYING)
    monkeypatch.chdir(tmp_path)
    main(["check", "paying_env:Paying", "--option", "always=0.5", "--json"])
    check = json.loads(capsys.readouterr().out)["checks"][-1]
    earned = {row["probe"]: row["reward"] for row in check["probes"]}
    assert earned["answer at once"] == earned["expert, wrong answer"] == 0.5
    assert check["detail"].endswith("0.5 where the expert earns 1, and 0.5 with a wrong answer")
    assert main(["check", "paying_env:Paying", "--option", "alway=1"]) == 1
    assert "Did you mean 'always'?" in capsys.readouterr().err
    assert main(["check", "paying_env:Paying", "--option", "always=much"]) == 1
    assert "'always'" in capsys.readouterr().err
    assert main(["check", "agentenv/Calculator-v0", "--option", "env=1"]) == 1
    assert "'env'" in capsys.readouterr().err
    assert main(["check", "paying_env:Paying", "--option", "always"]) == 1
    assert "'always' must be KEY=VALUE" in capsys.readouterr().err


def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "agentenv/Calculater-v0"]) == 1
    assert "Did you mean 'agentenv/Calculator-v0'?" in capsys.readouterr().err
    assert main(["check", "no_such_module:Env"]) == 1
    assert "no_such_module" in capsys.readouterr().err


def test_list_names_every_kind_of_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (
        document["environments"]["agentenv/LocalSearch-v0"] == "agentenv.envs.search.local_search:LocalSearch"
    )
    assert {"retrievers", "policies", "datasets", "scorers", "estimators"} < set(document)
    assert "em_squad" in document["scorers"]
    assert main(["list"]) == 0
    assert "agentenv/Calculator-v0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import no_such_package_at_all", "no_such_package_at_all"),
        ("def broken(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("import json; json.nothing", "AttributeError"),
        ("raise OSError('no disk')", "no disk"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_sentence(
    text: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"importing_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["check", f"{name}:Env"]) == 1
    said = capsys.readouterr().err
    assert named in said
    assert len(said.splitlines()) == 1


MAKING = """
import sys
from agentenv.envs.calculator import Calculator

class Raising(Calculator):
    def __init__(self):
        raise KeyError("corpus.jsonl")

class Leaving(Calculator):
    def __init__(self):
        sys.exit(4)

class Closing(Calculator):
    def close(self):
        raise OSError("busy")

class LeavingLater(Calculator):
    async def areset(self, **given):
        raise SystemExit(5)
"""


@pytest.mark.parametrize(
    ("cls", "named"), [("Raising", "corpus.jsonl"), ("Leaving", "SystemExit"), ("Closing", "busy")]
)
def test_an_environment_that_cannot_be_made_or_closed_is_one_sentence(
    cls: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "making_env.py").write_text(MAKING)
    monkeypatch.chdir(tmp_path)
    assert main(["check", f"making_env:{cls}"]) == 1
    said = capsys.readouterr().err
    assert named in said
    assert len(said.splitlines()) == 1


def test_an_environment_that_leaves_the_process_fails_its_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "making_env.py").write_text(MAKING)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "making_env:LeavingLater", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["checks"]
    failed = [row for row in rows if row["status"] == "failed"]
    assert "SystemExit" in failed[0]["detail"]


def test_a_check_that_hangs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    class Stuck(Calculator):
        def render(self) -> str:
            gate.wait(20)
            return ""

    monkeypatch.setattr("agentenv.core.env_contract.CHECK_S", 0.3)
    result = run_check("render", Stuck)
    gate.set()
    assert result.status == "failed"
    assert result.detail.startswith("it took longer than 0.3 s, in test_check.py, line ")


NAMED = """
from agentenv.envs.calculator import Calculator

class Bank(Calculator):
    pass
"""


def test_what_a_user_named_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bank.py").write_text(NAMED)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "bank:Bank"]) == 0
    # ":Bank:" is the name of an emoji.
    assert capsys.readouterr().out.splitlines()[-1].startswith("bank:Bank: 0 of")


@pytest.mark.parametrize(("env", "hint"), [("bank2", "bank2:Class"), ("bank2:Bnak", "'bank2:Bank'")])
def test_a_module_of_this_folder_or_a_misspelt_class_is_told_how_to_be_named(
    env: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bank2.py").write_text(NAMED)
    monkeypatch.chdir(tmp_path)
    assert main(["check", env]) == 1
    assert hint in capsys.readouterr().err


def test_an_environment_without_render_is_told_to_write_it() -> None:
    class Unseen(Calculator):
        render = gymnasium.Env.render  # type: ignore[assignment]

    result = run_check("render", Unseen)
    assert (result.status, "render()" in result.detail) == ("failed", True)
