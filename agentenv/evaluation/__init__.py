"""Evaluations: playing question sets, bounds and confidence intervals of scores, and judges."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.evaluation.benchmark import Benchmark, run_benchmark
    from agentenv.evaluation.capabilities import Skill, TrainableCapability
    from agentenv.evaluation.records import EpisodeRecord, Evaluation, read_evaluation
    from agentenv.evaluation.runner import play
    from agentenv.evaluation.suite import Suite, read_suite
    from agentenv.evaluation.task_env import EnvConfig, SearchConfig, TaskEnv, open_task_env

__all__ = [
    "Benchmark",
    "EnvConfig",
    "EpisodeRecord",
    "Evaluation",
    "SearchConfig",
    "Skill",
    "Suite",
    "TaskEnv",
    "TrainableCapability",
    "open_task_env",
    "play",
    "read_evaluation",
    "read_suite",
    "run_benchmark",
]

__getattr__, __dir__ = lazy_exports(__name__)
