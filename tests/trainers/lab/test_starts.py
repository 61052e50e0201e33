"""The starts of the laboratory: made once, again where something that decides them has changed, and named where missing."""

import fcntl
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.core.concurrency.signals import Interrupted
from agentenv.errors import ConfigurationError
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.lab.lab import experiments, load_experiment
from agentenv.trainers.lab.starts import STARTS, commands_of, digest_of, is_made, make_start

ROOT = Path(__file__).parents[3]


def write(words: Sequence[str]) -> int:
    """Stands in for a command: makes the folder that it would write."""
    Path(words[-1]).mkdir()
    return 0


def test_a_start_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tiny-advice"
    assert not is_made("tiny-advice", folder)
    make_start("tiny-advice", folder, write)
    assert is_made("tiny-advice", folder)
    monkeypatch.setitem(STARTS, "tiny-advice", ("warmstart --from-shipped --advice-steps 7",))
    assert not is_made("tiny-advice", folder)
    make_start("tiny-advice", folder, write)  # in the place of the older one
    assert is_made("tiny-advice", folder)


def test_a_start_of_other_source_is_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_start("tiny-advice", tmp_path / "tiny-advice", write)
    words = ["lab", "starts", "tiny-advice", "--out", str(tmp_path)]
    assert main(words) == 0
    assert capsys.readouterr().out.strip().endswith("tiny-advice: is there")
    monkeypatch.setattr("agentenv.trainers.lab.starts.source_digest", lambda: "other")
    assert main(words) == 0
    assert "other source" in capsys.readouterr().out


def test_the_runs_that_are_imitated_decide_what_a_start_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of("tiny-chains")
    changed = {"threads": 7}
    monkeypatch.setattr(
        "agentenv.trainers.lab.starts.load_config",
        lambda name: load_config(name).model_copy(update=changed),
    )
    assert digest_of("tiny-chains") != before


def test_what_a_start_without_a_run_begins_with_decides_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    advice, steps, simulator = map(digest_of, ("tiny-advice", "tiny-steps", "simulator"))
    monkeypatch.setattr("agentenv.trainers.lab.starts.policy_digest", lambda spec: f"another {spec}")
    assert digest_of("tiny-advice") != advice
    assert digest_of("simulator") != simulator  # it fine-tunes the shipped policy
    assert digest_of("tiny-steps") == steps  # it begins with nothing
    monkeypatch.setattr("agentenv.trainers.lab.starts.versions", lambda: {"version of torch": "0"})
    assert digest_of("tiny-steps") != steps


def test_what_is_no_start_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tiny-advice").mkdir()
    assert main(["lab", "starts", "tiny-advice", "--out", str(tmp_path)]) == 1
    assert "move it away" in capsys.readouterr().err
    assert [*tmp_path.rglob("*")] == [tmp_path / "tiny-advice"]


def test_a_command_that_fails_leaves_no_start(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-advice"
    with pytest.raises(ConfigurationError, match="warmstart --from-shipped"):
        make_start("tiny-advice", folder, lambda words: 1)
    assert not is_made("tiny-advice", folder)
    assert not [*tmp_path.iterdir()]


def once(words: Sequence[str]) -> int:
    """Stands in for the commands of the simulator: the first refuses to write over a file, the second fails once."""
    out = Path(words[-1])
    if words[1] == "data":
        if out.exists():
            return 1
        out.write_text("lessons")
        return 0
    return write(words) if (out.parent.parent / "again").exists() else 1


def test_a_start_that_was_interrupted_is_made_again_and_the_older_one_stays_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its two commands, and by a failure or by the end of the process, which leaves its files."""
    folder = tmp_path / "simulator"
    make_start("simulator", folder, lambda words: write(words) if words[1] == "train" else 0)
    (folder / "weights").write_text("older")
    monkeypatch.setattr("agentenv.trainers.lab.starts.versions", lambda: {"version of torch": "0"})
    assert not is_made("simulator", folder)
    with pytest.raises(ConfigurationError, match="simulator train"):
        make_start("simulator", folder, once)
    assert (folder / "weights").read_text() == "older"
    (tmp_path / "simulator.making").mkdir()
    (tmp_path / "simulator.making" / "simulator.jsonl").write_text("of a process that was killed")
    (tmp_path / "again").touch()
    make_start("simulator", folder, once)
    assert is_made("simulator", folder)
    assert not (folder / "weights").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "simulator"]


def test_the_processor_time_of_programs_in_other_processes_counts(tmp_path: Path) -> None:
    """A child that computes for four seconds of processor time, which are rounded to .1 minutes."""

    def run(words: Sequence[str]) -> int:
        work = "import time\nwhile time.process_time() < 4: pass"
        subprocess.run([sys.executable, "-c", work], check=True, timeout=300)
        return write(words)

    make_start("tiny-advice", tmp_path / "tiny-advice", run)
    assert json.loads((tmp_path / "tiny-advice" / "start.json").read_text())["core_minutes"] >= 0.1


def test_two_processes_do_not_make_one_start(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-advice"

    def meanwhile(words: Sequence[str]) -> int:
        with pytest.raises(ConfigurationError, match="another process"):
            make_start("tiny-advice", folder, write)
        return write(words)

    make_start("tiny-advice", folder, meanwhile)
    assert is_made("tiny-advice", folder)


@pytest.mark.parametrize("text", ["{}", '{"digest": ', "[]"])
def test_a_damaged_record_is_one_sentence(tmp_path: Path, text: str) -> None:
    make_start("tiny-advice", tmp_path / "tiny-advice", write)
    (tmp_path / "tiny-advice" / "start.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"start\.json"):
        is_made("tiny-advice", tmp_path / "tiny-advice")


def test_the_folder_belongs_to_the_last_command() -> None:
    data, train = commands_of("simulator", Path("runs/simulator"))
    assert data[-2:] == ["--out", "runs/simulator.jsonl"]
    assert train[2] == "runs/simulator.jsonl"
    assert train[-2:] == ["--out", "runs/simulator"]


def test_a_folder_whose_name_has_spaces_is_one_word() -> None:
    data, train = commands_of("simulator", Path("my runs/simulator"))
    assert data[-2:] == ["--out", "my runs/simulator.jsonl"]
    assert train[2] == "my runs/simulator.jsonl"


def test_a_start_that_a_signal_ends_is_interrupted_and_not_broken(tmp_path: Path) -> None:
    with pytest.raises(Interrupted) as caught:
        make_start("tiny-advice", tmp_path / "tiny-advice", lambda words: 128 + signal.SIGTERM)
    assert caught.value.signal == signal.SIGTERM
    assert not [*tmp_path.iterdir()]


def test_a_lock_on_a_folder_that_its_owner_has_just_removed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner ends between the moment in which its folder is opened here and that in which it is locked."""
    flock = fcntl.flock

    def meanwhile(place: int, operation: int) -> None:
        (tmp_path / "tiny-advice.making").rmdir()
        flock(place, operation)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    with pytest.raises(ConfigurationError, match="another process"):
        make_start("tiny-advice", tmp_path / "tiny-advice", write)


def test_an_unknown_start_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "starts", "tiny-advise"]) == 1
    assert "tiny-advice" in capsys.readouterr().err


def test_an_experiment_without_its_start_says_how_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "run", "r3l"]) == 1
    assert "agentenv lab starts tiny-advice" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", sorted(experiments()))
def test_every_start_of_an_experiment_has_its_command(name: str) -> None:
    experiment = load_experiment(name)
    policies = {experiment.run_of(arm, 0).policy for arm in experiment.arms}
    made = {f"hf:runs/{start}" for start in STARTS}
    assert policies <= made | {"tiny"}
    for start in (policy.removeprefix("hf:runs/") for policy in policies - {"tiny"}):
        assert STARTS[start][-1].removeprefix("warmstart") in f" {experiment.setup} "  # as its page says it
