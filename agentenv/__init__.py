"""Multi-turn environments for language-model agents, and a GRPO trainer that can rewind them."""

from typing import TYPE_CHECKING

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
from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.api import (
        EvaluationResult,
        Score,
        SuiteResult,
        TrainResult,
        evaluate,
        evaluate_suite,
        train,
    )
    from agentenv.policies.agent import Agent
    from agentenv.policies.policy_spec import make_policy
    from agentenv.retrievers.retriever_spec import make_retriever
    from agentenv.sandbox.backends import make_executor
    from agentenv.sandbox.types import Executor
    from agentenv.trainers.config.config_files import load_config
    from agentenv.trainers.config.train_config import TrainConfig

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
    "SuiteResult",
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
    "evaluate_suite",
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

# Imported when they are first asked for, so that ``import agentenv`` stays light.
__getattr__, __dir__ = lazy_exports(__name__)

discover()
