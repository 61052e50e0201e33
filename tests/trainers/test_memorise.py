"""Learning by heart: what is imitated, and that a small model then answers by self-search what it could not before."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import RolloutConfig, Start, rollout
from agentenv.core.types import Task
from agentenv.envs.self_search import SelfSearch, format_reward
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import random_policy
from agentenv.policies.hf import HFPolicy
from agentenv.policies.spec import make_policy
from agentenv.trainers.memorise import memorise, to_lesson

TASKS = [
    Task(
        place,
        f"Where is {place}?",
        (land,),
        "train",
        {"path": ({"query": f"{place} land", "answer": land, "entity": place, "relation": "land"},)},
    )
    for place, land in (("Halvik", "Norland"), ("Ketterby", "Rome"))
]


class Silent:
    """A display that shows nothing."""

    def phase(self, name: str, total: int) -> None: ...

    def advance(self, done: int, figures: dict[str, Any]) -> None: ...


def small_model(folder: Path) -> HFPolicy:
    torch.set_num_threads(1)
    text = "user assistant What comes next? I know it. Where is Halvik Ketterby land Norland Rome"
    return HFPolicy(*random_policy(folder, [text], layers=2, width=48, context=128))


def rewards(policy: HFPolicy) -> list[float]:
    starts = [
        Start(SelfSearch(tasks=TASKS, retriever="simulated:grammar", prompt="{question}"), task, 0)
        for task in TASKS
    ]
    config = RolloutConfig(context_tokens=128, turn_tokens=64, temperature=0.0, stop=SelfSearch.stop)
    played = asyncio.run(rollout(starts, policy, InlineFormat(policy.tokenizer), config, name="e"))
    return [trajectory.reward for trajectory in played]


def test_what_was_memorised_is_found_by_self_search(tmp_path: Path) -> None:
    policy = small_model(tmp_path / "small")
    assert rewards(policy) == [0.0, 0.0]
    assert memorise(policy, TASKS, tmp_path / "out", Silent(), steps=60, episodes=4, rate=1.0) > 0
    assert rewards(make_policy(f"hf:{tmp_path / 'out'}")) == pytest.approx([1.0, 1.0])


def test_the_lesson_is_the_experts_text_in_the_format_that_is_paid(tmp_path: Path) -> None:
    policy = small_model(tmp_path)
    ids, own = to_lesson(InlineFormat(policy.tokenizer), TASKS[0])
    written = policy.tokenizer.decode([i for i, mine in zip(ids, own, strict=True) if mine])
    assert format_reward(written) == 1.0
    assert "<information>Halvik land: Norland</information>" in written
    asked = policy.tokenizer.decode([i for i, mine in zip(ids, own, strict=True) if not mine])
    assert "Where is Halvik?" in asked


def test_tasks_without_a_path_cannot_be_memorised(tmp_path: Path) -> None:
    for tasks in ([], [Task("q", "Who?", ("Ada",))]):
        with pytest.raises(ConfigurationError, match="carry their path"):
            memorise(small_model(tmp_path), tasks, tmp_path / "out", Silent(), steps=1)
