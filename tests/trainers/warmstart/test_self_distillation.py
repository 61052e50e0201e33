"""A start by the policy's own best episodes: which of them are kept, what is shown before, and the command."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.data.world_config import WorldConfig
from agentenv.errors import ConfigurationError
from agentenv.evaluation.task_env import EnvConfig
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop.parts import open_questions, trained_policy, with_declared_scorers
from agentenv.trainers.warmstart.self_distillation import (
    DistillationConfig,
    best_of,
    expert_shots,
    in_tiers,
    own_best,
)


def ended(reward: float) -> Trajectory:
    return Trajectory(Task("t", "Who?", ("A",)), (), (), reward, EndReason.ANSWERED)


def test_the_best_valid_episode_is_kept_where_it_earns_enough() -> None:
    played = [ended(0.5), ended(1.5), ended(1.5), replace(ended(9.0), valid=False)]
    assert best_of(played, 1.0) is played[1]
    assert best_of(played, 1.5) is played[1]
    assert best_of(played, 1.6) is None
    assert best_of([], 0.0) is None


def test_no_samples_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="samples=0"):
        DistillationConfig(samples=0)


def test_a_task_that_is_solved_too_rarely_gets_the_next_tier() -> None:
    """Tiers of 2, 4 and 5 episodes, thresholds .5 and .5.

    Task 0 solves one of its first two (.5), task 1 none of two and two of four (.5), task 2 one of four, task 3 loses its
    first two to faults (0 of none) and solves all others.
    """
    rewards = {0: "10000", 1: "00110", 2: "00101", 3: "xx111"}
    asked: list[tuple[list[int], range, int]] = []

    def play(places: Any, slots: range, tier: int) -> list[list[Trajectory]]:
        asked.append(([*places], slots, tier))
        return [
            [
                replace(ended(0.0), valid=False)
                if (sign := rewards[place][slot]) == "x"
                else ended(float(sign))
                for slot in slots
            ]
            for place in places
        ]

    settings = DistillationConfig(tiers=(2, 4, 5), thresholds=(0.5, 0.5))
    groups = in_tiers(4, settings, play)
    assert asked == [([0, 1, 2, 3], range(2), 0), ([1, 2, 3], range(2, 4), 1), ([2], range(4, 5), 2)]
    assert [len(group) for group in groups] == [2, 4, 5, 4]
    asked.clear()
    assert [len(group) for group in in_tiers(2, DistillationConfig(samples=3), play)] == [3, 3]
    assert asked == [([0, 1], range(3), 0)]


@pytest.mark.parametrize(
    ("tiers", "thresholds", "named"),
    [
        ((4, 2), (0.5,), "tiers"),
        ((2, 4), (), "thresholds"),
        ((), (0.5,), "thresholds"),
        ((2, 4), (1.5,), r"thresholds.*1\.5"),
        ((2, 4), (float("nan"),), "thresholds.*nan"),
    ],
)
def test_what_are_no_tiers_is_refused(
    tiers: tuple[int, ...], thresholds: tuple[float, ...], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        DistillationConfig(tiers=tiers, thresholds=thresholds)


@pytest.fixture
def run(small: Path) -> TrainConfig:
    return with_declared_scorers(load_config(str(small)))


def test_own_episodes_are_those_of_the_policy_and_hold_no_example(run: TrainConfig) -> None:
    """What is learned stands under the plain opening message; the examples before it are cut out token by token."""
    policy = trained_policy("tiny", run.lora, run.compute, seed=0)
    task_env = open_questions(run.train, run.search, run.env, policy)
    tasks = task_env.source.tasks
    settings = DistillationConfig(samples=2)
    kept = own_best(run, task_env, policy, tasks, "Look it up.", settings, SilentDisplay())
    assert 0 < len(kept) <= 6
    assert len({trajectory.task.id for trajectory in kept}) == len(kept)
    for trajectory in kept:
        assert trajectory.reward >= 1
        assert not any(segment.kind is SegmentKind.INJECTED for segment in trajectory.segments)
        text = policy.tokenizer.decode([i for segment in trajectory.segments for i in segment.ids])
        assert "Look it up" not in text


def test_examples_are_what_the_expert_does(run: TrainConfig) -> None:
    policy = trained_policy("tiny", run.lora, run.compute, seed=0)
    world = WorldConfig(documents=200, questions=6, hops=(2, 2), families=("bridge",), split="train")
    bridges = run.train.model_copy(update={"world": world})
    rewriting = open_questions(bridges, run.search, EnvConfig(id="agentenv/Rewrite-v0"), policy)
    shown = asyncio.run(expert_shots(rewriting, 30.0))
    assert shown.count("<rewrite>") >= 3
    assert shown.count("\nQ: ") >= 6
    searching = open_questions(run.train, run.search, run.env, policy)
    with pytest.raises(ConfigurationError, match="--shots"):
        asyncio.run(expert_shots(searching, 30.0))


def test_the_command_makes_a_policy_or_says_that_nothing_was_learned(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shots.txt").write_text("")
    words = [
        "warmstart",
        "--distil",
        str(small),
        "--shots",
        str(tmp_path / "shots.txt"),
        "--samples",
        "2",
    ]
    words += ["--steps", "1", "--trust-config", "--mask-redundant"]
    assert main([*words, "--out", str(tmp_path / "policy"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tasks"] == 6
    assert 0 < result["demonstrations"] <= 6
    assert "its own best episodes" in (tmp_path / "policy" / "README.md").read_text()
    tiers = ["--tiers", "1", "2", "3", "--thresholds", "1.0", "0.5", "--least", "0"]
    assert main([*words, *tiers, "--out", str(tmp_path / "tiers"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["demonstrations"] == 6
    assert main([*words, "--least", "3", "--out", str(tmp_path / "none")]) == 1
    assert "earns 3" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert main([*words, "--least", "nan", "--out", str(tmp_path / "none")]) == 1
    assert "--least" in capsys.readouterr().err
    assert main([*words, "--imitate", "laptop-search", "--out", str(tmp_path / "both")]) == 1
