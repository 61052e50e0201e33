"""Example configurations and suites are found by the names of the repository, wherever a command runs."""

from pathlib import Path

import pytest

from agentenv.core.io import shipped_files
from agentenv.core.io.shipped_files import shipped_file
from agentenv.errors import UnknownName
from agentenv.trainers.config.config_files import load_config

ROOT = Path(__file__).resolve().parents[3]


def test_an_example_is_found_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config("examples/search-r1.toml") == load_config(ROOT / "examples" / "search-r1.toml")
    suite = shipped_file(Path("benchmarks/suites/real.toml"))
    assert suite.read_bytes() == (ROOT / "benchmarks" / "suites" / "real.toml").read_bytes()


def test_a_file_of_the_working_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path("examples/search-r1.toml")
    own.parent.mkdir()
    own.write_text("name = 'own'\n", encoding="utf-8")
    assert shipped_file(own) == own


def test_an_installed_file_comes_before_one_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "share" / "examples" / "search-r1.toml"
    installed.parent.mkdir(parents=True)
    installed.touch()
    monkeypatch.setattr(shipped_files, "_ROOTS", (tmp_path / "share", ROOT))
    monkeypatch.chdir(tmp_path)
    assert shipped_file(Path("examples/search-r1.toml")) == installed


@pytest.mark.parametrize(
    "name", ["examples/../pyproject.toml", "pyproject.toml", "examples/none.toml", "docs/lab.md"]
)
def test_no_other_file_of_the_installation_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped_file(Path(name)) == Path(name)
    with pytest.raises(UnknownName, match=name):
        load_config(name)
