"""Reflectors by name: the trained policy, verifiers, a model behind an endpoint, another local model."""

import asyncio
import json

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.envs.calculator import Calculator
from agentenv.errors import EnvFault
from agentenv.policies.fake_endpoint import Answer, Body, FakeEndpoint
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.strategies.reflection import PolicyReflector, VerifierReflector
from agentenv.trainers.strategies.reflectors import make_reflector
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.step_verifiers import VERIFIERS, Flaw, RuleVerifier
from agentenv.trainers.strategies.strategies import by_group, get_strategy, play_groups

TOKENIZER = ByteTokenizer()
REPORT = {"trajectory_outcome": "failure", "improvement_suggestion": "ADD", "retry_from_step": 0}


def context() -> RolloutContext:
    policy = ScriptedPolicy({"e-0": ("7", "5")})
    config = RolloutConfig(turn_tokens=500, context_tokens=4000, temperature=0.7, deadline_s=9.0)
    return RolloutContext(policy, InlineFormat(TOKENIZER), config, TOKENIZER.decode)


def retried(reflector: str) -> list[Trajectory]:
    """7 is wrong, 5 is right."""
    specs = [EpisodeSpec(Calculator(), Task("s", "2 + 3", ("5",)), seed, "g") for seed in (0, 1)]
    (played,) = asyncio.run(
        play_groups([specs], get_strategy("reflect_retry", {"reflector": reflector}), context())
    )
    return played


def test_the_trained_policy_reflects_as_it_acts() -> None:
    on = context()
    made = make_reflector("self", 300, on)
    assert made == PolicyReflector(on.policy, on.chat, True, 300, 0.7, 9.0)
    assert isinstance(make_reflector("rule", 300, on), VerifierReflector)


def test_a_model_behind_an_endpoint_reflects_and_is_not_trained_on() -> None:
    def answer(body: Body) -> Answer:
        asked = body["messages"]
        assert [message["role"] for message in asked] == ["system", "user"]
        assert "action: 7" in asked[1]["content"]
        return Answer(f"Let me see. {json.dumps(REPORT)}")

    with FakeEndpoint(answer) as server:
        base, retry, guided = retried(f"openai:any@{server.url}")
    assert (base.reward, retry.reward) == (0.0, 1.0)
    assert "ADD" in TOKENIZER.decode(guided.ids.tolist())
    assert [len(group) for group in by_group([base, retry, guided])] == [2, 1]
    for trajectory in (base, retry, guided):
        assert trajectory.loss_mask.any()  # none of it is the endpoint's text


def test_an_endpoint_that_is_down_is_a_fault() -> None:
    with FakeEndpoint(lambda body: Answer(status=503, raw="{}")) as server:
        base, failed = retried(f"openai:any@{server.url}#retries=0")
    assert (base.valid, failed.valid) == (True, False)


def test_another_local_model_is_loaded_once() -> None:
    pytest.importorskip("torch", reason="needs the train extra")
    one, two = (make_reflector("tiny", 8, context()) for _ in range(2))
    assert isinstance(one, PolicyReflector)
    assert isinstance(two, PolicyReflector)
    assert one.policy is two.policy
    assert not one.trained


class FirstIsWrong:
    """A verifier of one line."""

    async def first_flaw(self, trajectory: Trajectory, ceiling: float) -> Flaw | None:
        return Flaw(0, "it was the first", "Think.") if trajectory.reward < ceiling else None


class Down(RuleVerifier):
    async def first_flaw(self, trajectory: Trajectory, ceiling: float) -> Flaw | None:
        raise EnvFault("the reward model is down")


def test_a_verifier_is_a_class_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERIFIERS, "first", FirstIsWrong)
    _, retry, guided = retried("first")
    assert retry.fork_turn == 0
    assert "Think." in TOKENIZER.decode(guided.ids.tolist())


def test_a_verifier_that_fails_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERIFIERS, "down", Down)
    base, failed = retried("down")
    assert base.valid
    assert failed.error == "EnvFault: the reward model is down"
