"""Simulated search as an environment: its budgets, its default tasks, and results that name each measure (D12)."""

import asyncio

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.types import Task
from agentenv.envs.search.simulated_search import SimulatedSearch
from agentenv.errors import ConfigurationError
from agentenv.evaluation.results import summarize
from agentenv.evaluation.runner import to_record
from agentenv.policies.scripted import ScriptedPolicy

TASK = Task("q", "Where is Halvik?", ("Beijing",), "train")


def test_the_default_tasks_are_of_the_training_split_and_answered_by_the_grammar() -> None:
    env = SimulatedSearch()
    env.reset(seed=1)
    actions = env.expert()
    assert actions is not None
    steps = [env.step(action) for action in actions]
    assert env.state.task.split == "train"
    assert env.state.task.answers[0] in steps[0].observation[0].text
    assert steps[0].observation[0].text.count("Doc ") == 5
    assert steps[-1].reward == 1.0


def test_questions_of_another_split_need_a_simulator_that_is_not_told() -> None:
    task = Task("q", "Where is Halvik?", ("Beijing",), "test")
    for retriever, refused in (("simulated:grammar", True), ("simulated:gold=no@grammar", False)):
        env = SimulatedSearch(tasks=[task], retriever=retriever)
        env.reset(seed=0)
        if refused:
            with pytest.raises(ConfigurationError, match="'test'"):
                env.step("<search>Halvik</search>")
        else:
            assert "Beijing" not in env.step("<search>Halvik</search>").observation[0].text


def test_results_name_exact_match_substring_and_f1_apart() -> None:
    """D12: the published script wrote substring matches under EM and EM under F1. Here F1 is 2 (1/3) / (4/3)."""
    env = SimulatedSearch(tasks=[TASK])
    policy = ScriptedPolicy({"e-0": ["<answer>in Beijing, China</answer>"]})
    spec = EpisodeSpec(env, TASK, 0)
    played = asyncio.run(
        rollout(
            [spec],
            policy,
            InlineFormat(policy.tokenizer),
            RolloutConfig(context_tokens=4096, turn_tokens=500),
            name="e",
        )
    )
    assert played[0].reward == pytest.approx(0.5)  # the environment pays F1
    results = summarize(
        [to_record(trajectory) for trajectory in played],
        ("em_squad", "em_cover", "f1_squad"),
        dataset="d",
        split="train",
        policy="p",
        retriever="r",
        k=5,
        seed=0,
        bounds=None,
        settings={},
    )
    means = {name: score["mean"] for name, score in results["scores"].items()}
    assert means == {"em_squad": 0.0, "em_cover": 1.0, "f1_squad": pytest.approx(0.5)}
