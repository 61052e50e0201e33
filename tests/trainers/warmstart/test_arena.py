"""The arena of DRIVE: which tasks are kept and which are hard, by a written policy; epochs; and a policy that comes out."""

import json
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.errors import ConfigurationError
from agentenv.policies.card import read_card
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import config_of
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.warmstart.arena import ArenaConfig, arena, arena_warmstart, folds_of
from agentenv.trainers.warmstart.learning import LearningSettings

SMALL = """\
base = "laptop-search"
name = "small"
threads = 1
[train]
limit = 12
[train.world]
documents = 200
questions = 12
families = ["lookup"]
[search]
encoder = "hash"
[rollout]
questions = 4
"""


def test_folds_are_a_shuffle_of_nearly_equal_parts() -> None:
    folds = folds_of(list(range(11)), 3, Random(0))
    assert [len(fold) for fold in folds] == [3, 4, 4]
    assert sorted(item for fold in folds for item in fold) == list(range(11))
    assert folds == folds_of(list(range(11)), 3, Random(0))
    assert folds != folds_of(list(range(11)), 3, Random(1))


def test_of_later_folds_the_failures_are_kept_and_what_stays_failed_is_hard() -> None:
    """The policy solves what is at most as difficult as the most difficult that it has learned, less one.

    It learns 1, 2 (solves up to 1), keeps 3 of (1, 3) and learns it (up to 2), and keeps nothing of (2, 1). Of 1, 2 and 3 it
    then fails 3.
    """
    learned: list[list[int]] = []

    def failed(some: Any) -> list[int]:
        level = max(max(part) for part in learned) - 1
        return [one for one in some if one > level]

    kept, hard = arena([[1, 2], [1, 3], [2, 1]], lambda some: learned.append([*some]), failed)
    assert learned == [[1, 2], [3]]
    assert kept == [1, 2, 3]
    assert hard == [3]


@pytest.mark.parametrize("changes", [{"folds": 1}, {"learning": LearningSettings(steps=3)}], ids=str)
def test_an_arena_has_folds_and_epochs(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"folds.*epochs"):
        ArenaConfig(**changes)


def small_run() -> TrainConfig:
    return config_of(tomllib.loads(SMALL), "test")


def test_more_folds_than_episodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="99"):
        arena_warmstart(small_run(), ArenaConfig(folds=99), SilentDisplay(), tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_the_command_makes_a_policy_from_what_it_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    words = ["warmstart", "--imitate", str(tmp_path / "small.toml"), "--arena", "3", "--trust-config"]
    assert main([*words, "--epochs", "1", "--out", str(tmp_path / "policy"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    # It solves some of them.
    assert result["demonstrations"] // 3 <= result["kept"] < result["demonstrations"]
    assert result["hard"] <= result["kept"]
    assert result["tokens"] > 0
    assert read_card(tmp_path / "policy").env == "agentenv/LocalSearch-v0"
    assert "--arena 3" in (tmp_path / "policy" / "README.md").read_text()
    refused = (
        [*words, "--steps", "3"],
        ["warmstart", "--imitate", "laptop-search", "lab-search", "--arena", "3"],
        ["warmstart", "--arena", "3"],
    )
    for wrong in refused:
        assert main([*wrong, "--out", str(tmp_path / "no")]) == 1
        assert "--arena" in capsys.readouterr().err
