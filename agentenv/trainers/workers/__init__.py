"""What plays the episodes of training: in this process, ahead of the learner, and on a cluster."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.trainers.workers.cluster import RayCluster
    from agentenv.trainers.workers.rollout_scheduler import RolloutScheduler
    from agentenv.trainers.workers.worker_pool import WorkerPool

__all__ = [
    "RayCluster",
    "RolloutScheduler",
    "WorkerPool",
]

__getattr__, __dir__ = lazy_exports(__name__)
