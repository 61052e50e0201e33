"""Where untrusted programs run: jails made by bubblewrap or Docker, sessions that can be rewound, and fakes."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.sandbox.backends import make_executor, unavailable
    from agentenv.sandbox.executor import JailExecutor
    from agentenv.sandbox.executor_contract import ExecutorContract
    from agentenv.sandbox.fakes import FakeExecutor
    from agentenv.sandbox.grading import grade
    from agentenv.sandbox.types import (
        ExecResult,
        ExecStatus,
        ExecutionLimits,
        Executor,
        ExecutorInfo,
        ExecutorSession,
        ExecutorSnapshot,
        FunctionCall,
    )

__all__ = [
    "ExecResult",
    "ExecStatus",
    "ExecutionLimits",
    "Executor",
    "ExecutorContract",
    "ExecutorInfo",
    "ExecutorSession",
    "ExecutorSnapshot",
    "FakeExecutor",
    "FunctionCall",
    "JailExecutor",
    "grade",
    "make_executor",
    "unavailable",
]

__getattr__, __dir__ = lazy_exports(__name__)
