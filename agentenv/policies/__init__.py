"""Policies: models in this process, engines, endpoints, your own agents, and scripts."""

import logging
from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.policies.agent import Agent, AgentPolicy
    from agentenv.policies.card import EpisodeCard
    from agentenv.policies.engine import EngineConfig
    from agentenv.policies.fakes import ByteTokenizer, random_policy
    from agentenv.policies.hf import HFPolicy
    from agentenv.policies.openai import OpenAIPolicy
    from agentenv.policies.policy_contract import PolicyContract
    from agentenv.policies.policy_spec import make_policy
    from agentenv.policies.scripted import ScriptedPolicy
    from agentenv.policies.vllm import VLLMPolicy

# sentence-transformers imports the trainer of transformers, which imports peft, which imports bitsandbytes wherever that is
# installed, in runs without a 4-bit base too. On some processors it then warns that a kernel from a model hub is missing,
# which no run here asks for.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

__all__ = [
    "Agent",
    "AgentPolicy",
    "ByteTokenizer",
    "EngineConfig",
    "EpisodeCard",
    "HFPolicy",
    "OpenAIPolicy",
    "PolicyContract",
    "ScriptedPolicy",
    "VLLMPolicy",
    "make_policy",
    "random_policy",
]

__getattr__, __dir__ = lazy_exports(__name__)
