"""Run folders: a damaged checkpoint is passed over and named, one run at a time, what checkpoints hold comes back."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentenv.errors import CheckpointMismatch, ConfigurationError
from agentenv.trainers.config import TrainConfig
from agentenv.trainers.folder import RunFolder
from agentenv.trainers.learner import Learner, Objective


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
    assert "step-000003 is damaged; the run goes on from the checkpoint before it" in said[0]
    assert (part.count, policy.version) == (20, 2)
    assert all(bool((weight == 2).all()) for weight in policy.model.parameters())
    assert [line["step"] for line in folder.history()] == [1, 2]


def test_where_all_are_damaged_nothing_is_begun_anew(
    made: tuple[RunFolder, Any, Learner, Counter],
) -> None:
    folder, policy, learner, part = made
    for checkpoint in (folder.path / "checkpoints").iterdir():
        cut_short(checkpoint / "model.safetensors")
    with pytest.raises(CheckpointMismatch, match=r"every checkpoint in .* is damaged: delete that folder"):
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
        folder.claimed(),
        pytest.raises(ConfigurationError, match="another process trains in"),
        folder.claimed(),
    ):
        pass
    with folder.claimed():
        pass  # given back
