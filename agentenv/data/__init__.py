"""Question sets, sets of programs, invented worlds, and the splits of tasks that environments make."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.data.datasets import SETS, Dataset, load_dataset
    from agentenv.data.sources import Source, SourceConfig, open_source
    from agentenv.data.splits import in_split
    from agentenv.data.world import FictionalWorld
    from agentenv.data.world_config import WorldConfig

__all__ = [
    "SETS",
    "Dataset",
    "FictionalWorld",
    "Source",
    "SourceConfig",
    "WorldConfig",
    "in_split",
    "load_dataset",
    "open_source",
]

__getattr__, __dir__ = lazy_exports(__name__)
