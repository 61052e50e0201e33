"""GRPO on whole episodes: training runs, from their configuration to their results."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.trainers.config.config_files import changed, load_config, override
    from agentenv.trainers.config.train_config import TrainConfig
    from agentenv.trainers.grpo import train
    from agentenv.trainers.plan import plan_run
    from agentenv.trainers.run_folder.folder import RunFolder

__all__ = [
    "RunFolder",
    "TrainConfig",
    "changed",
    "load_config",
    "override",
    "plan_run",
    "train",
]

__getattr__, __dir__ = lazy_exports(__name__)
