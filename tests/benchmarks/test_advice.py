"""Retries with and without advice: the same failures, the same seeds, and sums over them."""

import asyncio
import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.trainers.config.config_files import config_of
from agentenv.trainers.strategies.step_verifiers import EvidenceVerifier
from agentenv.trainers.warmstart.expert_pool import open_expert_run

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("advice")


def test_the_three_arms_retry_the_same_failures(script: Any) -> None:
    world = {"documents": 200, "questions": 5, "families": ["bridge"], "hops": [2, 3]}
    config = script.of_unseen_world(config_of({"base": "lab-advice", "test": {"world": world}}, "a run"), 5)
    task_env, context = open_expert_run(config, "advice")
    assert [task.split for task in task_env.source.tasks] == ["test"] * 5
    found = asyncio.run(script.retry_failures(task_env, context, EvidenceVerifier(), 2))
    assert len(found) == 5
    failed = [one for one in found if one.rewards is not None]
    assert failed  # the shipped policy answers hardly any such question
    for one in failed:
        assert not one.right
        assert not one.named
        assert {arm: len(rewards) for arm, rewards in one.rewards.items()} == dict.fromkeys(script.ARMS, 2)
    again = asyncio.run(script.retry_failures(task_env, context, EvidenceVerifier(), 2))
    assert [one.rewards for one in again] == [one.rewards for one in found]


def test_another_world_has_another_seed_and_is_else_the_same(script: Any) -> None:
    config = config_of({"base": "lab-advice"}, "a run")
    same, other = (
        script.of_unseen_world(config, 5).train.world,
        script.of_unseen_world(config, 5, 9).train.world,
    )
    assert same == replace(config.test.world, questions=5)
    assert other == replace(same, seed=9)


def test_sums_are_over_failures_and_differences_are_paired(script: Any) -> None:
    def failure(cause: str, advised: list[bool], plain: list[bool]) -> Any:
        rewards = dict(zip(script.ARMS, (advised, plain, [False, False]), strict=True))
        return script.Retried(False, cause, False, rewards, {arm: [True, False] for arm in script.ARMS})

    found = [
        script.Retried(True),
        failure("a", [True, True], [True, False]),
        failure("a", [True, False], [False, False]),
        failure("b", [False, False], [False, True]),
    ]
    figures = script.summed(found)
    assert figures["base"]["mean"] == 0.25
    assert figures["failures"] == 3
    advised, plain, other = script.ARMS
    assert figures["retries"][advised]["mean"] == pytest.approx(0.5)  # (1 + .5 + 0) / 3
    assert figures["retries"][plain]["mean"] == pytest.approx(1 / 3)  # (.5 + 0 + .5) / 3
    assert figures["difference"][plain]["mean"] == pytest.approx(1 / 6)  # (.5 + .5 - .5) / 3
    assert figures["difference"][other]["mean"] == pytest.approx(0.5)
    assert figures["repeats_the_wrong_action"][plain] == pytest.approx(0.5)
    assert figures["by_cause"]["a"] == {"failures": 2, advised: 0.75, plain: 0.25, other: 0.0}
