"""Multi-turn environments for language-model agents, and a GRPO trainer that can rewind them."""

import importlib
from typing import TYPE_CHECKING, Any

import agentenv.envs  # noqa: F401  # registers what is shipped
from agentenv.core.env import AsyncEnv, Env
from agentenv.core.protocols import ChatFormat, Policy, Retriever
from agentenv.core.registry import EnvSpec, discover, make, make_vec, register, registered, spec
from agentenv.core.snapshot import Snapshot
from agentenv.core.tools import Tool, ToolEnv, tool
from agentenv.core.trajectory import Origin, Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import (
    Completion,
    Document,
    EndReason,
    FinishReason,
    Info,
    Message,
    MessagePart,
    Observation,
    Passage,
    Query,
    QueryContext,
    RetrieverInfo,
    Sampling,
    StateCapability,
    Step,
    Task,
    ToolResult,
    ToolStatus,
)
from agentenv.core.vector import VectorEnv
from agentenv.errors import (
    AgentEnvError,
    CheckpointMismatch,
    ConfigurationError,
    ContextTooSmall,
    CorpusError,
    DatasetError,
    EnvFault,
    EpisodeOver,
    Fault,
    IndexMismatch,
    MissingExtra,
    PolicyFault,
    ReplayDivergence,
    RetrieverFault,
    SandboxFault,
    SnapshotError,
    SnapshotRefused,
    UnknownName,
)

if TYPE_CHECKING:
    from agentenv.api import EvaluationResult, Score, TrainResult, evaluate, train
    from agentenv.policies.agent import Agent
    from agentenv.policies.policy_spec import make_policy
    from agentenv.retrievers.retriever_spec import make_retriever
    from agentenv.sandbox.backends import make_executor
    from agentenv.sandbox.types import Executor
    from agentenv.trainers.config.config_files import load_config
    from agentenv.trainers.config.train_config import TrainConfig

_LAZY = {
    "Agent": "agentenv.policies.agent",
    "EvaluationResult": "agentenv.api",
    "Executor": "agentenv.sandbox.types",
    "Score": "agentenv.api",
    "TrainConfig": "agentenv.trainers.config.train_config",
    "TrainResult": "agentenv.api",
    "evaluate": "agentenv.api",
    "load_config": "agentenv.trainers.config.config_files",
    "make_executor": "agentenv.sandbox.backends",
    "make_policy": "agentenv.policies.policy_spec",
    "make_retriever": "agentenv.retrievers.retriever_spec",
    "train": "agentenv.api",
}
"""Public names that are imported when they are first asked for, so that ``import agentenv`` stays light."""

__all__ = [
    "Agent",
    "AgentEnvError",
    "AsyncEnv",
    "ChatFormat",
    "CheckpointMismatch",
    "Completion",
    "ConfigurationError",
    "ContextTooSmall",
    "CorpusError",
    "DatasetError",
    "Document",
    "EndReason",
    "Env",
    "EnvFault",
    "EnvSpec",
    "EpisodeOver",
    "EvaluationResult",
    "Executor",
    "Fault",
    "FinishReason",
    "IndexMismatch",
    "Info",
    "Message",
    "MessagePart",
    "MissingExtra",
    "Observation",
    "Origin",
    "Passage",
    "Policy",
    "PolicyFault",
    "Query",
    "QueryContext",
    "ReplayDivergence",
    "Retriever",
    "RetrieverFault",
    "RetrieverInfo",
    "Sampling",
    "SandboxFault",
    "Score",
    "Segment",
    "SegmentKind",
    "Snapshot",
    "SnapshotError",
    "SnapshotRefused",
    "StateCapability",
    "Step",
    "Task",
    "Tool",
    "ToolEnv",
    "ToolResult",
    "ToolStatus",
    "TrainConfig",
    "TrainResult",
    "Trajectory",
    "Turn",
    "UnknownName",
    "VectorEnv",
    "evaluate",
    "load_config",
    "make",
    "make_executor",
    "make_policy",
    "make_retriever",
    "make_vec",
    "register",
    "registered",
    "spec",
    "tool",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports a public name of `_LAZY` (PEP 562).

    Raises:
        AttributeError: no such name.
    """
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


discover()
