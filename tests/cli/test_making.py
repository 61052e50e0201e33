"""Commands that make one file or folder: of two that make the same at once, the second is refused before it works."""

from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.cli.making import making
from agentenv.core.io.claims import claim
from agentenv.errors import ConfigurationError

pytest.importorskip("torch", reason="the extra train is not installed")


@pytest.mark.parametrize(
    "words", [["warmstart", "--env", "questions", "--from-shipped"], ["value", "no-run"]]
)
def test_what_another_process_makes_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, log = tmp_path / "out", tmp_path / "out.log"
    log.touch()
    with claim(log, "taken"):  # as the first of two commands holds it
        assert main([*words, "--out", str(out)]) == 1
    told = capsys.readouterr().err
    assert f"another process makes {out}" in told.splitlines()[-1]
    assert not out.exists()


def test_a_mistake_leaves_no_log_behind_but_what_was_finished_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["value", str(tmp_path / "no-run"), "--out", str(out)]) == 1
    assert f"no folder {tmp_path / 'no-run'}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

    def find_nothing() -> None:
        with making("test", out):
            (tmp_path / "out.searched.jsonl").touch()
            raise ConfigurationError("nothing more can be found")

    with pytest.raises(ConfigurationError, match="nothing more"):
        find_nothing()
    assert (tmp_path / "out.log").is_file()


def test_a_setting_of_a_search_is_refused_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "value.safetensors"
    assert main(["value", str(tmp_path), "--out", str(out), "--samples", "9"]) == 1
    assert "--samples has no effect without --search" in capsys.readouterr().err
    assert not out.exists()
