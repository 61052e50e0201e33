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
from agentenv.policies.hf import HFPolicy
from agentenv.policies.spec import make_policy
from agentenv.policies.tiny import build_tokenizer
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


def small_model() -> HFPolicy:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    text = "user assistant What comes next? I know it. Where is Halvik Ketterby land Norland Rome"
    tokenizer = build_tokenizer([text])
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return HFPolicy(Qwen2ForCausalLM(config), tokenizer)


def rewards(policy: HFPolicy) -> list[float]:
    starts = [
        Start(SelfSearch(tasks=TASKS, retriever="simulated:grammar", prompt="{question}"), task, 0)
        for task in TASKS
    ]
    config = RolloutConfig(context_tokens=128, turn_tokens=64, temperature=0.0, stop=SelfSearch.stop)
    played = asyncio.run(rollout(starts, policy, InlineFormat(policy.tokenizer), config, name="e"))
    return [trajectory.reward for trajectory in played]


def test_what_was_memorised_is_found_by_self_search(tmp_path: Path) -> None:
    policy = small_model()
    assert rewards(policy) == [0.0, 0.0]
    assert memorise(policy, TASKS, tmp_path / "out", Silent(), steps=60, episodes=4, rate=1.0) > 0
    assert rewards(make_policy(f"hf:{tmp_path / 'out'}")) == pytest.approx([1.0, 1.0])


def test_the_lesson_is_the_experts_text_in_the_format_that_is_paid() -> None:
    policy = small_model()
    ids, own = to_lesson(InlineFormat(policy.tokenizer), TASKS[0])
    written = policy.tokenizer.decode([i for i, mine in zip(ids, own, strict=True) if mine])
    assert format_reward(written) == 1.0
    assert "<information>Halvik land: Norland</information>" in written
    asked = policy.tokenizer.decode([i for i, mine in zip(ids, own, strict=True) if not mine])
    assert "Where is Halvik?" in asked


def test_tasks_without_a_path_cannot_be_memorised(tmp_path: Path) -> None:
    for tasks in ([], [Task("q", "Who?", ("Ada",))]):
        with pytest.raises(ConfigurationError, match="carry their path"):
            memorise(small_model(), tasks, tmp_path / "out", Silent(), steps=1)
