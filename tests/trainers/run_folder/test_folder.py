"""Run folders: damaged checkpoints and logs, stray files, one run at a time, what checkpoints hold comes back."""

import errno
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentenv.errors import CheckpointMismatch, ConfigurationError
from agentenv.policies.card import EpisodeCard, read_card
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.run_folder.folder import RunFolder, _digests


class Counter:
    """A part of a run with a state."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state.get("count", 0)


class Player(SimpleNamespace):
    """A policy of which only weights and version matter."""

    version: int
    image_reader = None

    def resumed(self, version: int) -> None:
        self.version = version


@pytest.fixture
def made(tmp_path: Path, qwen: Callable[..., Any]) -> tuple[RunFolder, Any, Learner, Counter]:
    """A run of three steps, the last two of which have checkpoints; every weight is the number of its step."""
    folder = RunFolder.create(tmp_path / "run", TrainConfig())
    model, part = qwen(), Counter()
    policy = Player(model=model, version=0, tokenizer=SimpleNamespace(save_pretrained=lambda path: None))
    learner = Learner(model, Objective(), learning_rate=1e-3)
    for step in (1, 2, 3):
        part.count, policy.version = 10 * step, step
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(step)
        folder.log({"step": step}, {})
        folder.save_checkpoint(step, policy, learner, {"part": part})  # type: ignore[arg-type]
    return folder, policy, learner, part


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[-100] ^= 1
    path.write_bytes(whole)


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt", "sha256.json", "config.json"])
@pytest.mark.parametrize("damage", [cut_short, flip_a_bit, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over_and_named(
    made: tuple[RunFolder, Any, Learner, Counter], name: str, damage: Callable[[Path], None]
) -> None:
    folder, policy, learner, part = made
    damage(folder.path / "checkpoints" / "step-000003" / name)
    said: list[str] = []
    assert folder.resume(policy, learner, {"part": part}, said.append) == 2
    assert len(said) == 1
    assert "step-000003" in said[0]
    assert (part.count, policy.version) == (20, 2)
    assert all(bool((weight == 2).all()) for weight in policy.model.parameters())
    assert [line["step"] for line in folder.history()] == [1, 2]


def test_where_all_are_damaged_nothing_is_begun_anew(
    made: tuple[RunFolder, Any, Learner, Counter],
) -> None:
    folder, policy, learner, part = made
    for checkpoint in (folder.path / "checkpoints").iterdir():
        cut_short(checkpoint / "model.safetensors")
    with pytest.raises(CheckpointMismatch, match="checkpoints"):
        folder.resume(policy, learner, {"part": part})
    assert len(folder.history()) == 3


def test_intact_checkpoints_come_back_and_no_more_than_two_stay(
    made: tuple[RunFolder, Any, Learner, Counter],
) -> None:
    folder, policy, learner, part = made
    part.count = 0
    said: list[str] = []
    assert folder.resume(policy, learner, {"part": part}, said.append) == 3
    assert (part.count, said) == (30, [])
    assert {path.name for path in (folder.path / "checkpoints").iterdir()} == {"step-000002", "step-000003"}


def test_as_many_checkpoints_stay_as_are_asked_for(made: tuple[RunFolder, Any, Learner, Counter]) -> None:
    folder, policy, learner, part = made
    for kept, steps in ((3, (2, 3, 4)), (1, (4,))):
        folder.config = TrainConfig(checkpoints_kept=kept)
        folder.save_checkpoint(4, policy, learner, {"part": part})
        names = sorted(path.name for path in (folder.path / "checkpoints").iterdir())
        assert names == [f"step-00000{step}" for step in steps]


def test_the_best_policy_of_a_step_that_is_made_again_goes_and_the_one_before_it_comes_back(
    made: tuple[RunFolder, Any, Learner, Counter],
) -> None:
    """The best of step 2 stays until a checkpoint is as old as the next best, so that neither can be lost."""
    folder, policy, learner, part = made
    best, card = folder.path / "best", EpisodeCard()
    folder.keep_best(2, policy, card)
    folder.keep_best(4, policy, card)
    assert {path.name for path in best.iterdir()} == {"step-000002", "step-000004"}
    assert RunFolder.open(folder.path).resume(policy, learner, {"part": part}) == 3
    assert {path.name for path in best.iterdir()} == {"step-000002"}
    folder.keep_best(4, policy, card)
    folder.save_checkpoint(4, policy, learner, {"part": part})
    assert {path.name for path in best.iterdir()} == {"step-000004"}
    assert read_card(best / "step-000004") == card
    assert (best / "step-000004" / "model.safetensors").is_file()


def test_versions_of_steps_that_are_made_again_go(made: tuple[RunFolder, Any, Learner, Counter]) -> None:
    folder, policy, learner, part = made
    for step in (2, 3):
        folder.keep_version(step, policy)
    cut_short(folder.path / "checkpoints" / "step-000003" / "trainer.pt")
    assert folder.resume(policy, learner, {"part": part}) == 2
    assert [path.name for path in folder.versions()] == ["step-000002"]
    assert {path.name for path in (folder.path / "league").iterdir()} == {"step-000002"}


def test_one_run_at_a_time(made: tuple[RunFolder, Any, Learner, Counter]) -> None:
    folder, *_ = made
    with (
        folder.lock(),
        pytest.raises(ConfigurationError, match="run"),
        folder.lock(),
    ):
        pass
    with folder.lock():
        pass  # given back


LOGS = ("metrics.jsonl", "timings.jsonl")


def break_a_line(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "{broken\n" + "".join(lines[2:]))


def leave_out_a_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def write_nonsense(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00[1]\n17\nnull\n" + b"[" * 100_000 + b"\n")


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(
    "damage",
    [break_a_line, leave_out_a_line, write_nonsense, cut_short, Path.unlink, lambda p: p.write_text("")],
)
def test_a_damaged_log_comes_back_from_the_checkpoint(
    made: tuple[RunFolder, Any, Learner, Counter], name: str, damage: Callable[[Path], Any]
) -> None:
    folder, policy, learner, part = made
    whole = (folder.path / name).read_bytes()
    damage(folder.path / name)
    said: list[str] = []
    again = RunFolder.open(folder.path)
    assert again.resume(policy, learner, {"part": part}, said.append) == 3
    assert (folder.path / name).read_bytes() == whole
    assert [line["step"] for line in again.history()] == [1, 2, 3]
    assert len(said) == 1
    assert name in said[0]


def test_a_damaged_log_without_a_copy_keeps_what_is_readable(
    made: tuple[RunFolder, Any, Learner, Counter],
) -> None:
    """Checkpoints of earlier versions have no copies of the logs."""
    folder, policy, learner, part = made
    for checkpoint in (folder.path / "checkpoints").iterdir():
        for name in LOGS:
            (checkpoint / name).unlink()
        (checkpoint / "sha256.json").write_text(json.dumps(_digests(checkpoint)))
    break_a_line(folder.path / "metrics.jsonl")
    said: list[str] = []
    again = RunFolder.open(folder.path)
    assert again.resume(policy, learner, {"part": part}, said.append) == 3
    assert [line["step"] for line in again.history()] == [1, 3]
    assert len(said) == 1


def test_stray_files_are_left_alone(made: tuple[RunFolder, Any, Learner, Counter]) -> None:
    folder, policy, learner, part = made
    strays = [
        folder.path / room / name
        for room in ("checkpoints", "trajectories", "league")
        for name in ("step-note.txt", "step-", "step-000001x", "step-000009.bak", "notes")
    ]
    strays.append(folder.path / "checkpoints" / "step-000007")  # a file under the name of a checkpoint
    for path in strays:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    again = RunFolder.open(folder.path)
    assert again.resume(policy, learner, {"part": part}) == 3
    again.save_checkpoint(4, policy, learner, {"part": part})
    assert {path.read_text() for path in strays} == {"mine"}


@pytest.mark.parametrize("name", ["checkpoints", "trajectories", "league", "evaluation"])
def test_a_file_where_a_folder_belongs_is_named(tmp_path: Path, name: str) -> None:
    folder = RunFolder.create(tmp_path / "run", TrainConfig())
    (folder.path / name).write_text("no folder")
    with pytest.raises(ConfigurationError, match=name):
        folder.compare_config(lambda said: None)


def test_a_folder_where_a_log_belongs_is_named(made: tuple[RunFolder, Any, Learner, Counter]) -> None:
    folder, policy, learner, part = made
    (folder.path / "metrics.jsonl").unlink()
    (folder.path / "metrics.jsonl").mkdir()
    with pytest.raises(ConfigurationError, match=r"metrics\.jsonl"):
        RunFolder.open(folder.path).resume(policy, learner, {"part": part})


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(
    made: tuple[RunFolder, Any, Learner, Counter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Safetensors says in words of its own that the disk is full."""
    folder, policy, learner, part = made

    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("agentenv.trainers.run_folder.folder.write_trained", full)
    with pytest.raises(OSError, match="No space left"):
        folder.save_checkpoint(4, policy, learner, {"part": part})
    assert {path.name for path in (folder.path / "checkpoints").iterdir()} == {"step-000002", "step-000003"}
    assert RunFolder.open(folder.path).resume(policy, learner, {"part": part}) == 3


def test_a_checkpoint_that_was_being_replaced_when_the_process_died_comes_back(
    made: tuple[RunFolder, Any, Learner, Counter],
) -> None:
    folder, policy, learner, part = made
    last = folder.path / "checkpoints" / "step-000003"
    last.rename(last.with_name("step-000003.old"))
    assert RunFolder.open(folder.path).resume(policy, learner, {"part": part}) == 3


def test_a_checkpoint_that_was_being_dropped_when_the_process_died_stays_away(
    made: tuple[RunFolder, Any, Learner, Counter], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, policy, learner, part = made
    folder.config = TrainConfig(checkpoints_kept=1)

    def dies(path: Path) -> None:
        next(path.iterdir()).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", dies)
    with pytest.raises(KeyboardInterrupt):
        folder.save_checkpoint(4, policy, learner, {"part": part})
    monkeypatch.undo()
    again = RunFolder.open(folder.path)
    again.config = TrainConfig(checkpoints_kept=1)
    assert again.resume(policy, learner, {"part": part}) == 4
    left = {path.name for path in (folder.path / "checkpoints").iterdir()}
    assert left == {"step-000004"}


def test_an_intact_checkpoint_stays_where_a_later_one_is_damaged(
    made: tuple[RunFolder, Any, Learner, Counter],
) -> None:
    folder, policy, learner, part = made
    (folder.path / "checkpoints" / "step-000003" / "trainer.pt").write_bytes(b"")
    again = RunFolder.open(folder.path)
    again.config = TrainConfig(checkpoints_kept=1)
    assert again.resume(policy, learner, {"part": part}) == 2
    assert (folder.path / "checkpoints" / "step-000002").is_dir()


def test_a_run_that_cannot_be_begun_leaves_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration is there under its name when its folder cannot be brought to the disk."""

    def broken(path: Path) -> None:
        if path.name == "run":
            raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr("agentenv.core.io.files.sync", broken)
    with pytest.raises(OSError, match="Input/output"):
        RunFolder.create(tmp_path / "run", TrainConfig())
    assert [*tmp_path.iterdir()] == []


def test_the_folder_of_an_evaluation_is_not_proposed_to_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[benchmark]\ndataset = "hotpotqa"\n')
    with pytest.raises(ConfigurationError, match="evaluation") as refused:
        RunFolder.create(tmp_path, TrainConfig())
    assert "--resume" not in str(refused.value)


def test_whoever_loses_a_folder_leaves_the_files_of_whoever_has_it(tmp_path: Path) -> None:
    """Both have looked before either of them wrote."""
    path = tmp_path / "run"
    first = RunFolder.create(path, TrainConfig(name="first"))
    with first.lock():
        before = (path / "config.toml").read_bytes()
        (path / "config.toml").unlink()  # as the second one saw it
        with pytest.raises(ConfigurationError, match="run"):
            RunFolder.create(path, TrainConfig(name="second"))
        assert not (path / "config.toml").exists()
        (path / "config.toml").write_bytes(before)
        with pytest.raises(ConfigurationError, match=re.escape(str(path))):
            RunFolder.create(path, TrainConfig(name="second"))
    assert (path / "config.toml").read_bytes() == before


@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "timings.jsonl",
        "questions.jsonl",
        "changes.jsonl",
        "results.json",
        "report.html",
        "checkpoints",
        "evaluation",
        "identity.json",
    ],
)
def test_nothing_is_begun_on_what_another_run_has_left_or_somebody_else_owns(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / name).touch()
    with pytest.raises(ConfigurationError, match=name):
        RunFolder.create(path, TrainConfig())
    assert [one.name for one in path.iterdir()] == [name]


@pytest.mark.parametrize("there", [False, True])
def test_a_run_that_did_not_begin_removes_its_own_log_alone(there: bool, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    if there:  # as where a shell writes the output of the command into it
        log.write_text("mine\n", encoding="utf-8")
    folder = RunFolder.create(tmp_path, TrainConfig())
    log.open("a").close()
    folder.discard_unless_begun()
    assert ([one.name for one in tmp_path.iterdir()] if tmp_path.exists() else []) == ["run.log"] * there


def test_a_checkpoint_in_several_files_is_resumed_and_checked(
    made: tuple[RunFolder, Any, Learner, Counter],
) -> None:
    """Weights above 20 KB are cut here, of about 60."""
    folder, policy, learner, part = made
    folder.config = TrainConfig(checkpoint_shard_gib=20_000 / 2**30)
    policy.version = 4
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.fill_(4)
    folder.log({"step": 4}, {})
    folder.save_checkpoint(4, policy, learner, {"part": part})
    shards = sorted((folder.path / "checkpoints" / "step-000004").glob("*.safetensors"))
    assert len(shards) > 2
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.zero_()
    assert folder.resume(policy, learner, {"part": part}) == 4
    assert all(bool((weight == 4).all()) for weight in policy.model.parameters())
    cut_short(shards[1])
    assert RunFolder.open(folder.path).resume(policy, learner, {"part": part}) == 3


@pytest.mark.parametrize("again", [False, True], ids=["removed", "replaced"])
def test_a_run_whose_folder_was_removed_writes_nothing_more(
    made: tuple[RunFolder, Any, Learner, Counter], again: bool
) -> None:
    """Its lock is on a folder that has no name any more, and another run may have begun under the name."""
    folder, policy, learner, part = made
    with folder.lock():
        folder.log({"step": 4}, {})
        shutil.rmtree(folder.path)
        other = RunFolder.create(folder.path, TrainConfig(name="other")) if again else None
        writes: list[Callable[[], None]] = [
            lambda: folder.log({"step": 5}, {}),
            lambda: folder.dump(5, []),
            lambda: folder.keep_best(5, policy, EpisodeCard()),
            lambda: folder.save_checkpoint(5, policy, learner, {"part": part}),
        ]
        for write in writes:
            with pytest.raises(FileNotFoundError, match="removed"):
                write()
        folder.discard_unless_begun()
    there = [path.name for path in folder.path.iterdir()] if folder.path.exists() else None
    assert there == (["config.toml"] if other else None)
