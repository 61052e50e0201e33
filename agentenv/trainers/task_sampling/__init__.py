"""Task samplers: which questions are played, and how often."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.trainers.task_sampling.samplers import SAMPLERS, get_sampler
    from agentenv.trainers.task_sampling.step_budget import (
        StatelessSampler,
        StepBudget,
        TaskDraw,
        TaskSampler,
    )

__all__ = [
    "SAMPLERS",
    "StatelessSampler",
    "StepBudget",
    "TaskDraw",
    "TaskSampler",
    "get_sampler",
]

__getattr__, __dir__ = lazy_exports(__name__)
