"""What the experts of the shipped environments earn as the chat templates of models spell them, against what tags earn."""

import asyncio
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat, ends_of_turn
from agentenv.core.native_format import NativeFormat
from agentenv.core.protocols import ChatFormat
from agentenv.core.registry import make
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.strategies.demonstrations import expert_actions, spell
from agentenv.trainers.strategies.rollout_context import RolloutContext
from tests.core.test_native_families import MODELS

pytest.importorskip("transformers", reason="needs the train extra")

LEARNERS = ("Qwen2.5", "Qwen3", "Llama 3.2", "gpt-oss", "GLM-4.7", "Mistral (v3)")
SEARCHES = (
    "LocalSearch",
    "SimulatedSearch",
    "LongSearch",
    "SearchSolver",
    "JudgedSearch",
    "HybridSearch",
    "Rewrite",
    "HierarchicalSearch",
    "AgentSearch",
    "OrganisationSearch",
    "SearchProposer",
)
OTHERS = ("Calculator", "Code", "TraceCode", "SQL", "ReExSQL", "DomSim", "SemiOnlineGUI")
CALLED = ("Calculator", "LocalSearch", "LongSearch", "SearchSolver", "SimulatedSearch")
"""Those whose actions are calls of tools."""


def shown(name: str, task: Task, chat: ChatFormat, tokenizer: Any) -> Trajectory:
    env = make(f"agentenv/{name}-v0")
    config = RolloutConfig(context_tokens=200_000, turn_tokens=20_000, stop=getattr(env, "stop", ()))
    context = RolloutContext(ScriptedPolicy({}, tokenizer), chat, config, tokenizer.decode)
    try:
        return asyncio.run(spell(EpisodeSpec(env, task, 0), context, expert_actions))
    finally:
        env.close()


@pytest.mark.parametrize("name", [*SEARCHES, *OTHERS])
def test_an_expert_earns_natively_what_it_earns_in_tags(name: str) -> None:
    env = make(f"agentenv/{name}-v0")
    task = next(iter(env.held_tasks() or type(env).make_tasks(1, seed=1)))
    env.close()
    tokenizer = ByteTokenizer()
    usual = shown(name, task, InlineFormat(tokenizer), tokenizer)
    assert usual.reward > 0
    for learner in LEARNERS:
        tokenizer = MODELS[learner].tokenizer()
        chat = NativeFormat(tokenizer, ends=ends_of_turn(tokenizer))
        native = shown(name, task, chat, tokenizer)
        assert (native.reward, native.end_reason) == (usual.reward, usual.end_reason), (learner, native.error)
        assert [turn.valid for turn in native.turns] == [turn.valid for turn in usual.turns]
        assert bool(chat.family.read_alone(native.turns[0].action, {"": {}}).calls) is (name in CALLED)
