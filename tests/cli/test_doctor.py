"""``agentenv doctor``: its findings, extras, broken programs, and foreign packages named agentenv."""

import importlib.metadata
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentenv.cli import doctor
from agentenv.cli.main import main


def test_the_document_answers_every_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    asked = {
        "python",
        "cores",
        "memory",
        "disk",
        "torch",
        "faiss",
        "minilm",
        "docker",
        "bubblewrap",
        "import name",
    }
    assert asked <= set(document["findings"])
    assert document["findings"]["python"]["ok"] is True


def test_people_see_one_line_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    result = {
        "findings": {"docker": {"ok": False, "value": "[Errno 2] gone", "hint": "check docker"}},
        "extras": {"train": {"torch": "2.13.0", "peft": None}},
    }
    from rich.console import Console

    doctor.Doctor().show(result, Console())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["no", "docker", "[Errno", "2]", "gone", "(check", "docker)"]
    assert lines[1].endswith("missing peft")


def test_a_second_package_on_the_path_is_foreign(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "agentenv").mkdir()
    (tmp_path / "one" / "agentenv" / "__init__.py").touch()
    (tmp_path / "two" / "agentenv.py").touch()
    ours = Path(doctor.__file__).parents[2]
    path = [str(ours), *(str(tmp_path / name) for name in ("one", "two", "three", "one"))]
    assert doctor.other_installations(path) == [
        str(tmp_path / "one" / "agentenv"),
        str(tmp_path / "two" / "agentenv.py"),
    ]


def test_another_distribution_of_the_name_is_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {"agentenv": ["agentenv-suite", "agentgym"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: owners)
    found = doctor.other_installations([])
    assert found == ["distribution agentgym None"]
    assert not doctor.installation_finding(found).ok


def test_our_own_copy_is_not_foreign() -> None:
    ours = Path(doctor.__file__).parents[2]
    assert doctor.other_installations([str(ours)]) == []
    assert doctor.installation_finding([]).ok


def test_the_container_limit_counts_where_it_is_lower(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    assert doctor.memory_bytes(limit) == 1048576
    limit.write_text("max\n")
    assert doctor.memory_bytes(limit) == doctor.memory_bytes(tmp_path / "absent") > 1048576


@pytest.mark.parametrize(
    ("command", "ok", "value"),
    [
        (["sh", "-c", "echo 1.2; echo more"], True, "1.2"),
        (["sh", "-c", "echo broken >&2; exit 3"], False, "broken"),
        (["sh", "-c", "exit 3"], False, "exit code 3"),
    ],
)
def test_a_program_is_asked_and_not_only_looked_for(command: list[str], ok: bool, value: str) -> None:
    found = doctor.program_finding("sh", command)
    assert (found.ok, found.value) == (ok, value)


def test_a_program_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.2)
    assert not doctor.program_finding("sleep", ["sleep", "5"]).ok


def test_an_absent_program_and_an_absent_module_are_said() -> None:
    assert doctor.program_finding("no-such-program", ["no-such-program"]).value == "not installed"
    assert doctor.module_finding("no_such_module", "train").hint == "pip install 'agentenv-suite[train]'"


def test_a_module_that_does_not_import_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_without_a_library.py").write_text("raise OSError('libgomp is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        doctor.module_finding("module_without_a_library", "train").value
        == "does not import: libgomp is missing"
    )


def test_cards_are_listed_with_memory_driver_kernels_and_what_auto_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="needs the train extra")
    pytest.importorskip("transformers", reason="needs the train extra")
    from agentenv.policies import compute

    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 570.86.15\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    card = SimpleNamespace(name="NVIDIA H200", total_memory=140 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: card)
    monkeypatch.setattr(compute, "_usable", lambda name: torch.device("cuda"))
    monkeypatch.setattr(compute, "is_installed", lambda name: name == "flash_attention_2")
    found = {name: finding.value for name, finding in doctor.gpu_findings().items()}
    assert found == {
        "gpu": "cuda:0 NVIDIA H200, 140 GiB, capability 9.0; driver 570.86.15; bfloat16 yes",
        "attention": "flash_attention_2, flex, sdpa, eager",
        "compute auto": "device cuda, dtype bfloat16, attention flash_attention_2",
    }
