"""The types and functions from which environments, policies and the episode loop are built."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.core.chat import InlineFormat, TemplateFormat
    from agentenv.core.concurrency.batching import DeterministicBatcher
    from agentenv.core.concurrency.tasks import gather_all
    from agentenv.core.env import AsyncEnv, Env, run_sync
    from agentenv.core.env_contract import EnvContract, check_env
    from agentenv.core.episodes import EpisodeBudgets, EpisodeSpec, EpisodeState, RolloutConfig
    from agentenv.core.images import ImageReader, PlacedImage
    from agentenv.core.protocols import ChatFormat, Policy, Retriever
    from agentenv.core.registry import (
        EnvSpec,
        discover,
        env_class,
        make,
        make_vec,
        register,
        registered,
        spec,
    )
    from agentenv.core.rollout import run_episode
    from agentenv.core.scene import TurnScene
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

__all__ = [
    "AsyncEnv",
    "ChatFormat",
    "Completion",
    "DeterministicBatcher",
    "Document",
    "EndReason",
    "Env",
    "EnvContract",
    "EnvSpec",
    "EpisodeBudgets",
    "EpisodeSpec",
    "EpisodeState",
    "FinishReason",
    "ImageReader",
    "Info",
    "InlineFormat",
    "Message",
    "MessagePart",
    "Observation",
    "Origin",
    "Passage",
    "PlacedImage",
    "Policy",
    "Query",
    "QueryContext",
    "Retriever",
    "RetrieverInfo",
    "RolloutConfig",
    "Sampling",
    "Segment",
    "SegmentKind",
    "Snapshot",
    "StateCapability",
    "Step",
    "Task",
    "TemplateFormat",
    "Tool",
    "ToolEnv",
    "ToolResult",
    "ToolStatus",
    "Trajectory",
    "Turn",
    "TurnScene",
    "VectorEnv",
    "check_env",
    "discover",
    "env_class",
    "gather_all",
    "make",
    "make_vec",
    "register",
    "registered",
    "run_episode",
    "run_sync",
    "spec",
    "tool",
]

__getattr__, __dir__ = lazy_exports(__name__)
