"""The configuration of a training run, and the files that it comes from."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.trainers.config.config_files import (
        changed,
        config_of,
        dump_config,
        load_config,
        override,
        parse_config,
        presets,
    )
    from agentenv.trainers.config.train_config import TrainConfig

__all__ = [
    "TrainConfig",
    "changed",
    "config_of",
    "dump_config",
    "load_config",
    "override",
    "parse_config",
    "presets",
]

__getattr__, __dir__ = lazy_exports(__name__)
